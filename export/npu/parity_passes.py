"""Passes over a text with a static graph and with the base graph, chains and trees in turn."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from edgedecode.arrays import FloatArray
from edgedecode.decoding.model import LanguageModel, RowRequest
from edgedecode.pack.static_graphs import HEAD_ROWS

_BRANCH = 3
"""In a tree, every third row continues the text's path; the others are its siblings."""


@dataclass(frozen=True, slots=True)
class _TextPass:
    """Rows of a pass; parents None: a chain. kept: those that continue the text, whose cache rows stay."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...] | None
    kept: tuple[int, ...]


def compared_passes(
    base: LanguageModel, static: LanguageModel, tokens: Sequence[int], *, width: int, count: int
) -> Iterator[tuple[FloatArray, FloatArray]]:
    """Run up to `count` passes with both models, every second one a tree if the width allows.

    Yields each pass's logits, base's first: of every row, or of the last one where wide static graphs have no others.
    """
    states = [(model, model.new_state(static.card.context, rows=width, tree=True)) for model in (base, static)]
    rows: RowRequest = "all" if width <= HEAD_ROWS else "last"
    for one in _text_passes(tokens, width=width, count=count):
        found = []
        for model, state in states:
            found.append(model.forward(one.tokens, state, parents=one.parents, rows=rows).logits.copy())
            state.keep(one.kept)
        yield found[0], found[1]


def _text_passes(tokens: Sequence[int], *, width: int, count: int) -> Iterator[_TextPass]:
    place = 0
    for number in range(count):
        rows = min(width, len(tokens) - place)
        if rows < 1:
            return
        if number % 2 and rows > _BRANCH:
            found = _tree(tokens, place, rows)
        else:
            found = _TextPass(tuple(tokens[place : place + rows]), None, tuple(range(rows)))
        place += len(found.kept)
        yield found


def _tree(tokens: Sequence[int], place: int, rows: int) -> _TextPass:
    """Return a tree with a path through rows 0, 3, 6, …; the rows between are siblings of the next path row."""
    parents = [-1, *(_BRANCH * ((row - 1) // _BRANCH) for row in range(1, rows))]
    kept = tuple(range(0, rows, _BRANCH))
    own = [
        tokens[place + row // _BRANCH] if row in kept else tokens[(place + 7 * row) % len(tokens)]
        for row in range(rows)
    ]
    return _TextPass(tuple(own), tuple(parents), kept)
