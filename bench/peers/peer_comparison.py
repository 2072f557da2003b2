"""Measures edgedecode and every peer on the same prompts, interleaved: plain, scheduled, and each peer's best settings.

A rehearsal over a family's prompts comes first, for peers over the first few of them. It warms up every engine, teaches
our scheduler the costs of passes, and finds the fastest setting of each kind of a peer's speculation on these prompts,
which is then measured. So peers are shown at their best in hindsight, and ours as it chooses by itself. Of
conversations only the first turn is used.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from time import perf_counter, sleep

from edgedecode import Message, Pair, RuntimeUnavailable, SamplingOptions, SessionOptions
from edgedecode.text.prompts import Prompt

from ..settings import Settings
from .peer import PLAIN_MODE, Answer, PeerProcess, kind_of

OURS, SCHEDULED = "edgedecode", "scheduled"
REHEARSED = 2
"""Prompts of a family in the rehearsal of a peer's settings."""
SETTLE_SECONDS = 0.02
"""Wait between engines: threads spin for some milliseconds after their last pass, and the next engine needs the
cores."""

Way = tuple[str, str]
"""An engine in one mode: a peer's name or OURS, and the mode."""
OUR_WAYS: tuple[Way, Way] = ((OURS, PLAIN_MODE), (OURS, SCHEDULED))
Answers = list[list[Answer]]
"""[repetition][prompt]"""


@dataclass(frozen=True, slots=True)
class WayResult:
    """One engine in one mode on one family: tokens per second, medians over repetitions.

    `whole`: of the full request, with prefill; `decode`: after prefill. The speed-ups are our speed / this one's, the
    median of the repetitions' ratios; ours is plain decoding if this mode is plain, else scheduled decoding.
    """

    peer: str
    mode: str
    whole: float
    decode: float
    whole_speed_up: float
    decode_speed_up: float
    same_texts: int
    """Prompts for which every repetition returned the text of our plain decoding."""


@dataclass(frozen=True, slots=True)
class PeerFamily:
    """One task family. `ways`: ours first, then each peer's plain decoding and the best setting of each kind."""

    family: str
    prompts: int
    tokens: int
    """Tokens of our plain answers."""
    ways: tuple[WayResult, ...]

    def of(self, peer: str) -> list[WayResult]:
        return [way for way in self.ways if way.peer == peer]

    def way(self, peer: str, mode: str) -> WayResult | None:
        return next((way for way in self.of(peer) if way.mode == mode), None)

    def best_speculative(self, peer: str | None = None) -> WayResult | None:
        """Return the fastest speculative mode by full requests, of one peer or of any; None if there is none."""
        modes = [way for way in self.ways if way.peer != OURS and way.mode != PLAIN_MODE and peer in (None, way.peer)]
        return max(modes, key=lambda way: way.whole, default=None)


@dataclass(frozen=True, slots=True)
class Summary:
    """Our speed-ups over one way per family, over all families. `worst`: family, peer and mode of `worst_whole`."""

    mean_whole: float
    worst_whole: float
    mean_decode: float
    worst_decode: float
    worst: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """All families, each peer's setting, and a line with the reason for each peer that could not be compared."""

    families: tuple[PeerFamily, ...]
    settings: dict[str, str]
    reasons: tuple[str, ...]

    def plain(self, peer: str) -> Summary | None:
        """Summarize our plain decoding against the peer's; None: it is not among the families."""
        return self._summary(lambda family: family.way(peer, PLAIN_MODE))

    def speculative(self, peer: str | None = None) -> Summary | None:
        """Summarize our scheduled decoding against the best speculation of a peer, or of the fastest peer."""
        return self._summary(lambda family: family.best_speculative(peer))

    def _summary(self, chosen: Callable[[PeerFamily], WayResult | None]) -> Summary | None:
        ways = {family.family: way for family in self.families if (way := chosen(family)) is not None}
        if not ways:
            return None
        family, worst = min(ways.items(), key=lambda item: item[1].whole_speed_up)
        return Summary(
            mean_whole=fmean(way.whole_speed_up for way in ways.values()),
            worst_whole=worst.whole_speed_up,
            mean_decode=fmean(way.decode_speed_up for way in ways.values()),
            worst_decode=min(way.decode_speed_up for way in ways.values()),
            worst=f"{family}, {worst.peer} {worst.mode}",
        )


@dataclass(slots=True)
class _Contest:
    """The pair and the peers still in the comparison; a peer that fails is removed, with its reason."""

    pair: Pair
    settings: Settings
    peers: dict[str, PeerProcess]
    advance: Callable[[], None]
    reasons: list[str] = field(default_factory=list)

    def without_failed(self, ways: Sequence[Way]) -> list[Way]:
        return [way for way in ways if way[0] in (OURS, *self.peers)]

    def ask(self, way: Way, prompt: Prompt) -> Answer | None:
        """Return the answer; None if the peer has failed, now or before."""
        name, mode = way
        try:
            sleep(SETTLE_SECONDS)
            if name == OURS:
                return _our_answer(self.pair, prompt, mode=mode, settings=self.settings)
            if name not in self.peers:
                return None
            tokenizer = self.pair.tokenizer
            tokens = tokenizer.encode(tokenizer.render([*prompt.history, Message("user", prompt.turns[0])]))
            return self.peers[name].answer(mode, tokens, count=self.settings.max_tokens)
        except RuntimeUnavailable as error:
            if name == OURS:
                raise
            self.reasons.append(f"{name}: {error} (mode {mode})")
            self.peers.pop(name).close()
            return None
        finally:
            self.advance()


def compare(
    pair: Pair, peers: Sequence[PeerProcess], *, settings: Settings, reasons: Sequence[str], advance: Callable[[], None]
) -> Comparison:
    """Measure every family; `advance` is called after every answer. Peers that fail during the run are left out."""
    running = _Contest(pair, settings, {peer.name: peer for peer in peers}, advance, list(reasons))
    families = [_family(running, family) for family in settings.families]
    left = {OURS, *running.peers}
    kept = tuple(replace(each, ways=tuple(way for way in each.ways if way.peer in left)) for each in families)
    return Comparison(kept, {name: peer.setting for name, peer in running.peers.items()}, tuple(running.reasons))


def _our_answer(pair: Pair, prompt: Prompt, *, mode: str, settings: Settings) -> Answer:
    """Answer in a new session, whose creation is timed too; nothing is drafted from an earlier answer."""
    drafter = "none" if mode == PLAIN_MODE else None
    options = SessionOptions(sampling=SamplingOptions(), drafter=drafter, context=settings.context, seed=0)
    started = perf_counter()
    with pair.session(options, messages=prompt.history) as session:
        opened = perf_counter()
        chunks = session.stream(prompt.turns[0], max_tokens=settings.max_tokens)
        tokens = tuple(token for chunk in chunks for token in chunk.tokens)
        seconds = perf_counter() - started
        return Answer(tokens, seconds, opened - started + session.stats.prefill_seconds, first_tokens=1)


def _family(running: _Contest, family: str) -> PeerFamily:
    settings = running.settings
    prompts = settings.of_family(family)
    ways = _best_ways(running, prompts)
    answers: dict[Way, Answers] = {way: [] for way in ways}
    for repetition in range(settings.repetitions):
        for mine in answers.values():
            mine.append([])
        for index, prompt in enumerate(prompts):
            start = (repetition + index) % len(ways)  # each time another way goes first
            for way in (*ways[start:], *ways[:start]):
                if (answer := running.ask(way, prompt)) is not None:
                    answers[way][-1].append(answer)
    ends = frozenset(running.pair.manifest.generation.end_token_ids)
    return PeerFamily(
        family=family,
        prompts=len(prompts),
        tokens=sum(len(answer.tokens) for answer in answers[OUR_WAYS[0]][0]),
        ways=tuple(_result(way, answers, ends=ends) for way in running.without_failed(ways)),
    )


def _best_ways(running: _Contest, prompts: Sequence[Prompt]) -> list[Way]:
    """Return our ways, and for each peer plain decoding and the fastest setting of each kind."""
    best: dict[Way, tuple[float, Way]] = {}
    for way in (*OUR_WAYS, *((peer.name, mode) for peer in [*running.peers.values()] for mode in peer.modes)):
        asked = prompts if way[0] == OURS else prompts[:REHEARSED]
        answers = [answer for prompt in asked if (answer := running.ask(way, prompt)) is not None]
        key = (way[0], kind_of(way[1]))
        speed = _whole(answers) if answers else 0.0
        if key not in best or speed > best[key][0]:
            best[key] = speed, way
    return running.without_failed([way for _, way in best.values()])


def _result(way: Way, answers: dict[Way, Answers], *, ends: frozenset[int]) -> WayResult:
    mine, ours = answers[way], answers[OUR_WAYS[0] if way[1] == PLAIN_MODE else OUR_WAYS[1]]
    wanted = [_text(answer, ends) for answer in answers[OUR_WAYS[0]][0]]
    texts = [[_text(answer, ends) for answer in repetition] for repetition in mine]
    return WayResult(
        *way,
        whole=median(map(_whole, mine)),
        decode=median(map(_decode, mine)),
        whole_speed_up=_speed_up(ours, mine, _whole),
        decode_speed_up=_speed_up(ours, mine, _decode),
        same_texts=sum({*every} == {text} for text, *every in zip(wanted, *texts, strict=True)),
    )


def _speed_up(ours: Answers, theirs: Answers, speed: Callable[[Sequence[Answer]], float]) -> float:
    ratios = [speed(our) / other for our, their in zip(ours, theirs, strict=True) if (other := speed(their))]
    return median(ratios) if ratios else 0.0


def _whole(answers: Sequence[Answer]) -> float:
    return sum(len(answer.tokens) for answer in answers) / sum(answer.seconds for answer in answers)


def _decode(answers: Sequence[Answer]) -> float:
    """Return tokens per second after prefill; 0 if every answer ended with prefill."""
    tokens = sum(answer.decode_tokens for answer in answers)
    return tokens / sum(answer.decode_seconds for answer in answers) if tokens else 0.0


def _text(answer: Answer, ends: frozenset[int]) -> tuple[int, ...]:
    """Return the tokens without an end of sequence, which not every engine returns."""
    return answer.tokens[:-1] if answer.tokens and answer.tokens[-1] in ends else answer.tokens
