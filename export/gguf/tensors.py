"""The tensors of a model's file: their names in llama.cpp, where their rows come from, and which rows change places."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from edgedecode.decoding.arrays import FloatArray
from edgedecode.errors import ExportError

from ..graph.architectures import Shape
from .layouts import Layout
from .rotary import Rotation
from .rows import ArrayRows, FloatRows, Rows, StoredRows

if TYPE_CHECKING:
    import gguf
    import torch
    from transformers import PreTrainedModel

__all__ = ["Tensor", "tensor_name", "tensors_of"]

_SUFFIXES = (".weight", ".bias")


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the file. `head`: rows of a head whose halves are woven into pairs; 0: rows stay where they are."""

    name: str
    shape: tuple[int, ...]
    rows: Rows
    head: int = 0

    @property
    def kind(self) -> str:
        return self.rows.kind


def tensors_of(
    network: PreTrainedModel,
    *,
    shape: Shape,
    layout: Layout,
    rotation: Rotation,
    stored: StoredRows | None,
    query_factor: float = 1.0,
) -> list[Tensor]:
    """Name every tensor of the file.

    Matrices are as the pack has `stored` them; None: unrounded. query_factor: as in `limits.query_factor`.
    """
    found = list(_factors(layout, rotation))
    for name, parameter in network.named_parameters():
        title = tensor_name(name, layout, layers=shape.layers)
        head = shape.head_size if layout.interleaved and ("q_proj" in name or "k_proj" in name) else 0
        rows: Rows
        if parameter.dim() == 1:
            shift = 1.0 if layout.shifted and name.endswith("norm.weight") else 0.0
            factor = query_factor if name.endswith("q_norm.weight") else 1.0
            rows = ArrayRows(_vector(parameter, shift=shift, factor=factor))
        else:
            rows = stored.find(parameter) if stored is not None else FloatRows(parameter, 32)
        found.append(Tensor(title, tuple(parameter.shape), rows, head))
    return found


def tensor_name(name: str, layout: Layout, *, layers: int) -> str:
    """Return llama.cpp's name of a transformers parameter. Raises ExportError for one that it does not have."""
    found = _name_map(layout.name, layers).get_name(name, try_suffixes=_SUFFIXES)
    if found is None:
        raise ExportError(
            f"llama.cpp's {layout.name} has no tensor for {name}: export without gguf among the --formats"
        )
    return str(found)


@lru_cache
def _name_map(architecture: str, layers: int) -> gguf.TensorNameMap:
    """Make the table of names of one architecture: thousands of them, asked for every tensor."""
    import gguf

    architectures = {title: value for value, title in gguf.MODEL_ARCH_NAMES.items()}
    return gguf.get_tensor_name_map(architectures[architecture], layers)


def _vector(parameter: torch.Tensor, *, shift: float, factor: float) -> FloatArray:
    values = np.asarray(parameter.detach().float().numpy(), np.float32)
    return np.asarray((values + np.float32(shift)) * np.float32(factor), np.float32)


def _factors(layout: Layout, rotation: Rotation) -> Iterator[Tensor]:
    names: Sequence[str] = layout.factors if len(rotation.factors) else ()
    for name in names:
        yield Tensor(name, rotation.factors.shape, ArrayRows(rotation.factors))
