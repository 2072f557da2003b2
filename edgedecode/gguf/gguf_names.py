"""llama.cpp's names of a pack's architectures and of the projections of their layers."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from .architectures import ARCHITECTURES, BY_NAME, HYBRIDS

_MODULES = {
    "attn_q": "q_proj",
    "attn_k": "k_proj",
    "attn_v": "v_proj",
    "attn_qkv": "qkv_proj",
    "attn_output": "o_proj",
    "ffn_gate": "gate_proj",
    "ffn_up": "up_proj",
    "ffn_down": "down_proj",
}
"""Tensor → name of the projection in PEFT's `target_modules`."""
_FUSED = {**_MODULES, "ffn_up": "gate_up_proj"}
_LAYER = re.compile(r"blk\.(\d{1,9})\.(.+)\.weight", re.ASCII)


@dataclass(frozen=True, slots=True)
class LayerModule:
    """A projection: its layer and its name in PEFT's `target_modules`."""

    layer: int
    module: str


def gguf_name(architecture: str) -> str | None:
    """Return the general.architecture of a manifest's architecture; None for an unknown class."""
    if (known := ARCHITECTURES.get(architecture) or HYBRIDS.get(architecture)) is not None:
        return known.name
    return None if "For" in architecture else architecture  # a pack imported from GGUF already has llama.cpp's name


def module_of(tensor: str, architecture: str) -> LayerModule | None:
    """Return the projection of a weight tensor in files of this llama.cpp architecture; None: not a projection."""
    found = _LAYER.fullmatch(tensor)
    if found is None:
        return None
    module = _modules(architecture).get(found[2])
    return None if module is None else LayerModule(int(found[1]), module)


def tensor_name(module: LayerModule, architecture: str) -> str:
    """Return the name of a projection's weight tensor. Inverse of `module_of`."""
    (name,) = (tensor for tensor, known in _modules(architecture).items() if known == module.module)
    return f"blk.{module.layer}.{name}.weight"


def _modules(architecture: str) -> Mapping[str, str]:
    known = BY_NAME.get(architecture)
    if known is not None and known.recurrent:  # there attn_qkv belongs to layers without attention
        return {tensor: module for tensor, module in _MODULES.items() if tensor != "attn_qkv"}
    return _FUSED if known is not None and known.fused else _MODULES
