"""Measures each matrix product's error from rounding its activations, and finds the products that need 16 bits.

A few inputs of a product may be a hundred times larger than the rest (massive activations). Values in the same
sub-block share their scale and lose most of their precision at 8 bits. The error is measured on the inputs of real
text, against the product with the same rounded weights and float32 inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from edgedecode.arrays import FloatArray, IntArray
from edgedecode.pack.entries import ProductError

from ..checks.reference import Reference
from ..graph.recipe import HEAD, projection_name
from .calibration import Tokens, hidden_states

if TYPE_CHECKING:
    import torch

_Squares: TypeAlias = npt.NDArray[np.float64]
"""A sum of squares for each position."""

LIMIT = 0.04
"""Largest allowed relative error of a product's outputs with 8-bit activations. Typical errors are below 0.02; rounding
the weights to 4 bits costs about 0.1. Raising it keeps more products at 8 bits."""

_STEPS = {8: 127.0, 16: 127.0 * 256.0}
"""Steps from zero to a sub-block's largest magnitude, as in runtimes/onnx/kernels/rows.h."""
_SUB_BLOCK = 32
_SAMPLED = 256
"""Approximate number of positions measured per pass; each costs one more product per width."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Errors by `projection_name`, and the arg-max ids of the model with float activations."""

    errors: Mapping[str, ProductError]
    leading: IntArray


def measure_products(
    reference: Reference, texts: Tokens, *, progress: Callable[[int], None] = lambda amount: None
) -> Measured:
    """Measure every quantized product on `texts`, with the weights rounded as in the pack.

    The error is the root mean square over positions of the outputs' error, relative to their deviation from their mean
    over the text: a component that is the same at every position carries no information, however large it is.
    """
    import torch

    sums = _Sums()
    leading: list[IntArray] = []
    with ExitStack() as hooks:
        for name, module in reference.network.model.named_modules(prefix="model"):
            if isinstance(module, torch.nn.Linear) and reference.rounds(name):
                hooks.callback(module.register_forward_hook(sums.of_module(name)).remove)
        for hidden in hidden_states(reference, texts):
            leading.append(_head(reference, hidden, sums if reference.rounds(HEAD) else None))
            progress(len(hidden))
    return Measured(sums.errors(), np.concatenate(leading))


def wide_products(errors: Mapping[str, ProductError], limit: float = LIMIT) -> tuple[str, ...]:
    """Return the products whose activations need 16 bits; a NaN error counts as too large."""
    return tuple(name for name, error in errors.items() if not error.at8 <= limit)


def some_of(texts: Tokens, tokens: int) -> list[tuple[int, ...]]:
    """Return the first texts up to `tokens` in total; the last one may be cut."""
    found: list[tuple[int, ...]] = []
    for text in texts:
        room = tokens - sum(map(len, found))
        if room <= 0:
            break
        found.append(tuple(text[:room]))
    return found


@dataclass(slots=True)
class _Sums:
    """Sums of squared relative errors by module and width, and the number of positions."""

    squares: dict[str, dict[int, float]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def of_module(self, name: str) -> Callable[[torch.nn.Module, tuple[torch.Tensor, ...], torch.Tensor], None]:
        def after(module: torch.nn.Module, arguments: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
            import torch

            inputs = arguments[0].reshape(-1, arguments[0].shape[-1]).numpy()
            outputs = output.reshape(-1, output.shape[-1]).numpy()
            picked = _picked(len(inputs))
            weight = module.weight
            assert isinstance(weight, torch.Tensor)
            deviations = _squares(outputs[picked] - outputs.mean(axis=0))
            for bits in _STEPS:
                wrong = torch.from_numpy(rounded(inputs[picked], bits) - inputs[picked])
                self.add(name, bits, _squares(torch.nn.functional.linear(wrong, weight).numpy()), deviations)

        return after

    def add(self, name: str, bits: int, wrong: _Squares, deviations: _Squares) -> None:
        """Add positions: the squared errors of the outputs, and their squared deviations from the mean."""
        shares = wrong / np.maximum(deviations, np.finfo(np.float32).tiny)
        of_bits = self.squares.setdefault(name, dict.fromkeys(_STEPS, 0.0))
        of_bits[bits] += float(shares.sum())
        if bits == 8:
            self.counts[name] = self.counts.get(name, 0) + len(shares)

    def errors(self) -> dict[str, ProductError]:
        """Return the errors by `projection_name`: the maximum over products with the same input."""
        found: dict[str, ProductError] = {}
        for name, of_bits in self.squares.items():
            at8, at16 = (float(np.sqrt(of_bits[bits] / self.counts[name])) for bits in (8, 16))
            shared = projection_name(name)
            before = found.get(shared, ProductError(0.0, 0.0))
            found[shared] = ProductError(max(before.at8, at8), max(before.at16, at16))
        return found


def rounded(inputs: FloatArray, bits: int) -> FloatArray:
    """Round float32 [rows, columns] as our kernels do: one scale per row and sub-block of 32 columns."""
    rows, columns = inputs.shape
    padded = np.zeros((rows, -(-columns // _SUB_BLOCK) * _SUB_BLOCK), np.float32)
    padded[:, :columns] = inputs
    blocks = padded.reshape(rows, -1, _SUB_BLOCK)
    scales = np.abs(blocks).max(axis=2, keepdims=True) / np.float32(_STEPS[bits])
    steps = np.rint(blocks / np.where(scales == 0, np.float32(1), scales))
    return np.asarray((steps * scales).reshape(rows, -1)[:, :columns], np.float32)


def _head(reference: Reference, hidden: FloatArray, sums: _Sums | None) -> IntArray:
    """Return the arg-max ids; if the head is quantized, add its errors, measured on raw logits."""
    picked = _picked(len(hidden))
    ways = [rounded(hidden[picked], bits) for bits in _STEPS] if sums is not None else []
    count, size = len(hidden), len(hidden[picked])
    best = np.full(count, -np.inf, np.float32)
    leading = np.zeros(count, np.int64)
    deviations = np.zeros(size)
    wrong = np.zeros((len(ways), size))
    for start, part in reference.head(np.concatenate([hidden, *ways])):
        own = part[:count]
        first = own.argmax(axis=1)
        largest = own[np.arange(count), first]
        better = largest > best
        leading[better], best[better] = start + first[better], largest[better]
        deviations += _squares(own[picked] - own.mean(axis=0))
        for way in range(len(ways)):
            wrong[way] += _squares(part[count + way * size :][:size] - own[picked])
    if sums is not None:
        for bits, squares in zip(_STEPS, wrong, strict=True):
            sums.add(HEAD, bits, squares, deviations)
    return leading


def _picked(count: int) -> slice:
    return slice(None, None, max(1, count // _SAMPLED))


def _squares(rows: FloatArray) -> _Squares:
    return np.asarray((rows.astype(np.float64) ** 2).sum(axis=1))
