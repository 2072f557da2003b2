"""Reads a LoRA adapter from a GGUF file, as llama.cpp's `convert_lora_to_gguf` writes it, and what it can change."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import numpy as np

from edgedecode.arrays import FloatArray
from edgedecode.errors import CapabilityError, ManifestError
from edgedecode.gguf.adapter import check_adapter, check_values, checked_alpha, matrix_sizes, read_values, targets
from edgedecode.gguf.architectures import BY_NAME
from edgedecode.gguf.contents import Contents, Tensor, read_contents
from edgedecode.gguf.fields import UINT32
from edgedecode.gguf.gguf_names import gguf_name, module_of
from edgedecode.gguf.header import Header
from edgedecode.pack.entries import AdapterEntry
from edgedecode.pack.manifest import STACKS, ModelEntry

from .adapter_parts import Projection, check_invocation
from .peft_folder import PeftAdapter

LORA_RANK = 256
"""Largest rank on our kernels: the partial sums of a pass are planned for it, some 2 MB."""
_INVOCATION = "adapter.alora.invocation_tokens"


def read_gguf_adapter(
    contents: Contents, path: Path, header: Header, *, name: str, role: str, vocabulary_size: int
) -> AdapterEntry:
    """Check an adapter against the header of the model `name`; return its entry, with an empty `file`.

    contents: those of the file at `path`, including arrays. Raises as `check_adapter` and `check_invocation` do.
    """
    adapter = check_adapter(contents, path, header, name=name)
    invocation = _invocation(contents, path)
    check_invocation(invocation, vocabulary_size=vocabulary_size)
    check_values(contents, path)
    return AdapterEntry(
        file="",
        role=role,
        rank=adapter.rank,
        alpha=adapter.alpha,
        modules=tuple(dict.fromkeys(_module(each, header.architecture) for each in adapter.ranks)),
        invocation=invocation,
    )


def read_gguf_matrices(path: Path, model: ModelEntry, *, name: str) -> PeftAdapter:
    """Return the adapter at `path` of a pack's model, called `name`, with its matrices as PEFT orders them.

    Raises as `checked_alpha`, ManifestError for a half of a product, CapabilityError for tensors that are no
    projections of a layer.
    """
    contents = read_contents(path, arrays=True)
    architecture = gguf_name(model.architecture) or model.architecture
    alpha = checked_alpha(contents, path, architecture, name=name)
    scales, rank = dict[tuple[int, str], tuple[str, str, float]](), 0
    for target in targets(contents, path):
        found, sides = module_of(target, architecture), (f"{target}.lora_a", f"{target}.lora_b")
        if found is None:
            raise CapabilityError(f"{path} changes {target[:60]}, which only llama.cpp does: use --runtime llama")
        if any(side not in contents.tensors or not prod(contents.tensors[side].shape) for side in sides):
            raise ManifestError(f"{path} holds one half of a product for {target[:60]}: convert or download it again")
        own = matrix_sizes(contents.tensors[sides[1]])[0]
        scales[found.layer, found.module] = *sides, alpha / own
        rank = max(rank, own)
    return PeftAdapter(
        rank=rank,
        alpha=alpha,
        modules=tuple(dict.fromkeys(module for _, module in scales)),
        invocation=_invocation(contents, path),
        _file=_GgufMatrices(path, contents, architecture, model.head_size, model.kv_heads * model.head_size),
        _scales=scales,
    )


@dataclass(frozen=True, slots=True)
class _GgufMatrices:
    """An adapter's tensors in PEFT's order of rows."""

    path: Path
    contents: Contents
    architecture: str
    head_size: int
    kv_width: int

    def shape(self, name: str) -> tuple[int, ...]:
        return matrix_sizes(self.contents.tensors[name])[::-1]

    def array(self, name: str) -> FloatArray:
        values = read_values(self.contents, self.contents.tensors[name], self.path)
        target, _, side = name.rpartition(".")
        found = module_of(target, self.architecture)
        if side == "lora_a" or found is None:
            return values
        sizes = {"head_size": self.head_size, "kv_width": self.kv_width}
        return file_order(values, found.module, self.architecture, **sizes, back=True)


def lora_projections(header: Header) -> Iterator[Projection]:
    """Yield the projections of a GGUF file that a PEFT adapter can change; none if their order is not known."""
    if header.architecture not in BY_NAME:
        return
    for name, tensor in header.tensors.items():
        found = module_of(name, header.architecture)
        if found is not None and len(tensor.shape) == 2:
            yield Projection(found.layer, found.module, inputs=tensor.shape[0], outputs=tensor.shape[1])


def joins_attention(tensors: Mapping[str, Tensor], part: str) -> bool:
    """Return whether our graph multiplies by the query, key and value of a layer `part`, "blk.L.", as one matrix.

    They have one inner size and type then, and no norm comes between their products and the attention.
    """
    found = [tensors.get(f"{part}attn_{each}.weight") for each in "qkv"]
    forms = {(len(each.shape), each.shape[0], each.type) if each else None for each in found}
    return f"{part}attn_q_norm.weight" not in tensors and len(forms) == 1 and None not in forms


def graph_products(header: Header) -> Iterator[Projection]:
    """Yield the products of our graph of a GGUF file that take a delta: `lora_projections`, joined or in halves."""
    for each in lora_projections(header):
        if each.module == "gate_up_proj":
            for half in STACKS[each.module]:
                yield replace(each, module=half, outputs=each.outputs // 2)
        elif each.module not in STACKS["qkv_proj"] or not joins_attention(header.tensors, f"blk.{each.layer}."):
            yield each
        elif each.module == "q_proj":
            widths = [header.tensors[f"blk.{each.layer}.attn_{part}.weight"].shape[1] for part in "qkv"]
            yield replace(each, module="qkv_proj", outputs=sum(widths))


def lora_modules(projections: Sequence[Projection]) -> tuple[str, ...]:
    """Return the names of the projections, and of the parts of stacked projections."""
    own = {projection.module for projection in projections}
    return tuple(sorted(own.union(*(STACKS[module] for module in own if module in STACKS))))


def file_order(
    up: FloatArray, module: str, architecture: str, *, head_size: int, kv_width: int, back: bool = False
) -> FloatArray:
    """Return an adapter's second matrix [outputs, rank] with its rows as in GGUF files of this architecture.

    There, rows that rotate together are adjacent in a query's or key's head, not in its two halves. back: the inverse.
    """
    known, (outputs, rank) = BY_NAME.get(architecture), up.shape
    rotated = {"q_proj": outputs, "k_proj": outputs, "qkv_proj": outputs - kv_width}.get(module, 0)
    if known is None or not known.reordered or not rotated:
        return up
    sizes = (head_size // 2, 2) if back else (2, head_size // 2)
    heads = up[:rotated].reshape(rotated // head_size, *sizes, rank).swapaxes(1, 2)
    return np.concatenate([heads.reshape(rotated, rank), up[rotated:]])


def _invocation(contents: Contents, path: Path) -> tuple[int, ...]:
    """Return the tokens that activate an adapter. Raises ManifestError for a field that llama.cpp does not accept."""
    if _INVOCATION in contents.fields and contents.element_types.get(_INVOCATION) != UINT32:
        raise ManifestError(f"{path}: {_INVOCATION} is not a list of unsigned 32-bit integers: convert it again")
    return tuple(int(token) for token in contents.arrays.get(_INVOCATION, ()))


def _module(tensor: str, architecture: str) -> str:
    """Return PEFT's name of a projection, or llama.cpp's if PEFT's is unknown."""
    found = module_of(tensor, architecture)
    return tensor.removesuffix(".weight").split(".", 2)[-1] if found is None else found.module
