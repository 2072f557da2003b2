"""LoRA adapters of PEFT in an exported pack: GGUF files with the same two matrices for each projection.

llama.cpp adds B·A·(alpha / rank) at each projection, so whatever PEFT scales otherwise is folded into B.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edgedecode.errors import ExportError
from edgedecode.gguf.header import read_header
from edgedecode.pack.entries import AdapterEntry
from edgedecode.pack.manifest import ModelEntry

from ..base_model import read_json
from ..frameworks import refused
from ..graph.checkpoint import Checkpoint
from ..graph.model_shape import Shape
from ..imports.gguf_source import read_adapter
from ..json_fields import Fields
from .layouts import LAYOUTS
from .row_source import ArrayRows
from .tensors import Tensor, fields_of, tensor_name, write_file

if TYPE_CHECKING:
    import torch

__all__ = ["adapter_entries", "check_adapters", "write_adapter", "write_adapters"]

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_NAME = re.compile(r"base_model\.model\.(model\.layers\..+)\.lora_([AB])\.weight")
_UNSUPPORTED = ("use_dora", "fan_in_fan_out", "modules_to_save", "layer_replication", "lora_bias")


@dataclass(frozen=True, slots=True)
class _Settings:
    """What a PEFT configuration says of scales; patterns are by the end of a module's name."""

    alpha: float
    rank: int
    alphas: Mapping[str, float]
    ranks: Mapping[str, float]
    rooted: bool
    invocation: tuple[int, ...]

    def correction(self, module: str) -> float:
        """Return PEFT's scale of a module over the one that llama.cpp computes from the adapter's alpha."""
        rank = _matching(self.ranks, module, usual=self.rank)
        alpha = _matching(self.alphas, module, usual=self.alpha)
        return alpha / (math.sqrt(rank) if self.rooted else rank) / (self.alpha / rank)


def check_folder(folder: Path) -> None:
    """Raise ExportError where `folder` holds no adapter of PEFT, or one of a kind that llama.cpp does not know."""
    _read_settings(folder)
    _weights_file(folder)


def write_adapter(folder: Path, path: Path, *, shape: Shape) -> None:
    """Write the PEFT adapter in `folder`, made for a model of this shape, to `path`.

    Raises ExportError for kinds of LoRA that llama.cpp does not know, and for adapters of another model.
    """
    import gguf

    layout = LAYOUTS[shape.architecture]
    settings = _read_settings(folder)
    checkpoint = Checkpoint([_weights_file(folder)])
    try:
        tensors = list(_tensors(checkpoint.tensors, settings, shape=shape, name=folder.name))
        writer = gguf.GGUFWriter(None, layout.name)
        writer.add_type(gguf.GGUFType.ADAPTER)
        writer.add_name(folder.name)
        writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
        writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, settings.alpha)
        if settings.invocation:
            kinds = gguf.GGUFValueType
            key, tokens = gguf.Keys.Adapter.ALORA_INVOCATION_TOKENS, list(settings.invocation)
            writer.add_key_value(key, tokens, kinds.ARRAY, sub_type=kinds.UINT32)
        write_file(path, fields_of(writer), tensors, progress=lambda _: None, release=checkpoint.release)
    finally:
        checkpoint.close()


def _weights_file(folder: Path) -> Path:
    if not (folder / _WEIGHTS).is_file():
        raise ExportError(f"{folder} has no {_WEIGHTS}: give the folder that PEFT's save_pretrained wrote")
    return folder / _WEIGHTS


def _tensors(views: Mapping[str, torch.Tensor], settings: _Settings, *, shape: Shape, name: str) -> Iterator[Tensor]:
    layout = LAYOUTS[shape.architecture]
    for title, view in sorted(views.items()):
        found = _NAME.fullmatch(title)
        if found is None:
            raise ExportError(f"the adapter {name} changes {title}; only projections in a model's layers are supported")
        module, side = found.groups()
        values = np.asarray(view.detach().float().numpy(), np.float32)
        try:
            target = tensor_name(f"{module}.weight", layout, layers=shape.layers)
        except ExportError:
            raise ExportError(
                f"the adapter {name} changes {module}, which the model has not; it is for another base: give an "
                f"adapter of this model"
            ) from None
        second = side == "B"
        if second:
            values = values * np.float32(settings.correction(module))
        head = shape.head_size if second and layout.interleaved and module.endswith(("q_proj", "k_proj")) else 0
        yield Tensor(f"{target}.lora_{side.lower()}", tuple(values.shape), ArrayRows(values), head)


def _read_settings(folder: Path) -> _Settings:
    value = read_json(folder / _CONFIG)
    if value is None:
        raise ExportError(f"{folder} is not a PEFT adapter: it has no {_CONFIG}")
    with refused(folder.name):
        config = Fields.of(value, _CONFIG)
        if (kind := config.text("peft_type")) != "LORA":
            raise ExportError(f"the adapter {folder.name} is of type {kind}, only LORA is supported")
        if used := [key for key in _UNSUPPORTED if config.values.get(key)]:
            raise ExportError(f"the adapter {folder.name} uses {', '.join(used)}, which llama.cpp does not know")
        return _Settings(
            alpha=float(config.optional_number("lora_alpha") or 8),
            rank=config.integer("r", low=1),
            alphas=_pattern(config, "alpha_pattern"),
            ranks=_pattern(config, "rank_pattern"),
            rooted=bool(config.values.get("use_rslora")),
            invocation=config.integers("alora_invocation_tokens")
            if config.values.get("alora_invocation_tokens")
            else (),
        )


def _pattern(config: Fields, key: str) -> Mapping[str, float]:
    return config.numbers(key) if config.values.get(key) else {}


def _matching(pattern: Mapping[str, float], module: str, *, usual: float) -> float:
    """Return the value of the first pattern that a module's name ends with, as PEFT matches them."""
    return next((value for key, value in pattern.items() if re.match(rf"(.*\.)?({key})$", module)), usual)


def check_adapters(folders: Mapping[str, Path], *, gguf: bool) -> None:
    """Check what needs no weights. Raises ExportError. gguf: the target becomes a GGUF file, too."""
    if folders and not gguf:
        raise ExportError("adapters become GGUF files, which go with the target's: add --formats onnx,gguf")
    for folder in folders.values():
        check_folder(folder)


def write_adapters(folders: Mapping[str, Path], pack: Path, *, shape: Shape) -> None:
    """Write each into the pack, before the long work on the target, of this shape. Raises ExportError."""
    for name, folder in folders.items():
        path = pack / _file(name)
        path.parent.mkdir(exist_ok=True)
        write_adapter(folder, path, shape=shape)


def adapter_entries(folders: Mapping[str, Path], pack: Path, *, target: ModelEntry) -> dict[str, AdapterEntry]:
    """Check each against the target's GGUF file as the engine's runtime will. Raises ExportError naming the folder."""
    header = read_header(pack / target.gguf) if folders else None
    entries = {}
    for name, folder in folders.items():
        assert header is not None
        path = pack / _file(name)
        try:
            entry = read_adapter(path, header, name="target", role="target")
        except ExportError as error:  # the file lies in a folder that will be gone
            raise ExportError(str(error).replace(str(path), str(folder))) from None
        entries[name] = replace(entry, file=_file(name))
    return entries


def _file(name: str) -> str:
    return f"adapters/{name}.gguf"
