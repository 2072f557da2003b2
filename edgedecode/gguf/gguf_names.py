"""llama.cpp's names of a pack's architectures and of the projections of their layers."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from .architectures import ALL, BY_NAME

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
_OWN: Mapping[str, Mapping[str, str]] = {
    "lfm2": {
        **{f"attn_{each}": f"{each}_proj" for each in "qkv"},
        "attn_output": "out_proj",
        "ffn_gate": "w1",
        "ffn_up": "w3",
        "ffn_down": "w2",
        "shortconv.in_proj": "in_proj",
        "shortconv.out_proj": "out_proj",
    }
}
"""Of architectures whose classes have names of their own; no layer has both tensors of one name."""
_LAYER = re.compile(r"blk\.(\d{1,9})\.(.+)\.weight", re.ASCII)


@dataclass(frozen=True, slots=True)
class LayerModule:
    """A projection: its layer and its name in PEFT's `target_modules`."""

    layer: int
    module: str


def gguf_name(architecture: str) -> str | None:
    """Return the general.architecture of a manifest's architecture; None for an unknown class."""
    if (known := ALL.get(architecture)) is not None:
        return known.name
    return None if "For" in architecture else architecture  # a pack imported from GGUF already has llama.cpp's name


def module_of(tensor: str, architecture: str) -> LayerModule | None:
    """Return the projection of a weight tensor in files of this llama.cpp architecture; None: not a projection."""
    found = _LAYER.fullmatch(tensor)
    if found is None:
        return None
    module = _modules(architecture).get(found[2])
    return None if module is None else LayerModule(int(found[1]), module)


def tensor_name(module: LayerModule, architecture: str, tensors: Collection[str]) -> str:
    """Return the name of a projection's weight tensor among those of a file. Inverse of `module_of`."""
    names = (name for name, known in _modules(architecture).items() if known == module.module)
    (found,) = (each for name in names if (each := f"blk.{module.layer}.{name}.weight") in tensors)
    return found


def _modules(architecture: str) -> Mapping[str, str]:
    known = BY_NAME.get(architecture)
    if architecture in _OWN:
        return _OWN[architecture]
    if known is not None and known.recurrent:  # there attn_qkv belongs to layers without attention
        return {tensor: module for tensor, module in _MODULES.items() if tensor != "attn_qkv"}
    return _FUSED if known is not None and known.fused else _MODULES
