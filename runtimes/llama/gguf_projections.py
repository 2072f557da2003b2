"""Where the projections that PEFT's adapters change lie in a GGUF file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edgedecode.gguf.architectures import CLASSES, module_of
from edgedecode.gguf.header import Header
from edgedecode.pack.manifest import STACKS

from ..adapter_parts import Projection

__all__ = ["lora_modules", "lora_projections"]


def lora_projections(header: Header) -> Iterator[Projection]:
    """Yield the projections of the file that an adapter of PEFT may change; none where their order is not known."""
    if header.architecture not in CLASSES.values():
        return
    for name, tensor in header.tensors.items():
        found = module_of(name, header.architecture)
        if found is not None and len(tensor.shape) == 2:
            yield Projection(found.layer, found.module, inputs=tensor.shape[0], outputs=tensor.shape[1])


def lora_modules(projections: Sequence[Projection]) -> tuple[str, ...]:
    """Return the projections' names, and those of the parts of stacked ones."""
    own = {projection.module for projection in projections}
    return tuple(sorted(own.union(*(STACKS[module] for module in own if module in STACKS))))
