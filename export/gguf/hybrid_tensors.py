"""The tensors of hybrids, whose weights go from a checkpoint into a GGUF file without a graph in between.

What llama.cpp stores differently from transformers (its conversion folder): decays as numbers below zero, convolutions
as matrices, Granite's gate and up projections apart, and Qwen3.5's value heads in another order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from edgedecode.arrays import FloatArray, IntArray
from edgedecode.gguf.architectures import Architecture

from ..graph.model_shape import Shape
from ..graph.network import kept_buffers
from ..graph.quantize import Scheme, quantize
from ..graph.recipe import HEAD, Recipe
from ..graph.weight_bytes import finite
from .rotation import Rotation
from .row_source import ArrayRows, FloatRows, RowArray, kind_of, transcode
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
_COLUMN = re.compile(r"mamba\.(A_log|D)$")


@dataclass(frozen=True, slots=True)
class RoundedRows:
    """A checkpoint's matrix, rounded as it is read. rows, columns: the order in the file."""

    view: torch.Tensor
    name: str
    scheme: Scheme
    rows: IntArray
    columns: IntArray | None = None

    @property
    def kind(self) -> str:
        return kind_of(self.scheme)

    def read(self, first: int, end: int) -> RowArray:
        part = self.view.detach()[self.rows[first:end]]
        if self.columns is not None:
            part = part[:, self.columns]
        if not self.scheme.quantized:
            return FloatRows(part, self.scheme.bits).read(0, end - first)
        return transcode(quantize(finite(part.float().numpy(), self.name), self.scheme), self.scheme)


def hybrid_tensors(
    network: PreTrainedModel, *, shape: Shape, layout: Architecture, rotation: Rotation, recipe: Recipe
) -> Iterator[Tensor]:
    """Yield all tensors of the file, matrices as the recipe says, everything else in 32 bits."""
    yield from factors_of(layout, rotation)
    buffers = [(f"{name}.weight", value) for name, value in kept_buffers(network)]
    for name, parameter in (*network.named_parameters(), *buffers):
        order = _order(name, parameter, network.config)
        if parameter.dim() != 2:
            values = _values(name, parameter, layout)[slice(None) if order is None else order]
            yield Tensor(_title(name, layout, shape), values.shape, ArrayRows(values))
            continue
        scheme = recipe.scheme_of(HEAD if name.endswith(_HEADS) else name.removesuffix(".weight"))
        whole: IntArray = np.arange(len(parameter))
        by_columns = name.endswith("linear_attn.out_proj.weight")
        rows = whole if by_columns or order is None else order
        parts = {name: rows}
        if _JOINED in name:
            parts = dict(zip((name.replace(_JOINED, each) for each in _HALVES), np.split(rows, 2), strict=True))
        head = shape.head_size if layout.reordered and re.search(r"\.[qk]_proj\.weight$", name) else 0
        for part, some in parts.items():
            stored = RoundedRows(parameter, name, scheme, some, order if by_columns else None)
            yield Tensor(_title(part, layout, shape), (len(some), parameter.shape[1]), stored, head)


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
