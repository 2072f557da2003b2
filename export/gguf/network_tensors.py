"""The tensors of a network: their rows, and what llama.cpp stores differently from transformers.

Norms with an offset; and of hybrids (its conversion folder) decays as numbers below zero, convolutions as matrices,
Granite's gate and up projections apart, and Qwen3.5's value heads in another order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from edgedecode.arrays import FloatArray, IntArray
from edgedecode.errors import ExportError
from edgedecode.gguf.architectures import Architecture

from ..graph.model_shape import Shape
from ..graph.network import kept_buffers
from ..graph.quantize import Scheme
from ..graph.recipe import EMBEDDING, HEAD, Recipe
from ..graph.weight_bytes import Matrix, finite
from ..graph.weights_file import Weights
from .rotation import Rotation
from .row_source import ArrayRows, BlockRows, FloatRows, RowArray, Rows, StoredRows
from .tensors import Tensor, factors_of, tensor_name

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

_JOINED, _HALVES = "shared_mlp.input_linear", ("mlp.gate_proj", "mlp.up_proj")
_RENAMED = {"dt_bias": "dt_proj.bias", "shared_mlp.output_linear": "mlp.down_proj"}
"""Parts of names that the gguf package's table lacks, or has for mixtures of experts."""
_HEADS = ("embed_tokens.weight", "lm_head.weight")
_PLAIN_NORM = "linear_attn.norm.weight"
"""The norm that has no offset in architectures whose other norms have one."""
_WIDER = "export with --bits 16 --head-bits 16"
_COLUMN = re.compile(r"mamba\.(A_log|D)$")


@dataclass(frozen=True, slots=True)
class OrderedRows:
    """A matrix whose rows are in another order, or its columns: `heads` is that of their equal parts."""

    source: Rows
    rows: IntArray | None = None
    heads: IntArray | None = None

    @property
    def kind(self) -> str:
        return self.source.kind

    def read(self, first: int, end: int) -> RowArray:
        wanted = np.arange(first, end) if self.rows is None else self.rows[first:end]
        runs = np.split(wanted, np.flatnonzero(np.diff(wanted) != 1) + 1)
        found = np.concatenate([self.source.read(int(run[0]), int(run[-1]) + 1) for run in runs])
        if self.heads is None:
            return found
        return found.reshape(len(found), len(self.heads), -1)[:, self.heads].reshape(found.shape)


def rounded_weights(network: PreTrainedModel, recipe: Recipe) -> Weights:
    """Return the matrices that are rounded to blocks, named as calibration names them."""
    weights = Weights()
    for name, parameter in network.named_parameters():
        scheme = _scheme(name, recipe)
        if parameter.dim() == 2 and scheme.quantized:
            title = name.removesuffix(".weight")
            title = {"model.embed_tokens": EMBEDDING, "lm_head": HEAD}.get(title, title)
            weights.blocks(title, Matrix((parameter,)), scheme=scheme)
    return weights


def tensors_of(
    network: PreTrainedModel,
    *,
    shape: Shape,
    layout: Architecture,
    rotation: Rotation,
    stored: StoredRows,
    recipe: Recipe | None = None,
    query_factor: float = 1.0,
) -> Iterator[Tensor]:
    """Yield all tensors of the file, all but matrices in 32 bits.

    stored: the matrices as written. recipe: with one, only `rounded_weights` are. query_factor: see
    `network_metadata.query_factor`.
    """
    yield from factors_of(layout, rotation)
    buffers = [(f"{name}.weight", value) for name, value in kept_buffers(network)]
    for name, parameter in (*network.named_parameters(), *buffers):
        order, head = _order(name, parameter, network.config), 0
        if layout.reordered and re.search(r"\.[qk]_proj\.", name):
            head = shape.head_size
        if parameter.dim() != 2:
            values = _values(name, parameter, layout)[slice(None) if order is None else order]
            values = values * np.float32(query_factor) if name.endswith("q_norm.weight") else values
            yield Tensor(_title(name, layout, shape), values.shape, ArrayRows(values), head)
            continue
        scheme = None if recipe is None else _scheme(name, recipe)
        rows: Rows
        rows = stored.find(parameter) if scheme is None or scheme.quantized else FloatRows(parameter, scheme.bits)
        if order is not None and name.endswith("linear_attn.out_proj.weight"):
            rows = _by_heads(rows, order, size=network.config.linear_value_head_dim)
        elif order is not None:
            rows = OrderedRows(rows, order)
        parts = {name: rows}
        if _JOINED in name:
            halves = zip(_HALVES, np.split(np.arange(len(parameter)), 2), strict=True)
            parts = {name.replace(_JOINED, half): OrderedRows(rows, some) for half, some in halves}
        for part, some_rows in parts.items():
            size = len(parameter) // len(parts), parameter.shape[1]
            yield Tensor(_title(part, layout, shape), size, some_rows, head)


def _by_heads(rows: Rows, order: IntArray, *, size: int) -> Rows:
    """Reorder columns by whole heads of `size`, which blocks must not straddle."""
    if isinstance(rows, BlockRows) and size % rows.scheme.block_size:
        raise ExportError(f"llama.cpp orders value heads otherwise, and blocks end within these of {size}: {_WIDER}")
    return OrderedRows(rows, heads=order[::size] // size)


def _scheme(name: str, recipe: Recipe) -> Scheme:
    return recipe.scheme_of(HEAD if name.endswith(_HEADS) else name.removesuffix(".weight"))


def _title(name: str, layout: Architecture, shape: Shape) -> str:
    for theirs, known in _RENAMED.items():
        name = name.replace(theirs, known)
    return tensor_name(name, layout, layers=shape.layers)


def _values(name: str, parameter: torch.Tensor, layout: Architecture) -> FloatArray:
    """Return a vector, or a convolution, in llama.cpp's shape."""
    values = finite(np.asarray(parameter.detach().float().numpy(), np.float32), name)
    if name.endswith("A_log"):
        values = -np.exp(values)
    if layout.shifted and name.endswith("norm.weight") and not name.endswith(_PLAIN_NORM):
        values = values + np.float32(1)
    if name.endswith("mamba.norm.weight"):
        return values[None]
    if _COLUMN.search(name):
        return values[:, None]
    return values[:, 0] if values.ndim == 3 else values


def _order(name: str, parameter: torch.Tensor, config: Any) -> IntArray | None:  # noqa: ANN401  (untyped attributes)
    """Return the order of rows, or of the output projection's columns, with llama.cpp's value heads; None: unchanged.

    transformers has the value heads of a key head side by side, llama.cpp the first ones of all key heads first.
    """
    if "linear_attn" not in name or name.endswith(_PLAIN_NORM):
        return None
    keys = config.linear_num_key_heads
    start = 2 * keys * config.linear_key_head_dim if re.search("in_proj_qkv|conv1d", name) else 0
    count = parameter.shape[1 if "out_proj" in name else 0]
    each = config.linear_num_value_heads // keys
    values = np.arange(start, count).reshape(keys, each, -1).swapaxes(0, 1).ravel()
    return np.concatenate([np.arange(start), values])
