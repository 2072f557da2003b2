"""Proves that an imported model still computes what its graph computed as it came, in every way a state can grow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from edgedecode.decoding.arrays import FloatArray
from edgedecode.errors import ExportError
from edgedecode.pack.manifest import ModelEntry

from ..proof.checks import CheckTexts, opened
from ..proof.parity import TOLERANCE, check_exact, check_kernels, own_rows
from .untouched import Untouched

__all__ = ["check_import"]


def check_import(
    entry: ModelEntry, pack: Path, *, exact: str, untouched: Untouched, texts: CheckTexts
) -> Mapping[str, float]:
    """Compare a model with itself and with the graph as it came; there are no original weights to compare with.

    exact: the file of its graph whose products do not round activations. On that graph whole, pieces, crop and a tree
    of two passes must agree with each other and with the untouched graph up to summation order; the shipped kernels
    are then held to its rows. Raises ExportError.
    """
    length = len(texts.text.text)
    graph = replace(entry.graphs["base"], file=exact)
    with opened(replace(entry, graphs={"base": graph}), pack, texts) as model:
        expected = own_rows(model, texts.text)
        numbers = {"tokens": float(len(expected)), "deviation": float(expected.std())}
        numbers |= check_exact(model, texts.text, expected)
    numbers["source_error"] = _difference(expected[:length], untouched, texts)
    if min(entry.bits, entry.head_bits) < 16:
        with opened(entry, pack, texts) as model:
            numbers |= check_kernels(model, texts.text, expected)
            found = own_rows(model, texts.text)[:length]
        came = untouched.logits(texts.text.text, exact=False)
        numbers["source_kernel_error"] = float(np.abs(found - came).max())
    return numbers


def _difference(found: FloatArray, untouched: Untouched, texts: CheckTexts) -> float:
    """Return the largest difference from the graph as it came. Raises ExportError where it is not a rounding."""
    came = untouched.logits(texts.text.text, exact=True)
    error = float(np.abs(found - came).max())
    limit = TOLERANCE * max(1.0, float(came.std()))
    if not error <= limit:
        raise ExportError(
            f"the rewritten graph does not compute what it did as it came (largest difference {error:.2g}, allowed "
            f"{limit:.2g}): this model cannot be imported"
        )
    return error
