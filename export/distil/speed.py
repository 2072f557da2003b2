"""What a pack's drafts cost and gain on texts that were held out: rounds' times, speed, and tokens of a round."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter
from typing import NamedTuple

from edgedecode import Pair, SamplingOptions, SessionOptions, load
from edgedecode.errors import EdgeDecodeError, InputError

from .acceptance import Acceptance
from .kinds.head_network import DEPTH
from .texts import Lengths, Text

TOKENS = 96
_WARM_UP = 3
"""Texts by which the scheduler learns costs and acceptance first."""
TIMED_TEXTS, _LEAST_TIMED, _MOST_SECONDS, _SHARE = 12, 2, 40.0, 0.1
"""Texts by which rounds are timed, fewer where that takes longer than these seconds, or this share of the minutes."""
_FIRST = 8
"""Tokens of an answer that is not timed, for what a process does once."""


@dataclass(frozen=True, slots=True)
class RoundCosts:
    """seconds: of a round without drafts. rounds: with drafts of 1, 2, ... tokens, in those without.

    All that a round takes is in it: the target's pass, the draft's steps and reading, and the program around them.
    """

    seconds: float
    rounds: tuple[float, ...]

    def speed_up(self, acceptance: Acceptance) -> float:
        """Return the speed over plain decoding with the best of these lengths, without other drafters."""
        return max(acceptance.length(draft) / cost for draft, cost in enumerate(self.rounds, start=1))


@dataclass(frozen=True, slots=True)
class Best:
    """The best measurement of the whole work, by the tokens of a round."""

    tokens: int
    """Read by the training until then."""
    acceptance: Acceptance
    speed_up: float


def round_costs(
    root: Path,
    texts: Sequence[Text],
    *,
    drafter: str,
    adapter: str | None,
    minutes: float,
    advance: Callable[[int], None],
) -> RoundCosts:
    """Time rounds without drafts and with this drafter's, in turns. minutes: of the whole work.

    Raises InputError for texts without answers.
    """
    until = monotonic() + min(_MOST_SECONDS, 60 * minutes * _SHARE)
    with _opened(root, adapter) as pair:
        lengths = [_options(pair, drafter, adapter=adapter, draft_max=draft) for draft in range(1, DEPTH + 1)]
        options = [_options(pair, "none", adapter=adapter), *lengths]
        for each in options:
            _answer(pair, texts[0], each, most=_FIRST)
        timed = list[list[float]]()
        for text in texts:
            answers = [_answer(pair, text, each) for each in options]
            if all(each.rounds > 1 for each in answers):
                timed.append([each.seconds / (each.rounds - 1) for each in answers])  # timed from the first token
                advance(1)
            if len(timed) == TIMED_TEXTS or (len(timed) >= _LEAST_TIMED and monotonic() > until):
                break
    if not timed:
        raise InputError("the target ends its held-out answers at once, which leaves no rounds: give other prompts")
    plain, *drafted = zip(*timed, strict=True)
    costs = (median(here / base for here, base in zip(each, plain, strict=True)) for each in drafted)
    return RoundCosts(median(plain), tuple(costs))


def speed_ups(root: Path, texts: Sequence[Text], *, adapter: str | None, advance: Callable[[int], None]) -> list[float]:
    """Return each text's speed with the pack's drafts over its speed without, decoding alone, in turns.

    Raises EdgeDecodeError if an answer differs, which no draft may cause.
    """
    with _opened(root, adapter) as pair:
        options = [_options(pair, drafter, adapter=adapter) for drafter in ("none", None)]
        for text in texts[:_WARM_UP]:
            _answer(pair, text, options[1])
        ratios = []
        for text in texts:
            plain, drafted = (_answer(pair, text, each) for each in options)
            if plain.tokens != drafted.tokens:
                raise EdgeDecodeError("an answer with drafts differs from the one without: report this")
            ratios.append(plain.seconds / drafted.seconds if drafted.seconds else 1.0)
            advance(1)
        return ratios


def tokens_a_round(
    root: Path, texts: Sequence[Text], *, drafter: str, adapter: str | None, advance: Callable[[int], None]
) -> list[float]:
    """Return each text's tokens of a round with one drafter, which always drafts as many as are trained: no timing."""
    found = []
    with _opened(root, adapter) as pair:
        options = _options(pair, drafter, adapter=adapter, draft_max=DEPTH)
        for text in texts:
            with pair.session(options) as session:
                session.collect(session.complete(text.prompt, max_tokens=TOKENS))
                found.append(session.stats.verified_tokens / max(1, session.stats.rounds))
            advance(1)
    return found


class _Answer(NamedTuple):
    """seconds: from the first tokens to the end."""

    tokens: tuple[int, ...]
    seconds: float
    rounds: int


def _answer(pair: Pair, text: Text, options: SessionOptions, *, most: int = TOKENS) -> _Answer:
    """Return a greedy answer."""
    with pair.session(options) as session:
        started, tokens = 0.0, list[int]()
        for chunk in session.complete(text.prompt, max_tokens=most):
            started = started or perf_counter()
            tokens += chunk.tokens
        return _Answer(tuple(tokens), perf_counter() - started, session.stats.rounds)


def _opened(root: Path, adapter: str | None) -> Pair:
    return load(root, adapters=adapter is not None)


def _options(pair: Pair, drafter: str | None, *, adapter: str | None, draft_max: int | None = None) -> SessionOptions:
    context = Lengths.of(pair).context
    return SessionOptions(SamplingOptions(), adapter, drafter=drafter, draft_max=draft_max, context=context)
