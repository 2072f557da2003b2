"""A GGUF LoRA adapter of an imported model: whether it belongs to it, and what it changes. Runs nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from edgedecode.adapter_entry import AdapterEntry
from edgedecode.errors import ExportError
from edgedecode.gguf.header import EMBEDDING, Tensor

from .metadata import Metadata
from .source import GgufSource, open_contents

__all__ = ["ImportedAdapter", "open_adapter"]

_SIDES = (".lora_a", ".lora_b")
_PROJECTIONS = {
    "attn_q": "q_proj",
    "attn_k": "k_proj",
    "attn_v": "v_proj",
    "attn_qkv": "qkv_proj",
    "attn_output": "o_proj",
    "ffn_gate": "gate_proj",
    "ffn_up": "up_proj",
    "ffn_down": "down_proj",
}
"""PEFT's names of llama.cpp's projections; others keep their own."""
_STACKED = {"phi3": {"ffn_up": "gate_up_proj"}}
_LAYER = re.compile(r"blk\.\d+\.(.+)\.weight")


@dataclass(frozen=True, slots=True)
class ImportedAdapter:
    """A file, and its entry; the entry's `file` is set when the file has its place."""

    path: Path
    entry: AdapterEntry


def open_adapter(path: Path, *, base: GgufSource, role: str) -> ImportedAdapter:
    """Check the adapter in `path` against the model it is for. Raises ExportError: one line that says what to do."""
    contents = open_contents(path)
    metadata = Metadata(contents)
    if metadata.text("general.type") != "adapter" or metadata.text("adapter.type") != "lora":
        raise ExportError(f"{path} is no LoRA adapter (by general.type and adapter.type): give one made for llama.cpp")
    architecture = metadata.text("general.architecture")
    if architecture != base.header.architecture:
        raise ExportError(
            f"{path} was made for a model of the architecture {architecture or 'none'!r}, {base.name} is "
            f"{base.header.architecture!r}: give an adapter of this model"
        )
    tensors = {tensor.name: tensor for tensor in contents.tensors}
    ranks = dict(_ranks(tensors, {tensor.name: tensor for tensor in base.contents.tensors}, path=path, base=base.name))
    entry = AdapterEntry(
        file="",
        role=role,
        rank=max(ranks.values()),
        alpha=metadata.number("adapter.lora.alpha") or 0.0,
        modules=tuple(dict.fromkeys(_module(name, architecture) for name in ranks)),
        invocation=tuple(int(token) for token in metadata.numbers("adapter.alora.invocation_tokens")),
    )
    return ImportedAdapter(path.resolve(), entry)


def _ranks(
    tensors: Mapping[str, Tensor], base_tensors: Mapping[str, Tensor], *, path: Path, base: str
) -> Iterator[tuple[str, int]]:
    """Give the rank of each product, by the name of the tensor it changes; shapes are innermost first."""
    stems = dict.fromkeys(name.removesuffix(side) for name in tensors for side in _SIDES if name.endswith(side))
    if foreign := [name for name in tensors if not name.endswith(_SIDES)]:
        raise ExportError(f"{path} holds {foreign[0]}, which is no matrix of a LoRA: give an adapter of LoRA alone")
    for stem in stems:
        first, second = (tensors.get(stem + side) for side in _SIDES)
        if first is None or second is None:
            raise ExportError(f"{path} holds half of a product for {stem}: make or download it again")
        if (changed := base_tensors.get(stem)) is None:
            raise ExportError(f"{path} changes {stem}, which {base} has not: give an adapter of this model")
        down, up = _matrix(first), _matrix(second)
        if stem == EMBEDDING:  # llama.cpp wants these two the other way round
            down, up = up[::-1], down[::-1]
        if down[1] != up[0] or (down[0], up[1]) != _matrix(changed):
            raise ExportError(
                f"{path} changes {stem} by {_sizes(first)} and {_sizes(second)}, in {base} it is {_sizes(changed)}: "
                f"give an adapter of this model"
            )
        yield stem, up[0]


def _matrix(tensor: Tensor) -> tuple[int, int]:
    """Return a tensor's inner and outer size; a matrix of one column may be listed as a vector."""
    shape = (*tensor.shape, 1)
    return shape[0], shape[1]


def _sizes(tensor: Tensor) -> str:
    return "×".join(map(str, _matrix(tensor)))


def _module(name: str, architecture: str) -> str:
    found = _LAYER.fullmatch(name)
    stem = found[1] if found else name.removesuffix(".weight")
    return {**_PROJECTIONS, **_STACKED.get(architecture, {})}.get(stem, stem)
