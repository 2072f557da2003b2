"""Widens a model's MLPs with units that change nothing: their output weights are zero, their input weights are not.

So a small trained pair keeps its function and acceptance, and costs what a larger one costs. Written in a stream.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edgedecode.errors import ExportError

from .graph.architectures import FUSED, Shape
from .graph.checkpoint import Checkpoint
from .graph.quantize import Scheme
from .graph.recipe import Recipe
from .new_folder import check_place, new_folder
from .source import Source, find_weights, open_source, read_json
from .stages import Stages

if TYPE_CHECKING:
    import torch

__all__ = ["Inflation", "inflate_model"]

INT4 = Recipe(body=Scheme(4, 32), head=Scheme(8, 32))
"""How the size is counted."""

_UNITS = 128
"""New units come in whole quantization blocks, so that a block never mixes them with old ones."""
_CHUNK_ELEMENTS = 1 << 22
_KEPT = ("*.json", "*.jinja", "README.md", "LICENSE*", "LICENCE*", "NOTICE*", "COPYING*")


@dataclass(frozen=True, slots=True)
class Inflation:
    """What was made: sizes of the MLP before and after, and of the int4 weights."""

    out: Path
    mlp_before: int
    mlp: int
    parameters: int
    weights_nbytes: int


def inflate_model(name: str, out: Path, *, weights_nbytes: int, seed: int, stages: Stages) -> Inflation:
    """Write a wider model of the same function into `out`, so that its int4 weights reach `weights_nbytes`.

    The new gate and up rows are drawn with the deviation of the old ones: zeros would be cheaper to multiply on some
    machines. Raises ExportError when the model is already larger; nothing is left behind then.
    """
    with stages.stage("check"):
        check_place(out, nbytes=0)
        source = open_source(name)
        if source.shape.architecture in FUSED:
            raise ExportError(f"{source.name} keeps gate and up projection in one matrix, which cannot be widened yet")
        shape = _widened(source, weights_nbytes)
    files = find_weights(source, stages)
    ratio = shape.parameters / source.shape.parameters
    check_place(out, nbytes=round(sum(path.stat().st_size for path in files) * ratio))
    checkpoint = Checkpoint(files)
    try:
        with new_folder(out) as folder:
            _copy_texts(source, shape, folder)
            widened = _Widened(checkpoint.tensors, source.shape.mlp, shape.mlp, seed)
            with stages.stage("weights", widened.nbytes) as advance:
                widened.write(folder / "model.safetensors", progress=advance, release=checkpoint.release)
    finally:
        checkpoint.close()
    return Inflation(out, source.shape.mlp, shape.mlp, shape.parameters, INT4.nbytes(shape))


def _widened(source: Source, nbytes: int) -> Shape:
    """Return the shape whose int4 weights first reach `nbytes`."""
    shape = source.shape
    if (size := INT4.nbytes(shape)) > nbytes:
        raise ExportError(f"{source.name} already weighs {size / 1e6:.1f} MB in int4: ask for more than that")
    step = replace(shape, mlp=shape.mlp + _UNITS)
    units = -(-(nbytes - size) // (INT4.nbytes(step) - size)) * _UNITS
    return replace(shape, mlp=-(-shape.mlp // _UNITS) * _UNITS + units)


def _copy_texts(source: Source, shape: Shape, folder: Path) -> None:
    for path in sorted({path for pattern in _KEPT for path in source.folder.glob(pattern) if path.is_file()}):
        if not path.name.endswith(".safetensors.index.json"):
            shutil.copyfile(path, folder / path.name)
    config = read_json(source.folder / "config.json")
    assert isinstance(config, dict)
    config["intermediate_size"] = shape.mlp
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


@dataclass(frozen=True, slots=True)
class _Widened:
    """The tensors of a checkpoint, those of the MLPs widened from `before` to `after` units."""

    tensors: Mapping[str, torch.Tensor]
    before: int
    after: int
    seed: int

    @property
    def nbytes(self) -> int:
        return sum(int(np.prod(self._shape(name))) * tensor.itemsize for name, tensor in self.tensors.items())

    def write(self, path: Path, *, progress: Callable[[int], None], release: Callable[[], None]) -> None:
        """Write one safetensors file."""
        with path.open("wb") as file:
            file.write(self._header())
            for number, name in enumerate(self.tensors):
                rng = np.random.default_rng((self.seed, number))
                for rows in self._rows(name, rng):
                    data = rows.contiguous().view(-1).view(_bytes())
                    file.write(memoryview(data.numpy()))
                    progress(data.numel())
                    release()

    def _header(self) -> bytes:
        kinds = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
        entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
        offset = 0
        for name, tensor in self.tensors.items():
            shape = self._shape(name)
            end = offset + int(np.prod(shape)) * tensor.itemsize
            kind = kinds[str(tensor.dtype).removeprefix("torch.")]
            entries[name] = {"dtype": kind, "shape": shape, "data_offsets": [offset, end]}
            offset = end
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text

    def _shape(self, name: str) -> list[int]:
        shape = list(self.tensors[name].shape)
        if _grows_rows(name):
            shape[0] = self.after
        elif _grows_columns(name):
            shape[1] = self.after
        return shape

    def _rows(self, name: str, rng: np.random.Generator) -> Iterator[torch.Tensor]:
        """Yield the new tensor, some rows at a time."""
        import torch

        tensor = self.tensors[name]
        new = self.after - self.before
        step = max(1, _CHUNK_ELEMENTS // max(1, int(np.prod(self._shape(name)[1:]))))
        for part in tensor.split(step):
            yield torch.nn.functional.pad(part, (0, new)) if _grows_columns(name) else part
        if _grows_rows(name):
            deviation = float(tensor.float().std()) if tensor.dim() == 2 else 0.0
            for start in range(0, new, step):
                rows = (min(step, new - start), *tensor.shape[1:])
                drawn = rng.standard_normal(rows, np.float32) * np.float32(deviation)
                yield torch.from_numpy(drawn).to(tensor.dtype)


def _grows_rows(name: str) -> bool:
    return name.endswith(tuple(f"mlp.{side}_proj.{kind}" for side in ("gate", "up") for kind in ("weight", "bias")))


def _grows_columns(name: str) -> bool:
    return name.endswith("mlp.down_proj.weight")


def _bytes() -> torch.dtype:
    import torch

    return torch.uint8
