"""Finds the pass widths at which a row has bit-identical logits on this device.

Engines choose kernels by the number of rows, and kernels round differently: on one processor all widths from two on
agree, on another only the even ones, because an odd pass computes its last row separately.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol, runtime_checkable

import numpy as np

from edgedecode.arrays import FloatArray
from edgedecode.decoding.model import AdapterUse, LanguageModel
from edgedecode.decoding.padding import next_width

NARROW = (*range(1, 19), 20, 24)
"""Widths of draft passes, whose rows may all need logits."""
WIDE = (32, 64)
"""Further widths for prefill."""
LONGEST_PASS = 17
"""Rows of a pass with the longest usual draft, 16 tokens."""
TOKENS = 48
BEFORE = 128
"""Tokens in the state before the compared ones, so that attention sums over a long context."""
SLOW_SECONDS = 1.0


@runtime_checkable
class BoundedState(Protocol):
    """A state whose engine splits wide passes."""

    @property
    def width(self) -> int:
        """The most rows of one pass, at any length of the state; wider passes are split."""
        ...


@dataclass(frozen=True, slots=True)
class IdenticalWidths:
    """Widths at which a row has the same bits, ascending. `drafts` is empty if no two widths agree."""

    drafts: tuple[int, ...]
    """A subset of `NARROW`."""
    prompts: tuple[int, ...] = ()
    """A subset of `WIDE`: widths that agree with `drafts` if logits of few of their rows are requested."""

    @property
    def all(self) -> tuple[int, ...]:
        return self.drafts + self.prompts


def measure_widths(
    model: LanguageModel, *, adapter: AdapterUse | None = None, slow: Callable[[], None] = lambda: None
) -> IdenticalWidths:
    """Run the same 48 tokens in passes of each width, and compare every row's logits bit by bit.

    Computes about 1,100 rows. `slow` is called once if this takes longer than a second. The model must support
    rollback. Raises BudgetExceeded if a state of some 200 positions and 24 rows of logits do not fit.
    """
    started, notified = perf_counter(), False
    runs = _Runs(model, adapter=adapter)
    try:
        classes: dict[tuple[bytes, ...], list[int]] = {}
        for width in runs.narrow:
            classes.setdefault(runs.digests(width), []).append(width)
            if not notified and perf_counter() - started > SLOW_SECONDS:
                notified = True
                slow()
        drafts = best_class(classes.values())
        if not drafts:
            return IdenticalWidths(())
        expected = next(rows for rows, widths in classes.items() if widths[0] == drafts[0])
        wide = (width for width in runs.wide if runs.wide_digests(width, rows=max(drafts)) == expected)
        return IdenticalWidths(drafts, tuple(wide))
    finally:
        runs.close()


def best_class(classes: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """Return the class of equal widths to pad to; empty if every class has one member.

    Prefers the class that fits the longest drafts, up to 16 tokens; among those, the one with the least padding, which
    favours many and small widths.
    """
    usable = [tuple(sorted(each)) for each in classes if len(each) > 1]
    return max(usable, key=lambda widths: (min(max(widths), LONGEST_PASS), -_padding(widths)), default=())


def _padding(widths: Sequence[int]) -> int:
    """Return the total padding rows over passes of 1, 2, … up to the longest."""
    most = max(widths)
    padded = ((next_width(widths, count, room=most), count) for count in range(1, min(most, LONGEST_PASS) + 1))
    return sum(width - count for width, count in padded if width is not None)


class _Runs:
    """Runs fixed tokens repeatedly on one state, and digests each row's logits."""

    def __init__(self, model: LanguageModel, *, adapter: AdapterUse | None) -> None:
        card = model.card
        count = min(TOKENS, card.context // 2)
        widest = min(max(NARROW), card.context - count)
        length = max(0, min(BEFORE, card.context - count - widest))
        capacity = min(card.context, length + max(count + widest, *WIDE))
        ids = np.random.default_rng(0).integers(0, min(card.rows, card.vocabulary_size), length + count).tolist()
        self._model, self._adapter = model, adapter
        self._before, self._tokens = ids[:length], ids[length:]
        self._state = model.new_state(capacity, rows=widest)
        most = self._state.width if isinstance(self._state, BoundedState) else capacity
        self.narrow = [width for width in NARROW if width <= min(widest, most)]
        self.wide = [width for width in WIDE if width <= min(capacity - length, most) and count == TOKENS]
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def digests(self, width: int) -> tuple[bytes, ...]:
        """Run the tokens in passes of this width with logits for all rows; the last pass is padded."""
        found = self._passes(self._tokens, width)
        self._start()
        return tuple(found)

    def wide_digests(self, width: int, *, rows: int) -> tuple[bytes, ...]:
        """Run a wide pass several times with logits for `rows` of its rows each, and the rest in narrow passes."""
        count = min(width, 2 * TOKENS // 3)
        found: dict[int, bytes] = {}
        for start in (*range(0, count - rows, rows), count - rows):
            requested = range(start, start + rows)
            found |= zip(requested, self._pass(self._tokens[:count], width, rows=requested), strict=True)
            if start < count - rows:
                self._start()
        self._state.keep(range(count))
        rest = self._passes(self._tokens[count:], rows)
        self._start()
        return (*(found[row] for row in sorted(found)), *rest)

    def close(self) -> None:
        self._state.close()

    def _passes(self, tokens: Sequence[int], width: int) -> list[bytes]:
        found: list[bytes] = []
        for start in range(0, len(tokens), width):
            part = tokens[start : start + width]
            found += self._pass(part, width, rows=range(width))[: len(part)]
            self._state.keep(range(len(part)))
        return found

    def _pass(self, tokens: Sequence[int], width: int, *, rows: range) -> list[bytes]:
        padded = [*tokens, *[tokens[-1]] * (width - len(tokens))]
        logits = self._model.forward(padded, self._state, rows=rows, adapter=self._adapter).logits
        return [_digest(row) for row in logits]

    def _start(self) -> None:
        """Roll back to before the tokens; a sliding window may require prefilling again from the first token."""
        length = len(self._before)
        self._state.crop(length if self._state.oldest_crop <= length <= self._state.length else 0)
        if self._state.length < length:
            self._model.forward(self._before, self._state, rows="none", adapter=self._adapter)
            self._state.keep(range(length))


def _digest(row: FloatArray) -> bytes:
    return hashlib.blake2b(row.tobytes(), digest_size=16).digest()
