"""Passes over a text with a static graph, chains and trees in turn, and the same passes with the base graph."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedecode.arrays import FloatArray, IntArray
from edgedecode.pack.static_graphs import HIDDEN_SCORE, MASK, WINDOW_MASK

_BIASES = ("attention_bias", "window_bias")
_BRANCH = 3
"""In a tree, every third row continues the text's path; the others are its siblings."""


@dataclass(frozen=True, slots=True)
class TextPass:
    """Rows of a pass. kept: those that continue the text, whose cache rows stay."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    kept: tuple[int, ...]


def text_passes(tokens: Sequence[int], *, width: int, count: int) -> Iterator[TextPass]:
    """Yield up to `count` passes; every second one is a tree if the width allows."""
    place = 0
    for number in range(count):
        rows = min(width, len(tokens) - place)
        if rows < 1:
            return
        if number % 2 and rows > _BRANCH:
            found = _tree(tokens, place, rows)
        else:
            found = TextPass(tuple(tokens[place : place + rows]), tuple(range(-1, rows - 1)), tuple(range(rows)))
        place += len(found.kept)
        yield found


def _tree(tokens: Sequence[int], place: int, rows: int) -> TextPass:
    """Return a tree with a path through rows 0, 3, 6, …; the rows between are siblings of the next path row."""
    parents = [-1, *(_BRANCH * ((row - 1) // _BRANCH) for row in range(1, rows))]
    kept = tuple(range(0, rows, _BRANCH))
    own = [
        tokens[place + row // _BRANCH] if row in kept else tokens[(place + 7 * row) % len(tokens)]
        for row in range(rows)
    ]
    return TextPass(tuple(own), tuple(parents), kept)


class _Passes:
    """A session and its settled cache, [2 · layers, KV heads, positions, head size]."""

    def __init__(self, session: Any, *, window: int = 0) -> None:  # noqa: ANN401  (the engine is untyped)
        self.session = session
        self.window = window
        self.shapes: Mapping[str, Sequence[int]] = {value.name: value.shape for value in session.get_inputs()}
        self.caches = [name for name in self.shapes if name.startswith("past_key_values.")]
        shape = self.shapes[self.caches[0]]
        self.past: FloatArray = np.zeros((len(self.caches), shape[1], 0, shape[3]), np.float32)

    def keep(self, new: FloatArray, kept: Sequence[int]) -> None:
        self.past = np.concatenate([self.past, new[:, :, list(kept)]], axis=2)

    def masks(
        self, names: Sequence[str], visible: npt.NDArray[np.bool_], distance: IntArray, *, hidden: float
    ) -> dict[str, FloatArray]:
        """Return the mask inputs that the graph has: the full one, and the one of sliding-window layers.

        visible, distance: by row and column, the latter in positions.
        """
        seen = {names[0]: visible, names[1]: visible & (distance < self.window)}
        return {
            name: np.where(rows, 0, hidden).astype(np.float32)[None, None]
            for name, rows in seen.items()
            if name in self.shapes
        }

    def split(self, cache: FloatArray) -> dict[str, FloatArray]:
        return {name: cache[index : index + 1] for index, name in enumerate(self.caches)}


class BasePasses(_Passes):
    """A base graph, of any width."""

    def run(self, one: TextPass) -> FloatArray:
        """Run a pass, keep its rows and return the logits of every row."""
        length, rows = self.past.shape[2], len(one.tokens)
        visible = np.concatenate([np.ones((rows, length), bool), _ancestors(one.parents)], axis=1)
        positions = _positions(one.parents, length)
        columns = np.concatenate([np.arange(length), positions[0]])
        feeds: dict[str, Any] = {
            "input_ids": np.asarray([one.tokens], np.int64),
            "position_ids": positions,
            "seqlens_k": np.asarray([length + rows - 1], np.int32),
            "total_length": np.asarray([length + rows], np.int32),
            "rows": np.arange(rows),
        }
        feeds |= self.masks(_BIASES, visible, positions[0][:, None] - columns, hidden=-1e30)
        logits, *present = self.session.run(None, feeds | self.split(self.past))
        self.keep(np.concatenate(present)[:, :, length:], one.kept)
        return np.asarray(logits)


class StaticPasses(_Passes):
    """A static graph; passes are padded to its width. adapter: its matrices by input name; zeros by default."""

    adapter: Mapping[str, FloatArray] = {}

    def run(self, one: TextPass) -> FloatArray:
        """Run a pass, keep its rows, and return the logits of every row, or of the last one only."""
        width, picked = self.shapes["input_ids"][1], self.shapes["rows"][0]
        columns = self.shapes[self.caches[0]][2] + width
        slots, count, length = columns - width, len(one.tokens), self.past.shape[2]
        visible = np.zeros((width, columns), bool)
        visible[:, slots:] = np.eye(width, dtype=bool)
        visible[:count, :length] = True
        visible[:count, slots : slots + count] = _ancestors(one.parents)
        ids, positions = np.zeros((2, 1, width), np.int64)
        ids[0, :count], positions[0, :count] = one.tokens, _positions(one.parents, length)
        buffer = np.zeros((*self.past.shape[:2], slots, self.past.shape[3]), np.float32)
        buffer[:, :, :length] = self.past
        rows = np.arange(picked) if picked == width else np.full(picked, count - 1)
        feeds: dict[str, Any] = {"input_ids": ids, "position_ids": positions, "rows": rows}
        places = np.concatenate([np.arange(slots), positions[0]])
        feeds |= self.masks((MASK, WINDOW_MASK), visible, positions[0][:, None] - places, hidden=HIDDEN_SCORE)
        others = {name: np.zeros(shape, np.float32) for name, shape in self.shapes.items() if name.startswith("lora.")}
        logits, *present = self.session.run(None, feeds | others | dict(self.adapter) | self.split(buffer))
        self.keep(np.concatenate(present), one.kept)
        return np.asarray(logits[:count])


def _ancestors(parents: Sequence[int]) -> npt.NDArray[np.bool_]:
    """Return which rows each row sees, [rows, rows]: its ancestors and itself."""
    seen = np.eye(len(parents), dtype=bool)
    for row, parent in enumerate(parents):
        if parent >= 0:
            seen[row] |= seen[parent]
    return seen


def _positions(parents: Sequence[int], length: int) -> IntArray:
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    return np.asarray([depths], np.int64) + length
