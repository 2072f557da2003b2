"""llama.cpp's names of a pack's architectures and of the projections of their layers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

CLASSES: Mapping[str, str] = {
    "GemmaForCausalLM": "gemma",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
    "GraniteForCausalLM": "granite",
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "Phi3ForCausalLM": "phi3",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "SmolLM3ForCausalLM": "smollm3",
}
"""Hugging Face class → general.architecture of its GGUF files."""
INTERLEAVED = frozenset(("llama", "granite", "smollm3"))
"""Architectures whose files order query and key rows differently from transformers: rotary embedding pairs adjacent
rows, not the two halves of a head."""
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
_STACKED = {"phi3": {"ffn_up": "gate_up_proj"}}
"""Architecture → tensors that stack two projections."""
_LAYER = re.compile(r"blk\.(\d{1,9})\.(.+)\.weight", re.ASCII)


@dataclass(frozen=True, slots=True)
class LayerModule:
    """A projection: its layer and its name in PEFT's `target_modules`."""

    layer: int
    module: str


def gguf_name(architecture: str) -> str | None:
    """Return the general.architecture of a manifest's architecture; None for an unknown class."""
    if architecture in CLASSES:
        return CLASSES[architecture]
    return None if "For" in architecture else architecture  # a pack imported from GGUF already has llama.cpp's name


def module_of(tensor: str, architecture: str) -> LayerModule | None:
    """Return the projection of a weight tensor in files of this llama.cpp architecture; None: not a projection."""
    found = _LAYER.fullmatch(tensor)
    if found is None:
        return None
    module = {**_MODULES, **_STACKED.get(architecture, {})}.get(found[2])
    return None if module is None else LayerModule(int(found[1]), module)


def tensor_name(module: LayerModule, architecture: str) -> str:
    """Return the name of a projection's weight tensor. Inverse of `module_of`."""
    names = {**_MODULES, **_STACKED.get(architecture, {})}
    (name,) = (tensor for tensor, known in names.items() if known == module.module)
    return f"blk.{module.layer}.{name}.weight"
