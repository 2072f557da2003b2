"""Chooses the activation bits of each matrix product, and measures the full model with each choice.

The graph stores the choice as MatMulNBits' accuracy level, which other engines read too; see
graph/passes/stored_weights.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edgedecode.arrays import IntArray
from edgedecode.decoding.model import LanguageModel
from edgedecode.pack.entries import ActivationsEntry, ActivationsWay, ProductError
from edgedecode.pack.manifest import ModelEntry

from ..checks.model_checks import opened
from ..checks.reference import Reference
from ..graph.passes.stored_weights import product_names, set_activations
from ..job import ModelJob
from .activation_errors import LIMIT, Measured, measure_products, some_of, wide_products
from .calibration import Tokens

if TYPE_CHECKING:
    import onnx_ir as ir

TOKENS = 1024
"""Length of the text that products and the loss are measured on, in tokens."""
_TOLERANCE = 0.02
"""Allowed loss of top-1 agreement with float activations, compared to 16 bits everywhere. A larger value keeps more
products at 8 bits."""
_PASS = 32
"""Rows per forward pass with all logits: at 150,000 ids a pass returns 20 MB."""
_TRIAL_FILE = "activations.onnx"


def choose_activations(
    job: ModelJob,
    entry: ModelEntry,
    model: ir.Model,
    reference: Reference,
    *,
    pack: Path,
    own_text: Tokens,
    progress: Callable[[int], None] = lambda amount: None,
) -> ActivationsEntry:
    """Measure and choose activation bits for the graph `model`, whose weights are in `pack`. Leaves it unchanged.

    own_text: text that the model wrote, for want of one to calibrate on.
    A product gets 16 bits if its error with 8 bits exceeds `LIMIT`. If the model's top-1 agreement is then still much
    lower than with 16 bits everywhere, the limit is lowered.
    """
    trials = _Trials(job, entry, model, pack)
    everything = product_names(model)
    texts, origin = own_text, "of built-in prompts and the model's answers"
    if job.calibration:
        texts, origin = some_of(job.calibration, TOKENS), "of the calibration text"
    measured = measure_products(reference, texts, progress=progress)
    at8, at16 = (trials.agreement(wide, texts, measured) for wide in ((), everything))
    ways = {"8": ActivationsWay(at8), "16": ActivationsWay(at16)}
    chosen = everything
    if job.activations == "auto":
        chosen, found = _least(trials, texts, measured, everything=everything, at8=at8, at16=at16)
        if 0 < len(chosen) < len(everything):
            ways["chosen"] = ActivationsWay(found)
    return ActivationsEntry(
        asked=job.activations,
        wide=chosen,
        products={name: measured.errors.get(name, ProductError(0.0, 0.0)) for name in everything},
        ways=ways,
        text=f"{sum(map(len, texts))} tokens {origin}",
        kernels=trials.kernels,
    )


def opened_wide(
    job: ModelJob, entry: ModelEntry, model: ir.Model, *, pack: Path
) -> AbstractContextManager[LanguageModel]:
    """Open the model with 16-bit activations, as `opened`."""
    return _Trials(job, entry, model, pack).open(product_names(model))


def _least(
    trials: _Trials, texts: Tokens, measured: Measured, *, everything: Sequence[str], at8: float, at16: float
) -> tuple[tuple[str, ...], float]:
    """Return the smallest set of products that need 16 bits, and its top-1 agreement with float activations."""
    limit = LIMIT
    while True:
        chosen = tuple(name for name in everything if name in wide_products(measured.errors, limit))
        if len(chosen) == len(everything):
            return chosen, at16
        found = trials.agreement(chosen, texts, measured) if chosen else at8
        if found >= at16 - _TOLERANCE:
            return chosen, found
        limit = min(
            limit / 2, max((measured.errors[name].at8 for name in set(measured.errors) - {*chosen}), default=0.0)
        )
        if limit <= 0.0:  # the rest has no error, so it cannot explain the low agreement
            return tuple(everything), at16


@dataclass(slots=True)
class _Trials:
    """Opens a model's graph with trial choices of activation bits."""

    job: ModelJob
    entry: ModelEntry
    model: ir.Model
    pack: Path
    kernels: str = ""

    @contextmanager
    def open(self, wide: Collection[str]) -> Iterator[LanguageModel]:
        import onnx_ir as ir

        trial = self.model.clone()
        set_activations(trial, wide)
        path = self.pack / self.job.role / _TRIAL_FILE
        ir.save(trial, path)
        graph = replace(self.entry.graphs["base"], file=f"{self.job.role}/{_TRIAL_FILE}")
        try:
            with opened(replace(self.entry, graphs={"base": graph}), self.pack, self.job.texts) as model:
                self.kernels = model.card.kernels
                yield model
        finally:
            path.unlink(missing_ok=True)

    def agreement(self, wide: Collection[str], texts: Tokens, measured: Measured) -> float:
        """Return the top-1 agreement with float activations: the share of positions."""
        with self.open(wide) as model:
            found = np.concatenate([_leading(model, text) for text in texts])
        return float((found == measured.leading).mean())


def _leading(model: LanguageModel, text: Sequence[int]) -> IntArray:
    """Return the arg-max id after each token of a text."""
    state, found = model.new_state(len(text), rows=_PASS), []
    try:
        for start in range(0, len(text), _PASS):
            part = text[start : start + _PASS]
            found.append(model.forward(part, state, rows="all").logits.argmax(axis=1))
            state.keep(range(len(part)))
    finally:
        state.close()
    return np.concatenate(found)
