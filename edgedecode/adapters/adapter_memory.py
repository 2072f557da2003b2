"""Plans the memory of a pack's adapters, from their files."""

from pathlib import Path

from edgedecode.errors import CapabilityError
from edgedecode.pack.manifest import Manifest

from .adapter_change import pack_projections
from .adapter_parts import MAKING
from .gguf_adapter import read_gguf_matrices
from .peft_folder import PeftAdapter, read_peft_adapter

_TENSOR_NBYTES = 4096
"""An engine's overhead per tensor."""
_MOST_TENSORS = 512
"""Tensors assumed for an adapter whose file is not read."""


def loaded_nbytes(manifest: Manifest, root: Path, name: str) -> tuple[int, int]:
    """Return the most memory that an engine needs for an adapter of the pack, and for a copy of another scale.

    Of matrices in float32, laid out in whichever way takes more, while the last one is made. Raises as
    `PackAdapters.use`.
    """
    listed, path = manifest.adapters[name], root / manifest.located_adapter(name).file
    try:
        found = read_adapter(manifest, root, name)
        projections = pack_projections(manifest, root, role=listed.role)
        parts = projections.sort(found.matrices())
    except CapabilityError:
        if listed.config:
            raise
        return path.stat().st_size + _TENSOR_NBYTES * _MOST_TENSORS, 0  # llama.cpp takes the file as it is
    plain = [projections.most_nbytes(each) for each in parts]
    scaled = [projections.most_nbytes(each, scaled=True) for each in parts]
    return sum(plain) + MAKING * max(scaled, default=0) + _TENSOR_NBYTES * found.tensors, sum(scaled) - sum(plain)


def read_adapter(manifest: Manifest, root: Path, name: str) -> PeftAdapter:
    """Read an adapter of the pack, whose `matrices` are read when they are needed. Raises as `PackAdapters.use`."""
    listed, path = manifest.adapters[name], root / manifest.located_adapter(name).file
    if listed.config:
        return read_peft_adapter(root / listed.config, path)
    return read_gguf_matrices(path, manifest.models[listed.role], name=listed.role)
