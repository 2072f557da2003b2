"""Checks a GGUF LoRA adapter against its model before llama.cpp loads it.

llama.cpp's loader (src/llama-adapter.cpp) aborts on fields of a wrong type, and silently ignores some tensors.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgedecode.arrays import FloatArray, bfloat16_floats
from edgedecode.errors import CapabilityError, InputError, ManifestError

from .contents import Contents, Tensor
from .fields import FLOAT32, TEXT
from .header import EMBEDDING, OUTPUT, Header

SUPPORTED_TYPES = (0, 1, 8, 30)
"""F32, F16, Q8_0 and BF16: the types that the engine can multiply on both sides."""
_Q8_0, _BF16 = SUPPORTED_TYPES[2:]
_SIDES = (".lora_a", ".lora_b")
_TEXTS = {"general.type": "adapter", "adapter.type": "lora"}
_ALPHA = "adapter.lora.alpha"


@dataclass(frozen=True, slots=True)
class AdapterFile:
    """A checked file: its alpha, its tensors' bytes, and the rank of each product by the name of the base weight."""

    alpha: float
    nbytes: int
    ranks: Mapping[str, int]

    @property
    def rank(self) -> int:
        return max(self.ranks.values())


def check_adapter(contents: Contents, path: Path, header: Header, *, name: str) -> AdapterFile:
    """Check the adapter read from `path` against the model `name` with this header.

    Raises ManifestError for a damaged file, InputError if it is not a LoRA or belongs to another base model,
    CapabilityError for parts that llama.cpp would ignore.
    """
    alpha = checked_alpha(contents, path, header.architecture, name=name)
    ranks = {target: _rank(contents, target, path, header, name=name) for target in targets(contents, path)}
    return AdapterFile(alpha, sum(tensor.nbytes for tensor in contents.tensors.values()), ranks)


def checked_alpha(contents: Contents, path: Path, architecture: str, *, name: str) -> float:
    """Return an adapter's alpha, after checking its fields against the architecture of the model `name`.

    Raises as `check_adapter` does.
    """
    for key, wanted in _TEXTS.items():
        found = _text(contents, key)
        if found != wanted:
            raise InputError(
                f"{path} is not a LoRA adapter ({key} is {found!r}): give one made for llama.cpp (convert_lora_to_gguf)"
            )
    found = _text(contents, "general.architecture")
    if found != architecture:
        raise InputError(
            f"{path} was made for a model of the architecture {found!r}, the model {name} is {architecture!r}: "
            f"give an adapter of this model"
        )
    alpha = contents.fields.get(_ALPHA)
    if contents.types.get(_ALPHA) != FLOAT32 or not isinstance(alpha, float) or not 0 < abs(alpha) < 1e9:
        raise ManifestError(f"{path} has no usable {_ALPHA} ({alpha}): convert the adapter again")
    return alpha


def check_values(contents: Contents, path: Path) -> None:
    """Raise ManifestError for values, read from `path` tensor by tensor, that are not finite numbers."""
    for tensor in contents.tensors.values():
        if not np.isfinite(read_values(contents, tensor, path)).all():
            raise ManifestError(
                f"{path} holds values in {tensor.name[:60]} that are not finite numbers: convert the adapter again"
            )


def read_values(contents: Contents, tensor: Tensor, path: Path) -> FloatArray:
    """Return a tensor of one of `SUPPORTED_TYPES` as float32, [outer size, inner size]. Raises ManifestError."""
    try:
        data = np.fromfile(path, np.uint8, tensor.nbytes, offset=contents.start + tensor.offset)
    except OSError as error:
        raise ManifestError(f"{path} cannot be read ({error.strerror or error}): copy it again") from None
    shape = matrix_sizes(tensor)[::-1]
    if tensor.type == _BF16:
        return bfloat16_floats(data.view("<u2")).reshape(shape)
    if tensor.type == _Q8_0:  # blocks of a scale and 32 integers
        blocks = data.reshape(-1, 34)
        with np.errstate(invalid="ignore"):
            values = blocks[:, 2:].view(np.int8) * blocks[:, :2].copy().view("<f2").astype(np.float32)
    else:
        values = data.view("<f4" if tensor.type == 0 else "<f2")
    return values.astype(np.float32).reshape(shape)


def _text(contents: Contents, key: str) -> object:
    return contents.fields.get(key) if contents.types.get(key) == TEXT else None


def targets(contents: Contents, path: Path) -> list[str]:
    """List the weights that the file's tensors change, in the file's order."""
    for tensor in contents.tensors.values():
        if not tensor.name.endswith(_SIDES):
            raise CapabilityError(
                f"{path} holds {tensor.name[:60]}, which is not a LoRA matrix and which llama.cpp ignores: "
                f"give an adapter with LoRA matrices only"
            )
        if tensor.type not in SUPPORTED_TYPES or len(tensor.shape) > 2:
            raise ManifestError(
                f"{path} holds {tensor.name[:60]} in a form llama.cpp does not multiply: convert the adapter again"
            )
    if not contents.tensors:
        raise ManifestError(f"{path} holds no tensors: convert the adapter again")
    return list(dict.fromkeys(name[: -len(_SIDES[0])] for name in contents.tensors))


def _rank(contents: Contents, target: str, path: Path, header: Header, *, name: str) -> int:
    """Return a product's rank. Raises if half of the product is missing, or if it does not fit the base model."""
    first, second = (contents.tensors.get(target + side) for side in _SIDES)
    if first is None or second is None:
        raise ManifestError(f"{path} holds one half of a product for {target[:60]}: convert or download it again")
    if target == EMBEDDING and OUTPUT not in header.tensors:
        raise CapabilityError(f"{path} changes the embedding, which is {name}'s output too: llama.cpp cannot apply it")
    base = header.tensors.get(target)
    if base is None or len(base.shape) != 2:
        raise InputError(
            f"{path} changes {target[:60]}, which is not a matrix of the model {name}; it is for another base: give "
            f"an adapter of this model"
        )
    down, up = matrix_sizes(first), matrix_sizes(second)
    if target == EMBEDDING:  # rows are looked up in the first matrix and multiplied by the second
        down, up = up[::-1], down
    if down[1] != up[0] or (down[0], up[1]) != base.shape:
        raise InputError(
            f"{path} changes {target[:60]} by {_sizes(first)} and {_sizes(second)}, in the model {name} it is "
            f"{_sizes(base)}; it is for another base: give an adapter of this model"
        )
    return up[0]


def matrix_sizes(tensor: Tensor) -> tuple[int, int]:
    """Return a tensor's inner and outer size. A matrix of one column may be stored as a vector."""
    shape = (*tensor.shape, 1)
    return shape[0], shape[1]


def _sizes(tensor: Tensor) -> str:
    return "×".join(map(str, matrix_sizes(tensor)))
