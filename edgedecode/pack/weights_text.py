"""Describes how a model's weights are stored, in a few words."""

from edgedecode.gguf.contents import TYPE_NAMES

from .entries import ModelEntry


def quantization(entry: ModelEntry) -> str:
    """Return the types of the layers' matrices and of the head, and the recipe's name.

    Those of an imported GGUF file have ggml's names, as in the file, the most common first.
    """
    if entry.quantization.partition(",")[0] in TYPE_NAMES.values():
        return f"{entry.quantization}; head and embedding {entry.head_bits} bits"
    body = f"int{entry.bits}, blocks of {entry.block_size}" if entry.bits < 16 else f"float{entry.bits}"
    head = f"{'int' if entry.head_bits < 16 else 'float'}{entry.head_bits}"
    return f"{body}; head and embedding {head}" + (f"; recipe {entry.quantization}" if entry.quantization else "")
