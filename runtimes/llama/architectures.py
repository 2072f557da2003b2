"""What llama.cpp calls the architectures that packs name, and where an adapter's projections lie in its files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from edgedecode.manifest import STACKS

from ..projections import Projection

if TYPE_CHECKING:
    from .header import Header

__all__ = ["CLASSES", "INTERLEAVED", "gguf_name", "lora_modules", "lora_projections", "tensor_name"]

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
"""Architectures whose files hold query and key rows in another order than transformers: neighbours are rotated, not
halves of a head."""
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
"""Tensor → projection, by its name in PEFT's `target_modules`."""


def gguf_name(architecture: str) -> str | None:
    """Return the general.architecture of a manifest's architecture; None for a class that is not known."""
    if architecture in CLASSES:
        return CLASSES[architecture]
    return None if "For" in architecture else architecture  # a pack made from a GGUF file has the file's own name


def lora_projections(header: Header) -> Iterator[Projection]:
    """Yield the projections of the file that an adapter of PEFT may change; none where their order is not known."""
    if header.architecture not in CLASSES.values():
        return
    for name, tensor in header.tensors.items():
        parts = name.split(".")
        if len(parts) == 4 and parts[0] == "blk" and parts[3] == "weight" and len(tensor.shape) == 2:
            module = _MODULES.get(parts[2])
            if module == "up_proj" and f"blk.{parts[1]}.ffn_gate.weight" not in header.tensors:
                module = "gate_up_proj"  # Phi-3 holds both as one
            if module and parts[1].isdecimal():
                yield Projection(int(parts[1]), module, inputs=tensor.shape[0], outputs=tensor.shape[1])


def lora_modules(projections: list[Projection]) -> tuple[str, ...]:
    """Return the projections' names, and those of the parts of stacked ones."""
    own = {projection.module for projection in projections}
    return tuple(sorted(own.union(*(STACKS[module] for module in own if module in STACKS))))


def tensor_name(projection: Projection) -> str:
    """Return the name of a projection's weight in the file."""
    module = "up_proj" if projection.module == "gate_up_proj" else projection.module
    (name,) = (tensor for tensor, known in _MODULES.items() if known == module)
    return f"blk.{projection.layer}.{name}.weight"
