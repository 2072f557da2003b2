"""Values that break parsers, and edits of a JSON file by path: short to print, applied when an input is built."""

import copy
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

GONE = "<gone>"
INTEGERS = st.one_of(
    st.sampled_from([0, 1, -1, 2, 255, 10**9, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, 10**30]),
    st.integers(-(2**65), 2**65),
    st.integers(0, 4096),
)
TEXTS = st.one_of(
    st.sampled_from(
        [
            *("", ".", "..", "/etc/passwd", "../../etc/passwd", "a/../b", "\x1b]0;owned\x07", "\x1b[2J"),
            *("x\r\nedgedecode: fine", "\u202eright to left", "[bold red]markup[/] [/nothing]", "{{ 7 }}", "\x00"),
            *("nan", "\ud800"),
        ]
    ),
    st.just("long").map(lambda text: text * 1000),
    st.text(max_size=12),
)
SCALARS = st.one_of(st.none(), st.booleans(), INTEGERS, st.floats(), TEXTS)
VALUES = st.one_of(
    SCALARS,
    st.sampled_from([[], {}, [[]], {"": {}}, [None], ["x"] * 1000, {"a": {"b": {"c": []}}}]),
    st.lists(SCALARS, max_size=3),
    st.dictionaries(st.text(max_size=4), SCALARS, max_size=3),
)
TEXT_EDITS = st.sampled_from(
    ["", "\x00", "{", "}", '"', "[", "9", " ", "NaN", "-1e999", ",", '{"a":1,"a":2}', "\\ud800", "\ufeff"]
)

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Repeated:
    """A repeated text that is short to print."""

    piece: str
    times: int

    @property
    def text(self) -> str:
        return self.piece * self.times


@dataclass(frozen=True)
class Edit:
    """Replace or remove the value at a path."""

    path: Path
    value: Any


@dataclass(frozen=True)
class Splice:
    """Replace a part of the file's text, in thousandths of its length, by repetitions of another text."""

    start: int
    length: int
    text: str
    times: int


def paths(value: Any, at: Path = ()) -> Iterator[Path]:
    """Yield the path of every value; in long lists only of the first two."""
    if at:
        yield at
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from paths(inner, (*at, name))
    elif isinstance(value, list):
        for index, inner in enumerate(value[:2]):
            yield from paths(inner, (*at, index))


def edits(base: Any, *, most: int = 3) -> st.SearchStrategy[tuple[Edit | Splice, ...]]:
    """Generate a few edits of a parsed file, mostly of the value's own type, or one of its text."""
    places = list(paths(base))
    numbers = [place for place in places if isinstance(_get(base, place), (int, float))]
    texts = [place for place in places if isinstance(_get(base, place), str)]
    kinds = [st.builds(Edit, st.sampled_from(places), st.one_of(VALUES, st.just(GONE)))]
    kinds += [st.sampled_from(numbers).flatmap(lambda place: _near(base, place))] if numbers else []
    kinds += [st.builds(Edit, st.sampled_from(numbers), INTEGERS)] if numbers else []
    kinds += [st.builds(Edit, st.sampled_from(texts), TEXTS)] if texts else []
    by_text = st.builds(Splice, st.integers(0, 999), st.integers(0, 20), TEXT_EDITS, st.sampled_from([1, 50_000]))
    few = st.lists(st.one_of(kinds), min_size=1, max_size=most).map(tuple)
    return st.one_of(few, few, few, by_text.map(lambda splice: (splice,)))


def _near(base: Any, place: Path) -> st.SearchStrategy[Edit]:
    """Generate a number that passes range checks more easily."""
    value = _get(base, place)
    near = [value + 1, value - 1, value * 2, value * 1000, value // 2 if isinstance(value, int) else value / 2]
    return st.builds(Edit, st.just(place), st.sampled_from(near))


def _get(base: Any, place: Path) -> Any:
    for step in place:
        base = base[step]
    return base


def edited(base: Any, changes: Sequence[Edit | Splice]) -> bytes:
    """Return the file with the edits; edits whose path an earlier one removed are ignored."""
    value = copy.deepcopy(base)
    for change in changes:
        if isinstance(change, Edit):
            _apply(value, change)
    text = json.dumps(value)
    for change in changes:
        if isinstance(change, Splice):
            start, length = (len(text) * part // 1000 for part in (change.start, change.length))
            text = text[:start] + change.text * change.times + text[start + length :]
    return text.encode("utf-8", "surrogatepass")


def _apply(value: Any, change: Edit) -> None:
    try:
        inner = _get(value, change.path[:-1])
        if change.value == GONE:
            del inner[change.path[-1]]
        else:
            inner[change.path[-1]] = change.value
    except (KeyError, IndexError, TypeError):
        pass
