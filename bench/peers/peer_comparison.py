"""Measures edgedecode and every peer on the same prompts, interleaved: plain, scheduled, and each peer's best settings.

A rehearsal over a family's prompts comes first, for peers over the first few of them. It warms up every engine, teaches
our scheduler the costs of passes, and finds the fastest setting of each kind of a peer's speculation on these prompts,
which is then measured. So peers are shown at their best in hindsight, and ours as it chooses by itself. Of
conversations only the first turn is used.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter, sleep

from edgedecode import Pair, RuntimeUnavailable, SamplingOptions, SessionOptions
from edgedecode.text.prompts import Prompt

from ..settings import Settings
from .peer import PLAIN_MODE, Answer, kind_of
from .peer_process import PeerProcess
from .peer_results import OURS, SCHEDULED, Comparison, PeerFamily, WayResult

REHEARSED = 2
"""Prompts of a family in the rehearsal of a peer's settings."""
SETTLE_SECONDS = 0.02
"""Wait between engines: threads spin for some milliseconds after their last pass, and the next engine needs the
cores."""


@dataclass(frozen=True, slots=True)
class Way:
    """An engine in one mode: a peer's name or OURS, and the mode."""

    peer: str
    mode: str


OUR_WAYS = (Way(OURS, PLAIN_MODE), Way(OURS, SCHEDULED))
Answers = list[list[Answer]]
"""[repetition][prompt]"""


@dataclass(slots=True)
class _Question:
    """A prompt, and the token ids that a session encoded it to."""

    prompt: Prompt
    tokens: tuple[int, ...] = ()


@dataclass(slots=True)
class _Contest:
    """The pair and the peers still in the comparison; a peer that fails is removed, with its reason."""

    pair: Pair
    settings: Settings
    peers: dict[str, PeerProcess]
    advance: Callable[[], None]
    reasons: list[str] = field(default_factory=list)

    def ask(self, way: Way, question: _Question) -> Answer | None:
        """Return the answer; None if the peer has failed, now or before."""
        try:
            sleep(SETTLE_SECONDS)
            if way.peer == OURS:
                return _our_answer(self.pair, question, mode=way.mode, settings=self.settings)
            if way.peer not in self.peers:
                return None
            return self.peers[way.peer].answer(way.mode, question.tokens, count=self.settings.max_tokens)
        except RuntimeUnavailable as error:
            if way.peer == OURS:
                raise
            self.reasons.append(f"{way.peer}: {error} (mode {way.mode})")
            self.peers.pop(way.peer).close()
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
    kept = tuple(_without(family, left) for family in families)
    return Comparison(kept, {name: peer.setting for name, peer in running.peers.items()}, tuple(running.reasons))


def _our_answer(pair: Pair, question: _Question, *, mode: str, settings: Settings) -> Answer:
    """Answer in a new session, whose creation is timed too; nothing is drafted from an earlier answer."""
    options = SessionOptions(
        sampling=SamplingOptions(),
        drafter="none" if mode == PLAIN_MODE else None,
        context=settings.context,
        seed=0,
    )
    started = perf_counter()
    with pair.session(options, messages=question.prompt.history) as session:
        opened = perf_counter()
        chunks = session.stream(question.prompt.turns[0], max_tokens=settings.max_tokens)
        tokens = tuple(token for chunk in chunks for token in chunk.tokens)
        seconds = perf_counter() - started
        stats = session.stats
        question.tokens = session.tokens[: stats.prompt_tokens]
        return Answer(tokens, seconds, first_seconds=opened - started + stats.prefill_seconds, first_tokens=1)


def _family(running: _Contest, family: str) -> PeerFamily:
    settings = running.settings
    questions = [_Question(prompt) for prompt in settings.of_family(family)]
    ways = _best_ways(running, questions)
    answers: dict[Way, Answers] = {way: [] for way in ways}
    for repetition in range(settings.repetitions):
        for mine in answers.values():
            mine.append([])
        for index, question in enumerate(questions):
            start = (repetition + index) % len(ways)  # each time another way goes first
            for way in (*ways[start:], *ways[:start]):
                if (answer := running.ask(way, question)) is not None:
                    answers[way][-1].append(answer)
    answers = {way: mine for way, mine in answers.items() if way.peer in (OURS, *running.peers)}
    plain = answers[OUR_WAYS[0]]
    return PeerFamily(
        family=family,
        prompts=len(questions),
        tokens=sum(len(answer.tokens) for answer in plain[0]),
        ways=tuple(_result(way, answers, ends=running.pair.manifest.generation.end_token_ids) for way in answers),
    )


def _best_ways(running: _Contest, questions: Sequence[_Question]) -> list[Way]:
    """Return our ways, and for each peer plain decoding and the fastest setting of each kind."""
    best: dict[tuple[str, str], tuple[float, Way]] = {}
    for way in (*OUR_WAYS, *(Way(peer.name, mode) for peer in [*running.peers.values()] for mode in peer.modes)):
        asked = questions if way.peer == OURS else questions[:REHEARSED]
        answers = [answer for question in asked if (answer := running.ask(way, question)) is not None]
        key = (way.peer, kind_of(way.mode))
        speed = _whole(answers) if answers else 0.0
        if key not in best or speed > best[key][0]:
            best[key] = speed, way
    return [way for _, way in best.values() if way.peer in (OURS, *running.peers)]


def _result(way: Way, answers: dict[Way, Answers], *, ends: Sequence[int]) -> WayResult:
    mine, ours = answers[way], answers[OUR_WAYS[0] if way.mode == PLAIN_MODE else OUR_WAYS[1]]
    return WayResult(
        peer=way.peer,
        mode=way.mode,
        whole=median(map(_whole, mine)),
        decode=median(map(_decode, mine)),
        whole_speed_up=_speed_up(ours, mine, _whole),
        decode_speed_up=_speed_up(ours, mine, _decode),
        same_texts=_same_texts(mine, answers[OUR_WAYS[0]], ends=frozenset(ends)),
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


def _same_texts(theirs: Answers, ours: Answers, *, ends: frozenset[int]) -> int:
    wanted = [_text(answer, ends) for answer in ours[0]]
    return sum(
        all(_text(repetition[index], ends) == text for repetition in theirs) for index, text in enumerate(wanted)
    )


def _text(answer: Answer, ends: frozenset[int]) -> tuple[int, ...]:
    """Return the tokens without an end of sequence, which not every engine returns."""
    return answer.tokens[:-1] if answer.tokens and answer.tokens[-1] in ends else answer.tokens


def _without(family: PeerFamily, left: set[str]) -> PeerFamily:
    """Return the family's results without those of peers that failed."""
    ways = tuple(way for way in family.ways if way.peer in left)
    return PeerFamily(family.family, family.prompts, family.tokens, ways)


@contextmanager
def closing(peers: Sequence[PeerProcess]) -> Iterator[None]:
    """End every peer's process after the block."""
    try:
        yield
    finally:
        for peer in peers:
            peer.close()
