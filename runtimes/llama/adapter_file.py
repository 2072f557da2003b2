"""Checks a GGUF adapter file against the model before native code sees it, which aborts on fields of a wrong type.

Knows what llama.cpp's loader of adapters reads (src/llama-adapter.cpp), and what it passes over in silence.
"""

from __future__ import annotations

from pathlib import Path

from edgedecode.errors import CapabilityError, InputError, ManifestError

from .contents import Contents, read_contents
from .fields import FLOAT32, TEXT
from .header import EMBEDDING, Header

__all__ = ["AdapterFile", "check_adapter"]

KEPT_TYPES = (0, 1, 8, 30)
"""F32, F16, Q8_0 and BF16: what the engine's products take on both sides."""
OUTPUT = "output.weight"
_SIDES = (".lora_a", ".lora_b")
_TEXTS = {"general.type": "adapter", "adapter.type": "lora"}


class AdapterFile:
    """What a checked file holds: the largest rank, and bytes of its tensors."""

    def __init__(self, contents: Contents) -> None:
        tensors = contents.tensors.values()
        self.nbytes = sum(tensor.nbytes for tensor in tensors)
        self.rank = max(min(tensor.shape) for tensor in tensors)
        self.products = len(contents.tensors) // 2


def check_adapter(path: Path, header: Header, *, name: str) -> AdapterFile:
    """Read the adapter at `path` for the model `name` of this header.

    Raises ManifestError for a damaged file, InputError for one that is no LoRA or of another base, CapabilityError for
    what llama.cpp would leave out.
    """
    contents = read_contents(path)
    for key, wanted in _TEXTS.items():
        found = contents.fields.get(key) if contents.types.get(key) == TEXT else None
        if found != wanted:
            raise InputError(f"{path} is no LoRA adapter ({key} is {found!r}): make one with convert_lora_to_gguf")
    found = contents.fields.get("general.architecture")
    if contents.types.get("general.architecture") != TEXT or found != header.architecture:
        raise InputError(f"{path} is an adapter for {found!r}, the model {name} is {header.architecture!r}")
    alpha = contents.fields.get("adapter.lora.alpha")
    if contents.types.get("adapter.lora.alpha") != FLOAT32 or not isinstance(alpha, float) or not 0 < abs(alpha) < 1e9:
        raise ManifestError(f"{path} has no usable adapter.lora.alpha ({alpha}): convert the adapter again")
    _check_tensors(contents, path, header, name=name)
    return AdapterFile(contents)


def _check_tensors(contents: Contents, path: Path, header: Header, *, name: str) -> None:
    targets = set()
    for tensor in contents.tensors.values():
        target = tensor.name[: -len(_SIDES[0])]
        if not tensor.name.endswith(_SIDES):
            raise CapabilityError(f"{path} changes {tensor.name[:60]!r}, which llama.cpp leaves out: train it without")
        if tensor.type not in KEPT_TYPES or len(tensor.shape) != 2:
            raise ManifestError(f"{path} holds {tensor.name[:60]} in a form llama.cpp does not multiply: convert again")
        targets.add(target)
    if not targets:
        raise ManifestError(f"{path} holds no tensors: convert the adapter again")
    for target in sorted(targets):
        _check_pair(contents, target, path, header, name=name)


def _check_pair(contents: Contents, target: str, path: Path, header: Header, *, name: str) -> None:
    """Refuse one half of a pair, and pairs that do not fit the base (the embedding's are the other way round)."""
    down, up = (contents.tensors.get(target + side) for side in _SIDES)
    if down is None or up is None:
        raise ManifestError(f"{path} holds one half of {target[:60]!r} only: convert the adapter again")
    if target == EMBEDDING and OUTPUT not in header.tensors:
        raise CapabilityError(f"{path} changes the embedding, which is {name}'s output too: llama.cpp cannot apply it")
    base = header.tensors.get(target)
    if base is None or len(base.shape) != 2:
        raise InputError(f"{path} changes {target[:60]!r}, which the model {name} has not: it is for another base")
    if target == EMBEDDING:
        fits = (base.shape[0], base.shape[1]) == (up.shape[1], down.shape[1]) and down.shape[0] == up.shape[0]
    else:
        fits = base.shape == (down.shape[0], up.shape[1]) and down.shape[1] == up.shape[0]
    if not fits:
        raise InputError(
            f"{path}: {target[:60]} has {down.shape} and {up.shape}, the model {name} has {base.shape}: the adapter is "
            f"for another base"
        )
