"""Measures answers under a grammar: what forced tokens and drafts gain, and whether the values are right.

The prompts ask for facts of a text as JSON, in the words of the bundled pair's training text, which has none of them.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from statistics import median

from edgedecode import Pair
from edgedecode.decoding.drafts import FORCED
from edgedecode.structured.grammar import Grammar
from edgedecode.text.prompts import Prompt
from edgedecode.typed_json import JsonValue

from ..settings import PLAIN, SCHEDULED, Arm, Settings
from .timed_answers import Requests, Run

_Object = dict[str, JsonValue]


@dataclass(frozen=True, slots=True)
class Extraction:
    """A prompt, and the object that answers it."""

    prompt: str
    answer: _Object

    def is_right(self, found: JsonValue) -> bool:
        """Return whether an answer has these keys and values, in any order and in letters of any case."""
        return _plain(found) == _plain(self.answer)

    def has_values(self, found: JsonValue) -> bool:
        """Return whether an answer has these values and no others, whatever its keys, in letters of any case."""
        return {*_values(found)} == {*_values(self.answer)}


_LINES = files(__package__).joinpath("facts.jsonl").read_text(encoding="utf-8").splitlines()
EXTRACTIONS = tuple(Extraction(**json.loads(line)) for line in _LINES)


def _schema(value: JsonValue, *, exact: bool) -> _Object:
    """Return the schema of a value's keys and types. exact: all of the keys are required, and no others allowed."""
    if not isinstance(value, dict):
        return {"type": "string" if isinstance(value, str) else "integer"}
    properties: _Object = {name: _schema(each, exact=exact) for name, each in value.items()}
    schema: _Object = {"type": "object", "properties": properties}
    return {**schema, "required": [*value], "additionalProperties": False} if exact else schema


GRAMMARS: dict[str, Callable[[_Object], Grammar | None]] = {
    "exact schema": lambda answer: Grammar.of_schema(_schema(answer, exact=True)),
    "schema of properties only": lambda answer: Grammar.of_schema(_schema(answer, exact=False)),
    "any JSON object": lambda _: Grammar.json_object(),
    "no grammar": lambda _: None,
}
WAYS: Sequence[tuple[str, Arm]] = [(name, arm) for name in GRAMMARS for arm in (PLAIN, SCHEDULED)]


def object_in(text: str) -> JsonValue:
    """Return the first JSON object of a text; None if there is none."""
    try:
        return json.JSONDecoder().raw_decode(text, text.index("{"))[0]  # type: ignore[no-any-return]
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class WayResult:
    """How many answers are an object and ended by themselves, how many have the right keys and values, how many the
    right values whatever their keys; forced tokens of all prompts, and the median speed after the first token."""

    grammar: str
    arm: str
    valid: int
    right: int
    same_values: int
    forced: int
    tokens_per_pass: float
    tokens_per_second: float


def measure_structured(
    pair: Pair, settings: Settings, extractions: Sequence[Extraction], *, advance: Callable[[], None]
) -> list[WayResult]:
    """Answer every prompt in every way, interleaved."""
    runs: dict[tuple[str, Arm], list[list[Run]]] = {way: [[] for _ in extractions] for way in WAYS}
    for _ in range(settings.repetitions):
        for index, each in enumerate(extractions):
            for way in WAYS:
                under = Requests(pair, replace(settings, grammar=GRAMMARS[way[0]](each.answer)))
                runs[way][index].append(under.answer(Prompt("facts", (), (each.prompt,)), way[1]))
                advance()
    return [_result(pair, name, arm, runs[name, arm], extractions) for name, arm in WAYS]


def _result(pair: Pair, name: str, arm: Arm, runs: list[list[Run]], extractions: Sequence[Extraction]) -> WayResult:
    first = [repeated[0] for repeated in runs]
    found = [object_in(pair.tokenizer.decode(run.tokens)) for run in first]
    ended = [run.tokens[-1] in pair.manifest.end_ids for run in first]
    stats = [each for run in first for each in run.stats]
    return WayResult(
        name,
        str(arm),
        valid=sum(isinstance(value, dict) and end for value, end in zip(found, ended, strict=True)),
        right=sum(each.is_right(value) for each, value in zip(extractions, found, strict=True)),
        same_values=sum(each.has_values(value) for each, value in zip(extractions, found, strict=True)),
        forced=sum(each.drafters[FORCED].accepted for each in stats if FORCED in each.drafters),
        tokens_per_pass=sum(each.tokens for each in stats) / max(1, sum(each.rounds for each in stats)),
        tokens_per_second=sum(len(run.tokens) - 1 for run in first)
        / sum(median(run.seconds for run in repeated) for repeated in runs),
    )


def _plain(value: JsonValue) -> object:
    """Return a value with its texts in small letters."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return value.casefold() if isinstance(value, str) else value


def _values(value: JsonValue) -> Iterator[JsonValue]:
    """Yield the values inside an object or a list, its texts in small letters."""
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _values(each)
    else:
        yield value.casefold() if isinstance(value, str) else value
