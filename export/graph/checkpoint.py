"""A Hugging Face folder's safetensors files as zero-copy torch views of private memory maps.

Reading a view loads its pages; `release` drops them, so resident memory does not grow with the model's size.
"""

import json
import mmap
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgedecode.errors import ExportError, cause, stand_in
from edgedecode.typed_json import typed

if TYPE_CHECKING:
    import torch

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_TEXT = {"model.language_model.": "model.", "language_model.model.": "model.", "language_model.lm_head.": "lm_head."}
"""Prefixes of the text part's tensors in multimodal models, and those of a text model."""
_LEFT_OUT = re.compile(
    r"(?:model\.)?(visual|vision_\w+|vision|audio_\w+|embed_(?:vision|audio)|multi_modal_projector|mtp)\."
)
"""Tensors that are not needed to continue texts: encoders of images and sounds, and layers that draft."""
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


def has_weights(folder: Path) -> bool:
    """Return whether the folder has any weight files, without checking them."""
    return any(next(folder.glob(pattern), None) for pattern in ("*.safetensors", *_PICKLES))


def weight_files(folder: Path) -> list[Path]:
    """Return the folder's safetensors files. Raises ExportError when one is missing or all weights are pickles."""
    if (folder / _INDEX).is_file():
        return _shards(folder)
    if (folder / _SINGLE).is_file():
        return [folder / _SINGLE]
    loose = sorted(folder.glob("*.safetensors"))
    if len(loose) == 1:
        return loose
    if loose:
        raise ExportError(
            f"{folder} has {len(loose)} safetensors files but no {_INDEX}, which maps tensors to files: add it"
        )
    if any(next(folder.glob(pattern), None) for pattern in _PICKLES):
        raise ExportError(
            f"{folder} has its weights only as pickle files, which can run code: convert them to safetensors first "
            f"(in transformers: save_pretrained)"
        )
    raise ExportError(f"{folder} has no weights: a {_SINGLE} file is needed")


@dataclass(frozen=True, slots=True)
class _Index:
    weight_map: Mapping[str, str]


def _shards(folder: Path) -> list[Path]:
    try:
        index = typed(json.loads((folder / _INDEX).read_text(encoding="utf-8")), _Index, "the index")
    except (OSError, ValueError, RecursionError) as error:
        raise ExportError(f"{folder / _INDEX} cannot be read ({cause(error)}): download it again") from None
    names = sorted({*index.weight_map.values()})
    if outside := [name for name in names if Path(name).name != name]:
        raise ExportError(f"{folder / _INDEX} names {outside[0]!r}, which is outside its folder: refused")
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise ExportError(f"{folder} lacks {len(missing)} of {len(names)} shards, {missing[0]} first: download them")
    return [folder / name for name in names]


class Checkpoint:
    """The named tensors of some safetensors files. Close it when the views are no longer used."""

    def __init__(self, files: Sequence[Path]) -> None:
        """Map the files and check their headers. Raises ExportError for a damaged file or an unusable type."""
        self.left_out: set[str] = set()
        """The parts that are not opened, by name, as the text does not depend on them."""
        self._maps: list[mmap.mmap] = []
        self._views: dict[str, torch.Tensor] = {}
        for path in files:
            for title, view in self._open(path):
                name = next((new + title[len(old) :] for old, new in _TEXT.items() if title.startswith(old)), title)
                if name in self._views:
                    raise ExportError(f"the tensor {name} is in {path.name} and another file: remove one")
                self._views[name] = view

    @property
    def tensors(self) -> "Mapping[str, torch.Tensor]":
        return self._views

    def release(self) -> None:
        """Drop all resident pages; the next read loads them from the file again."""
        if hasattr(mmap, "MADV_DONTNEED"):
            for mapped in self._maps:
                mapped.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        self._views.clear()
        self._maps.clear()  # an mmap closes when its last view is freed

    def _open(self, path: Path) -> "Iterator[tuple[str, torch.Tensor]]":
        import torch

        kinds = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
        header = _header(path)
        with path.open("rb") as file:
            start = 8 + int.from_bytes(file.read(8), "little")
            # Copy-on-write because torch needs writable memory. It is never written, so pages can be dropped.
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self._maps.append(mapped)
        for name, entry in header.items():
            # Skips integer buffers of old checkpoints. A weight of an unsupported type is reported as missing later.
            if entry.dtype not in kinds:
                continue
            if other := _LEFT_OUT.match(name):
                self.left_out.add(other[1])
                continue
            count = entry.nbytes // kinds[entry.dtype].itemsize
            if count == 0:
                raise ExportError(f"the tensor {name} in {path.name} is empty: the checkpoint is damaged")
            flat = torch.frombuffer(mapped, dtype=kinds[entry.dtype], count=count, offset=start + entry.data_offsets[0])
            yield name, flat.reshape(entry.shape)


@dataclass(frozen=True, slots=True)
class _Entry:
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]

    @property
    def nbytes(self) -> int:
        return self.data_offsets[1] - self.data_offsets[0]


def _header(path: Path) -> dict[str, _Entry]:
    """Let safetensors validate the file, then read its header."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy"):
            pass
        with path.open("rb") as file:
            entries = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        entries.pop("__metadata__", None)
        return typed(entries, dict[str, _Entry], "its header")
    except (OSError, ValueError, SafetensorError) as error:
        other = ""
        with suppress(OSError), path.open("rb") as file:
            other = stand_in(file.read(64))
        what = other or f"is not a valid safetensors file ({error}): download it again"
        raise ExportError(f"{path} {what}") from None
