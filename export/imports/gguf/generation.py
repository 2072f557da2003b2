"""A GGUF file's own defaults for decoding, and its chat template."""

from __future__ import annotations

from edgedecode.pack.manifest import Generation
from edgedecode.text.chat_template import ChatTemplate

from ...pack_texts import compiled_template
from .source import GgufSource

__all__ = ["read_gguf_generation", "read_gguf_template"]

_SAMPLING = "general.sampling."


def read_gguf_generation(source: GgufSource) -> Generation:
    """Collect whatever ends an answer, and the sampling values of newer files; what cannot be used is left out."""
    tokens, specials, metadata = source.vocabulary.tokens, source.specials, source.metadata
    top_k = metadata.integer(_SAMPLING + "top_k")
    return Generation(
        end_token_ids=specials.ends,
        bos_token="" if specials.beginning is None else tokens[specials.beginning],
        eos_token=tokens[specials.ends[0]] if specials.ends else "",
        temperature=_within(metadata.number(_SAMPLING + "temp"), high=100.0),
        top_k=top_k if top_k is not None and top_k > 0 else None,
        top_p=_within(metadata.number(_SAMPLING + "top_p"), high=1.0) or None,
        min_p=_within(metadata.number(_SAMPLING + "min_p"), high=1.0),
        repetition_penalty=_within(metadata.number(_SAMPLING + "penalty_repeat"), high=100.0) or None,
    )


def read_gguf_template(source: GgufSource, generation: Generation) -> ChatTemplate | None:
    """Return the chat template, None without one. Raises ExportError for a broken one."""
    text = source.metadata.text("tokenizer.chat_template")
    return compiled_template(text, generation, name=source.name) if text else None


def _within(value: float | None, *, high: float) -> float | None:
    return value if value is not None and 0 <= value <= high else None
