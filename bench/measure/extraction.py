"""Prompts that ask for facts of a text as JSON, with the right values, which a grammar must not make wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from edgedecode.structured.grammar import Grammar
from edgedecode.text.prompts import Prompt
from edgedecode.typed_json import JsonValue

from ..settings import SCHEDULED, Settings
from .timed import TimedPair
from .timed_answers import Requests

_Object = dict[str, JsonValue]

_FACTS = """\
Uma is 61 and works as a pilot. -> {"age": 61, "job": "pilot"}
Clara Reed is 71 years old, lives in Paris and works as a singer. -> {"name": "Clara Reed", "age": 71, "job": "singer"}
My name is Hugo Vance. I am a baker from Oslo and I am 38. -> {"name": "Hugo Vance", "city": "Oslo"}
The driver Yara Klein, aged 60, moved to Budapest last year. -> {"age": 60, "city": "Budapest", "job": "driver"}
Liam Nash is 23 years old, lives in Lisbon and works as a nurse. -> {"name": "Liam Nash", "job": "nurse"}
My name is Tess Hale. I am a lawyer from Dublin and I am 47. -> {"name": "Tess Hale", "age": 47}
The painter Noah Price, aged 29, moved to Vienna last year. -> {"name": "Noah Price", "age": 29, "city": "Vienna"}
Mia Lopez is 52 years old, lives in Athens and works as a teacher. -> {"city": "Athens", "job": "teacher"}
My name is Oscar Quick. I am a doctor from Rome and I am 66. -> {"age": 66, "city": "Rome"}
The gardener Vera Owens, aged 33, moved to London last year. -> {"name": "Vera Owens", "job": "gardener"}
David Tate is 44 years old, lives in Helsinki and works as a driver. -> {"age": 44}
My name is Iris Evans. I am a singer from Brussels and I am 58. -> {"name": "Iris Evans", "age": 58, "job": "singer"}
Please send 8 pieces of ladder to Ralf on Sunday. The price is 26 euros. -> {"item": "ladder", "quantity": 8}
Jack ordered 5 of the hat for 12 euros each, to be delivered on Thursday. -> {"item": "hat", "price": 12}
Order: map, 14 pieces at 68 euros, for Xena, arriving Wednesday. -> {"item": "map", "quantity": 14, "customer": "Xena"}
Please send 17 pieces of ball to Kira on Monday. The price is 9 euros. -> {"quantity": 17, "delivery": "Monday"}
Sam ordered 3 of the candle for 41 euros each, to be delivered on Friday. -> {"item": "candle", "price": 41}
Order: bell, 11 pieces at 77 euros, for Jonas, arriving Saturday. -> {"price": 77, "customer": "Jonas"}
Please send 6 pieces of drum to Maya on Tuesday. The price is 35 euros. -> {"customer": "Maya", "delivery": "Tuesday"}
Henry ordered 9 of the coin for 53 euros each, to be delivered on Sunday. -> {"item": "coin", "customer": "Henry"}
"""
_CALLS = """\
Will it rain in Lisbon on Friday? -> {"tool": "weather", "arguments": {"city": "Lisbon", "day": "Friday"}}
What will the weather be in Vienna on Monday? -> {"tool": "weather", "arguments": {"city": "Vienna", "day": "Monday"}}
Set the light in the kitchen to red. -> {"tool": "light", "arguments": {"room": "kitchen", "color": "red"}}
Find a train from Oslo to Rome on 12 May. -> {"tool": "train", "arguments": {"from": "Oslo", "to": "Rome", "date": "12 May"}}
"""  # noqa: E501
"""In the words of the bundled pair's training text, which has none of them."""


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


def _extractions() -> tuple[Extraction, ...]:
    facts = [(text, json.loads(answer)) for text, answer in (line.split(" -> ") for line in _FACTS.splitlines())]
    calls = [(text, json.loads(answer)) for text, answer in (line.split(" -> ") for line in _CALLS.splitlines())]
    asked = [(f"Extract {', '.join(answer)} as JSON.\n{text}", answer) for text, answer in facts]
    return tuple(Extraction(prompt, answer) for prompt, answer in asked + calls)


EXTRACTIONS = _extractions()


def _schema(value: JsonValue, *, exact: bool) -> _Object:
    """Return the schema of a value's keys and types. exact: with all of the keys and no others, in so many words."""
    if not isinstance(value, dict):
        return {"type": "string" if isinstance(value, str) else "integer"}
    schema: _Object = {
        "type": "object",
        "properties": {name: _schema(each, exact=exact) for name, each in value.items()},
    }
    return {**schema, "required": [*value], "additionalProperties": False} if exact else schema


GRAMMARS: dict[str, Callable[[_Object], Grammar | None]] = {
    "exact schema": lambda answer: Grammar.of_schema(_schema(answer, exact=True)),
    "schema of properties only": lambda answer: Grammar.of_schema(_schema(answer, exact=False)),
    "any JSON object": lambda _: Grammar.json_object(),
    "no grammar": lambda _: None,
}


def object_in(text: str) -> JsonValue:
    """Return the first JSON object of a text; None if there is none."""
    try:
        return json.JSONDecoder().raw_decode(text, text.index("{"))[0]  # type: ignore[no-any-return]
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class WayRight:
    """How many answers are an object and ended by themselves, how many have the right keys and values, how many the
    right values whatever their keys, and their speed."""

    way: str
    valid: int
    right: int
    same_values: int
    tokens_per_second: float


def measure_right(timed: TimedPair, settings: Settings, *, advance: Callable[[], None]) -> list[WayRight]:
    """Answer all prompts in every way, scheduled."""
    return [_way(timed, settings, name, advance=advance) for name in GRAMMARS]


def _way(timed: TimedPair, settings: Settings, name: str, *, advance: Callable[[], None]) -> WayRight:
    manifest, tokenizer = timed.pair.manifest, timed.pair.tokenizer
    valid = right = same = tokens = 0
    seconds = 0.0
    for each in EXTRACTIONS:
        under = Requests(timed, replace(settings, grammar=GRAMMARS[name](each.answer)))
        run = under.answer(Prompt("extraction", (), (each.prompt,)), SCHEDULED)
        found = object_in(tokenizer.decode(run.tokens))
        valid += isinstance(found, dict) and run.tokens[-1] in manifest.end_ids
        right += each.is_right(found)
        same += each.has_values(found)
        tokens, seconds = tokens + len(run.tokens) - 1, seconds + run.seconds
        advance()
    return WayRight(name, valid, right, same, tokens / seconds)


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
