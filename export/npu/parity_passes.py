"""Passes over a text with a static graph and with the base graph, chains and trees in turn."""

from collections.abc import Iterator, Sequence

from edgedecode.arrays import FloatArray
from edgedecode.decoding.model import LanguageModel, RowRequest
from edgedecode.pack.static_graphs import HEAD_ROWS

_BRANCH = 3
"""In a tree, every third row continues the text's path; the others are its siblings."""


def compared_passes(
    base: LanguageModel, static: LanguageModel, tokens: Sequence[int], *, width: int, count: int
) -> Iterator[tuple[FloatArray, FloatArray]]:
    """Run up to `count` passes with both models, every second one a tree if the width allows.

    Yields each pass's logits, base's first: of every row, or of the last one where wide static graphs have no others.
    """
    states = [(model, model.new_state(static.card.context, rows=width, tree=True)) for model in (base, static)]
    rows: RowRequest = "all" if width <= HEAD_ROWS else "last"
    place = 0
    for number in range(count):
        size = min(width, len(tokens) - place)
        if size < 1:
            return
        own, parents, kept = [*tokens[place : place + size]], list[int](), range(size)
        if number % 2 and size > _BRANCH:
            own, parents, kept = _tree(tokens, place, size)
        found = []
        for model, state in states:
            found.append(model.forward(own, state, parents=parents or None, rows=rows).logits.copy())
            state.keep(kept)
        place += len(kept)
        yield found[0], found[1]


def _tree(tokens: Sequence[int], place: int, rows: int) -> tuple[list[int], list[int], range]:
    """Return a tree's tokens and parents, and its path through the text: rows 0, 3, 6, …

    The rows between are siblings of the next path row.
    """
    kept = range(0, rows, _BRANCH)
    parents = [-1, *(_BRANCH * ((row - 1) // _BRANCH) for row in range(1, rows))]
    own = [
        tokens[place + row // _BRANCH] if row in kept else tokens[(place + 7 * row) % len(tokens)]
        for row in range(rows)
    ]
    return own, parents, kept
