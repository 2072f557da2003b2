"""A model's further graphs over its one weights file: built from the finished base graph, written, and checked.

None of them has weights of its own: a graph is some kilobytes, and a runtime maps the file of the one it opens. The
scales of an 8-bit KV cache come from what a float cache holds after texts of the model's own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, cast

import numpy as np

from edgedecode.arrays import FloatArray
from edgedecode.decoding.model import LanguageModel
from edgedecode.errors import ExportError
from edgedecode.pack.manifest import STACKS, Graph, ModelEntry

from ..checks.model_checks import CheckTexts, check_hidden, check_int8_cache, check_lora, opened
from ..checks.reference import Reference
from .drawing import EXACT_FILE, Drawing, write_exact
from .graph_request import LORA_MODULES, GraphRequest
from .passes.variant_passes import CacheScales, hidden_output, int8_cache, low_rank_deltas

__all__ = ["VariantJob"]

LENGTH = 64
"""Tokens the model writes behind each prompt: its own text is what the cache mostly holds."""
MARGIN = 1.5
"""Room above the largest magnitude seen: a value beyond it is cut. Error of the bundled target's logits on 717 held-out
tokens, by margin: 1.0 2.2%, 1.1 1.7%, 1.25 1.4%, 1.5 1.2%, 2.0 1.4%."""
_LEVELS = 127
_LEAST = 1e-4
"""Least scale of a channel, as a share of its layer's largest: a channel that was silent may speak."""


@dataclass(frozen=True, slots=True)
class VariantJob:
    """What the further graphs of one role are built from and checked against."""

    role: str
    pack: Path
    request: GraphRequest
    drawing: Drawing
    reference: Reference
    texts: CheckTexts

    def add(self, name: str, entry: ModelEntry) -> ModelEntry:
        """Draw the graph `name` of `entry`, whose weights are written, and check it. Raises ExportError."""
        drawn = {"hidden": self._hidden, "lora": self._lora, "kv8": self._kv8}[name](entry)
        entry = replace(entry, graphs={**entry.graphs, name: drawn.write(self.pack / self.role)})
        return replace(entry, parity={**entry.parity, **self._check(name, entry, drawn)})

    def _hidden(self, entry: ModelEntry) -> _Variant:
        variant = self._clone("hidden", capabilities=("hidden",))
        hidden_output(variant.drawing.model)
        return variant

    def _lora(self, entry: ModelEntry) -> _Variant:
        there = {projection.module for projection in self.reference.projections(LORA_MODULES)}
        for stack in there & STACKS.keys():
            there -= set(STACKS[stack])  # the builder hangs the parts beside the stack; nothing runs them
        modules = self.request.lora_modules or tuple(name for name in LORA_MODULES if name in there)
        if missing := [name for name in modules if name not in there]:
            known = ", ".join(name for name in LORA_MODULES if name in there)
            raise ExportError(f"this model has no projection {missing[0]}: --lora-modules may name {known}")
        variant = self._clone("lora", capabilities=("lora",))
        low_rank_deltas(variant.drawing.model, modules)
        return replace(variant, graph=replace(variant.graph, lora_rank=self.request.lora_rank, lora_modules=modules))

    def _kv8(self, entry: ModelEntry) -> _Variant:
        with opened(entry, self.pack, self.texts) as model:
            scales = calibrate_cache(model, self.texts.prompts, ends=self.texts.ends)
        variant = self._clone("kv8")
        int8_cache(variant.drawing.model, scales)
        return replace(variant, graph=replace(variant.graph, kv_type="int8"))

    def _clone(self, name: str, *, capabilities: tuple[str, ...] = ()) -> _Variant:
        base = self.drawing.graph_in(self.role)
        graph = replace(base, file=f"{self.role}/{name}.onnx", capabilities=(*base.capabilities, *capabilities))
        return _Variant(Drawing(self.drawing.model.clone(), self.drawing.weights), graph)

    def _check(self, name: str, entry: ModelEntry, drawn: _Variant) -> Mapping[str, float]:
        if name == "kv8":
            return check_int8_cache(entry, self.pack, texts=self.texts)
        exact = self.pack / self.role / EXACT_FILE
        write_exact(drawn.drawing.model, exact)
        try:
            graph = replace(entry.graphs[name], file=f"{self.role}/{EXACT_FILE}")
            check = check_hidden if name == "hidden" else check_lora
            return check(entry, self.pack, exact=graph, reference=self.reference, texts=self.texts)
        finally:
            exact.unlink()


@dataclass(frozen=True, slots=True)
class _Variant:
    """A built graph and its entry in the manifest."""

    drawing: Drawing
    graph: Graph

    def write(self, folder: Path) -> Graph:
        """Write the graph beside the weights and return its entry."""
        import onnx_ir as ir

        model = self.drawing.model
        ir.save(model, folder / Path(self.graph.file).name)
        inputs = tuple(str(value.name) for value in model.graph.inputs)
        return replace(self.graph, inputs=inputs, outputs=tuple(str(value.name) for value in model.graph.outputs))


class _FloatCache(Protocol):
    """What a state of the ONNX runtime shows beside the protocol: [2 · layers, 1, KV heads, slots, head size]."""

    @property
    def cache(self) -> FloatArray: ...


def calibrate_cache(
    model: LanguageModel, prompts: Sequence[Sequence[int]], *, ends: Collection[int]
) -> tuple[CacheScales, ...]:
    """Return each layer's scales. The rotation lies before the cache, so rotated keys are what is measured."""
    largest: FloatArray | None = None
    for prompt in prompts:
        seen = _largest(model, prompt, ends=ends)
        largest = seen if largest is None else np.maximum(largest, seen)
    assert largest is not None
    floor = largest.max(axis=(1, 2), keepdims=True) * _LEAST + np.finfo(np.float32).tiny * _LEVELS
    scales = np.asarray(np.maximum(largest, floor) * np.float32(MARGIN / _LEVELS), np.float32)
    return tuple(CacheScales(key, value) for key, value in zip(scales[0::2], scales[1::2], strict=True))


def _largest(model: LanguageModel, prompt: Sequence[int], *, ends: Collection[int]) -> FloatArray:
    """Return the largest magnitudes in the cache after the prompt and an answer, [2 · layers, KV heads, head size]."""
    state = model.new_state(min(model.card.context, len(prompt) + LENGTH))
    try:
        tokens = list(prompt)
        while True:
            logits = model.forward(tokens, state).logits[0, : model.card.vocabulary_size]
            state.keep(range(len(tokens)))
            tokens = [int(logits.argmax())]
            if state.length == state.capacity or tokens[0] in ends:
                cache = cast(_FloatCache, state).cache
                return np.asarray(np.abs(cache[:, 0, :, : state.length]).max(axis=2), np.float32)
    finally:
        state.close()
