"""Measures answers under a grammar: what masks cost, and what forced tokens and drafts gain."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median
from typing import cast

from edgedecode.decoding.constraint import FORCED
from edgedecode.structured.grammar import Grammar
from edgedecode.structured.guidance import GrammarTokens, GuidanceConstraint
from edgedecode.text.prompts import Prompt
from edgedecode.typed_json import JsonValue

from ..settings import PLAIN, SCHEDULED, Arm, Settings
from .timed import TimedPair
from .timed_answers import Requests, Run

_TEXT: dict[str, JsonValue] = {"type": "string", "maxLength": 20}
_PROPERTIES: dict[str, JsonValue] = {
    "item": _TEXT,
    "quantity": {"type": "integer", "minimum": 1, "maximum": 99},
    "price": {"type": "integer", "minimum": 0, "maximum": 999},
    "customer": _TEXT,
    "delivery": {"enum": ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]},
    "paid": {"type": "boolean"},
}
SCHEMA: dict[str, JsonValue] = {
    "type": "object",
    "properties": _PROPERTIES,
    "required": [*_PROPERTIES],
    "additionalProperties": False,
}
"""An object of six fields, as programs ask for."""


@dataclass(frozen=True, slots=True)
class _Way:
    """A way to answer. forces: forced tokens are verified together; without, every token takes a pass and a mask."""

    name: str
    arm: Arm
    structured: bool = True
    forces: bool = True


WAYS = (
    _Way("plain, every token masked", PLAIN, forces=False),
    _Way("forced tokens together", PLAIN),
    _Way("and drafts (the default)", SCHEDULED),
    _Way("free text, scheduled", SCHEDULED, structured=False),
    _Way("free text, plain", PLAIN, structured=False),
)


@dataclass(frozen=True, slots=True)
class WaySpeed:
    """Median speed from the first token on, over all prompts. ratio: to the first way's. differ: prompts whose text
    is not the first way's; None for free text."""

    way: str
    tokens_per_second: float
    ratio: float
    tokens_per_pass: float
    forced: int
    differ: int | None


def measure_structured(
    timed: TimedPair, settings: Settings, *, others: Sequence[Prompt], advance: Callable[[], None]
) -> list[WaySpeed]:
    """Answer every prompt in every way, interleaved. others: the scheduler's warm-up, free and under the grammar."""
    free = Requests(timed, settings)
    under = Requests(timed, replace(settings, grammar=Grammar.of_schema(SCHEMA)))
    free.warm_up(others)
    under.warm_up(others)
    runs: dict[str, list[list[Run]]] = {way.name: [[] for _ in settings.prompts] for way in WAYS}
    for _ in range(settings.repetitions):
        for index, prompt in enumerate(settings.prompts):
            for way in WAYS:
                with _masking_all(timed, not way.forces):
                    runs[way.name][index].append((under if way.structured else free).answer(prompt, way.arm))
                advance()
    reference = runs[WAYS[0].name]
    return [_speed(way, runs[way.name], reference=reference) for way in WAYS]


def _speed(way: _Way, runs: list[list[Run]], *, reference: list[list[Run]]) -> WaySpeed:
    stats = [each for repeated in runs for each in repeated[0].stats]
    texts = [repeated[0].tokens for repeated in runs], [repeated[0].tokens for repeated in reference]
    return WaySpeed(
        way.name,
        _tokens_per_second(runs),
        _tokens_per_second(runs) / _tokens_per_second(reference),
        sum(each.tokens for each in stats) / max(1, sum(each.rounds for each in stats)),
        sum(each.drafters[FORCED].accepted for each in stats if FORCED in each.drafters),
        sum(one != other for one, other in zip(*texts, strict=True)) if way.structured else None,
    )


def _tokens_per_second(runs: list[list[Run]]) -> float:
    """Return the speed after each answer's first token, from the median time of each prompt's answer."""
    tokens = sum(len(repeated[0].tokens) - len(repeated[0].stats) for repeated in runs)
    return tokens / sum(median(run.seconds for run in repeated) for repeated in runs)


@contextmanager
def _masking_all(timed: TimedPair, unforced: bool) -> Iterator[None]:
    """Within it, sessions that are opened are told of no forced tokens, if `unforced`."""
    shared = timed.pair.shared
    if not unforced:
        yield
        return
    tokens = shared.tokens_of_grammars()
    shared.grammar_tokens = cast("GrammarTokens", _UnforcedTokens(tokens))
    try:
        yield
    finally:
        shared.grammar_tokens = tokens


class _UnforcedTokens:
    def __init__(self, tokens: GrammarTokens) -> None:
        self._tokens, self.compile = tokens, tokens.compile

    def constraint(self, grammar: Grammar) -> _Unforced:
        return _Unforced(self._tokens.constraint(grammar))


class _Unforced:
    """A `Constraint` that masks as another one does, and forces nothing."""

    def __init__(self, constraint: GuidanceConstraint) -> None:
        self.begin, self.allows = constraint.begin, constraint.allows
        self.masked, self.extend = constraint.masked, constraint.extend

    def forced(self) -> Sequence[int]:
        return ()
