"""Reads a GGUF file's fields and tensor list, and checks that the file is complete, before native code opens it.

Supports versions 2 and 3, little-endian. Layout: ggml/include/gguf.h of llama.cpp.
"""

import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import TypeVar

from edgedecode.errors import ManifestError, stand_in

from .fields import Array, FieldReader, Truncated, Value

Item = TypeVar("Item")
MAGIC = b"GGUF"
VERSIONS = (2, 3)
MOST_DIMENSIONS = 4
MOST_ITEMS = 1 << 16
"""Most tensors or fields. No model has more; reading up to a damaged count would take minutes."""

BLOCKS: dict[int, tuple[int, int]] = {
    0: (1, 4),  # F32
    1: (1, 2),  # F16
    2: (32, 18),  # Q4_0
    3: (32, 20),  # Q4_1
    6: (32, 22),  # Q5_0
    7: (32, 24),  # Q5_1
    8: (32, 34),  # Q8_0
    9: (32, 36),  # Q8_1
    10: (256, 84),  # Q2_K
    11: (256, 110),  # Q3_K
    12: (256, 144),  # Q4_K
    13: (256, 176),  # Q5_K
    14: (256, 210),  # Q6_K
    15: (256, 292),  # Q8_K
    16: (256, 66),  # IQ2_XXS
    17: (256, 74),  # IQ2_XS
    18: (256, 98),  # IQ3_XXS
    19: (256, 50),  # IQ1_S
    20: (32, 18),  # IQ4_NL
    21: (256, 110),  # IQ3_S
    22: (256, 82),  # IQ2_S
    23: (256, 136),  # IQ4_XS
    24: (1, 1),  # I8
    25: (1, 2),  # I16
    26: (1, 4),  # I32
    27: (1, 8),  # I64
    28: (1, 8),  # F64
    29: (256, 56),  # IQ1_M
    30: (1, 2),  # BF16
    34: (256, 54),  # TQ1_0
    35: (256, 66),  # TQ2_0
    39: (32, 17),  # MXFP4
}
"""Tensor type → values per block and bytes per block."""
_TYPES = (
    "F32 F16 Q4_0 Q4_1 - - Q5_0 Q5_1 Q8_0 Q8_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K IQ2_XXS IQ2_XS IQ3_XXS IQ1_S IQ4_NL IQ3_S "
    "IQ2_S IQ4_XS I8 I16 I32 I64 F64 IQ1_M BF16 - - - TQ1_0 TQ2_0 - - - MXFP4"
)
TYPE_NAMES = {number: name for number, name in enumerate(_TYPES.split()) if name != "-"}
"""ggml's name of each tensor type."""
ALIGNMENT = 32
"""The default alignment of tensors in bytes, and the smallest that llama.cpp accepts."""


_START = 64
"""The bytes by which another kind of file is known."""
_KINDS: Mapping[bytes, str] = {
    b"PK\x03\x04": "a ZIP archive",
    b"\x1f\x8b": "compressed with gzip",
    b"\x28\xb5\x2f\xfd": "compressed with zstd",
    b"ggml": "of GGML, an older format",
    b"lmgg": "of GGML, an older format",
    b"tjgg": "of GGML, an older format",
    b"fmgg": "of GGML, an older format",
    b"{": "JSON",
}
"""How other files begin that are taken for models."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """An entry of the file's tensor list. shape: fastest dimension first. offset: from `Contents.start`."""

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int

    @property
    def nbytes(self) -> int:
        block, nbytes = BLOCKS[self.type]
        return prod(self.shape) // block * nbytes


@dataclass(frozen=True, slots=True)
class Contents:
    """Everything before the data: fields, their GGUF value types, per-layer arrays (`layers`), and tensors by name."""

    fields: Mapping[str, Value]
    types: Mapping[str, int]
    layers: Mapping[str, tuple[int, ...]]
    tensors: Mapping[str, Tensor]
    twice: str | None
    """A token's text that occurs twice in the vocabulary."""
    arrays: Mapping[str, Array] = field(default_factory=dict)
    """The elements of every array, if requested."""
    end: int = 0
    """The offset of the end of the tensor list."""
    element_types: Mapping[str, int] = field(default_factory=dict)
    """The GGUF value type of the elements of every array."""

    @property
    def alignment(self) -> int:
        return self.integer("general.alignment") or ALIGNMENT

    @property
    def start(self) -> int:
        """The file offset of the data, from which tensor offsets count."""
        return self.end + -self.end % self.alignment

    def integer(self, name: str) -> int:
        """Return an integer field; 0 if it is missing or not an integer."""
        value = self.fields.get(name)
        return value if isinstance(value, int) else 0


def read_contents(path: Path, *, arrays: bool = False) -> Contents:
    """Read the contents of the GGUF file at `path`, and check that its tensors are inside it. arrays: keep all arrays.

    Raises ManifestError in one line for a file that is missing, truncated, not GGUF, big-endian, too new or split.
    """
    try:
        with path.open("rb") as file:
            if not path.stat().st_size:
                raise ManifestError(f"{path} is empty: copy, download or export it again")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return _read(content, path, arrays=arrays)
    except OSError as error:
        raise ManifestError(
            f"{path} cannot be read ({error.strerror or error}): put it back, or check its permissions"
        ) from None
    except Truncated as error:
        raise ManifestError(f"{path} is truncated or damaged ({error}): copy, download or export it again") from None


def _read(content: mmap.mmap, path: Path, *, arrays: bool) -> Contents:
    reader = FieldReader(content, keep_arrays=arrays)
    _check_start(reader, path)
    tensor_count, field_count = reader.integer("Q"), reader.integer("Q")
    if max(tensor_count, field_count) > MOST_ITEMS:
        raise Truncated(f"it claims {tensor_count} tensors and {field_count} fields")
    fields = _by_name([reader.field() for _ in range(field_count)], "field")
    listed = [_tensor(reader, path) for _ in range(tensor_count)]
    tensors = _by_name([(tensor.name, tensor) for tensor in listed], "tensor")
    twice = None if reader.twice is None else reader.twice.decode("utf-8", "replace")
    contents = Contents(
        fields, reader.types, reader.layers, tensors, twice, reader.arrays, reader.offset, reader.element_types
    )
    _check_split(contents, path)
    _check_ends(contents, nbytes=len(content))
    return contents


def _by_name(pairs: Sequence[tuple[str, Item]], kind: str) -> dict[str, Item]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for index, (name, _) in enumerate(pairs) if name in dict(pairs[:index]))
        raise Truncated(f"it lists the {kind} {twice[:40]!r} twice")
    return found


def _check_start(reader: FieldReader, path: Path) -> None:
    if not (start := reader.start(_START)).startswith(MAGIC):
        raise ManifestError(f"{path} {_other_kind(start)}")
    reader.take(len(MAGIC))
    version = reader.integer("I")
    if version and not version & 0xFFFF:
        raise ManifestError(f"{path} is big-endian, this machine is not: convert it, or export it here")
    if version > VERSIONS[-1]:
        raise ManifestError(
            f"{path} has GGUF version {version}, this edgedecode reads up to {VERSIONS[-1]}: upgrade edgedecode"
        )
    if version not in VERSIONS:
        raise ManifestError(f"{path} has GGUF version {version}, which is too old: convert or export it again")


def _other_kind(start: bytes) -> str:
    """Say what a file is that begins with these bytes, and what to do."""
    kind = next((f" but {name}" for mark, name in _KINDS.items() if start.startswith(mark)), "")
    return stand_in(start) or f"is not a GGUF file{kind}: give one, or download or copy it again"


def _check_split(contents: Contents, path: Path) -> None:
    count = contents.integer("split.count")
    if count > 1:
        part = contents.integer("split.no") + 1
        raise ManifestError(
            f"{path} is part {part} of {count} of a split file: merge them (llama-gguf-split --merge) first"
        )


def _tensor(reader: FieldReader, path: Path) -> Tensor:
    name = reader.text()
    dimensions = reader.integer("I")
    if not 1 <= dimensions <= MOST_DIMENSIONS:
        raise Truncated(f"the tensor {name[:40]!r} has {dimensions} dimensions")
    shape = tuple(reader.integer("Q") for _ in range(dimensions))
    tensor = Tensor(name, shape, reader.integer("I"), reader.integer("Q"))
    if tensor.type not in BLOCKS:
        raise ManifestError(f"{path} stores {name} in the unknown type {tensor.type}: upgrade edgedecode")
    if not all(shape):
        raise Truncated(f"the tensor {name[:40]!r} is empty: {shape}")
    if shape[0] % BLOCKS[tensor.type][0]:
        raise Truncated(f"the tensor {name[:40]!r} has rows of {shape[0]} values, which are not whole blocks")
    return tensor


def _check_ends(contents: Contents, *, nbytes: int) -> None:
    alignment = contents.alignment
    if alignment % ALIGNMENT:
        raise Truncated(f"its tensors are aligned to {alignment} bytes, the engine needs a multiple of {ALIGNMENT}")
    last = 0
    for tensor in sorted(contents.tensors.values(), key=lambda tensor: tensor.offset):
        if tensor.offset % alignment:
            raise Truncated(
                f"the tensor {tensor.name[:40]!r} starts at {tensor.offset}, which is not aligned to {alignment}"
            )
        if tensor.offset < last:
            raise Truncated(f"the tensor {tensor.name[:40]!r} starts inside another one, at {tensor.offset}")
        last = tensor.offset + tensor.nbytes
        if contents.start + last > nbytes:
            raise Truncated(f"{tensor.name[:40]} ends at byte {contents.start + last}, the file at {nbytes}")
