"""Checks a model's further graphs: the hidden state, adapters' deltas, and what an 8-bit cache loses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from edgedecode.decoding.arrays import FloatArray
from edgedecode.decoding.model import AdapterModel, AdapterUse, LowRank
from edgedecode.errors import ExportError
from edgedecode.pack.manifest import Graph, ModelEntry

from .model_checks import CheckTexts, opened
from .parity import LOOSE, TOLERANCE, agreement, relative_error
from .reference import Reference

__all__ = ["check_hidden", "check_int8_cache", "check_lora"]

_LENGTH = 16
"""Tokens a graph whose products round nothing is checked on: it is slow, and the base was checked on the whole text."""
_TRIAL = "trial"
_SHARE = 0.3
"""Size of the trial adapter's deltas against weights of a usual deviation: far more than a wrong sign could hide."""


def check_hidden(
    entry: ModelEntry, pack: Path, *, exact: Graph, reference: Reference, texts: CheckTexts
) -> Mapping[str, float]:
    """Compare the hidden output with transformers' last hidden state. Raises ExportError where it differs."""
    text = texts.text.text[:_LENGTH]
    expected = reference.hidden(text, visible=np.tri(len(text), dtype=np.bool_), positions=range(len(text)))
    with opened(replace(entry, graphs={"hidden": exact}), pack, texts, needs=("hidden",)) as model:
        state = model.new_state(len(text))
        found = model.forward(text, state, rows="all").hidden
        assert found is not None
        return {"hidden_max_error": _largest("hidden", found, expected)}


def check_lora(
    entry: ModelEntry, pack: Path, *, exact: Graph, reference: Reference, texts: CheckTexts
) -> Mapping[str, float]:
    """Check that without an adapter the graph is the base bit for bit, and with one what transformers computes."""
    text = texts.text.text[:_LENGTH]
    if not np.array_equal(_logits(entry, pack, texts, needs=("lora",)), _logits(entry, pack, texts)):
        raise ExportError("the lora graph without an adapter does not compute what the base graph does, bit for bit")
    matrices = list(_trial(reference, exact))
    expected = reference.with_deltas(matrices).logits(
        text, visible=np.tri(len(text), dtype=np.bool_), positions=range(len(text))
    )
    with opened(replace(entry, graphs={"lora": exact}), pack, texts, needs=("lora",)) as model:
        assert isinstance(model, AdapterModel)
        model.add_adapter(_TRIAL, matrices)
        state = model.new_state(len(text))
        found = model.forward(text, state, rows="all", adapter=AdapterUse(name=_TRIAL, digest=_TRIAL)).logits
        return {"lora_max_error": _largest("lora", found, expected)}


def check_int8_cache(entry: ModelEntry, pack: Path, *, texts: CheckTexts) -> Mapping[str, float]:
    """Measure what the 8-bit cache loses against the base graph, on a text that was not calibrated on.

    The numbers: root mean square error relative to the logits' deviation, share of rows whose arg-max is the same.
    Raises ExportError where the cache loses more than rounding could.
    """
    expected, found = _logits(entry, pack, texts), _logits(entry, pack, texts, needs=("kv:int8",))
    error = relative_error(found, expected)
    if not error <= LOOSE:
        raise ExportError(
            f"an 8-bit KV cache changes this model's logits by {error:.2g} of their deviation, allowed {LOOSE}: "
            f"leave kv8 out of --graphs"
        )
    return {"kv8_rms_error": error, "kv8_top1": agreement(found, expected)}


def _logits(entry: ModelEntry, pack: Path, texts: CheckTexts, *, needs: Sequence[str] = ()) -> FloatArray:
    """Read the whole text in two passes with the shipped graph that offers `needs`."""
    text = texts.text.text
    with opened(entry, pack, texts, needs=needs) as model:
        state = model.new_state(len(text))
        half = len(text) // 2
        first = model.forward(text[:half], state, rows="all").logits.copy()
        return np.concatenate((first, model.forward(text[half:], state, rows="all").logits))


def _trial(reference: Reference, graph: Graph) -> Iterator[LowRank]:
    """Draw an adapter for everything the graph may change, alternating between its full rank and half of it."""
    draw = np.random.default_rng(0)
    for place, projection in enumerate(reference.projections(graph.lora_modules)):
        rank = max(1, graph.lora_rank // (1 + place % 2))
        down = draw.standard_normal((rank, projection.inputs), np.float32)
        down *= np.float32(_SHARE / (rank * projection.inputs) ** 0.5)
        up = draw.standard_normal((projection.outputs, rank), np.float32)
        yield LowRank(projection.layer, projection.module, down, up)


def _largest(name: str, found: FloatArray, expected: FloatArray) -> float:
    error = float(np.abs(found - expected).max())
    limit = TOLERANCE * max(1.0, float(expected.std()))
    if not error <= limit:
        raise ExportError(
            f"the {name} graph does not compute what transformers does (error {error:.2g}, allowed {limit:.2g})"
        )
    return error
