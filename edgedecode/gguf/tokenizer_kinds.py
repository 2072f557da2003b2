"""The tokenizers in GGUF files that can be rebuilt: kinds of vocabularies, and the names of their pre-tokenizers.

Source: src/llama-vocab.cpp of llama.cpp.
"""

from collections.abc import Mapping
from pathlib import Path

from edgedecode.errors import ManifestError

from .contents import Contents

KINDS: tuple[str, ...] = (BYTE_LEVEL := "gpt2", SCORED := "llama", GEMMA4 := "gemma4")
"""Byte-level BPE, which has a pre-tokenizer; SentencePiece's scored BPE; the same with merges for scores."""
PRETOKENIZERS: Mapping[str, tuple[str, ...]] = {
    "llama-bpe": ("llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
    "dbrx": ("smaug-bpe",),
    "qwen2": ("deepseek-r1-qwen", "stablelm2", "megrez", "kormo"),
    "qwen35": (),
    "tekken": (),
    "gpt-4o": ("llama4", "kanana2"),
    "smollm": ("starcoder", "refact", "command-r", "codeshell"),
    "gpt-2": ("phi-2", "mpt", "olmo", "gigachat", "mellum", "a.x-4.0"),
}
"""Pre-tokenizer → other names of the same."""
NAMES = (*PRETOKENIZERS, *(name for others in PRETOKENIZERS.values() for name in others))
TOKENIZER_FILE = "tokenizer.json"
REMEDY = f"put the model's {TOKENIZER_FILE} next to it"


def tokenizer_fault(model: str, pre: str) -> str:
    """Return why a vocabulary of this kind and pre-tokenizer cannot be rebuilt; empty: it can."""
    if model not in KINDS:
        found, known = f"a vocabulary of the kind {model[:40] or 'none'!r}", KINDS
    elif model == BYTE_LEVEL and pre not in NAMES:
        found, known = f"the pre-tokenizer {pre[:40] or 'none'!r} (tokenizer.ggml.pre)", NAMES
    else:
        return ""
    return f"has {found}, supported are {', '.join(known)}: {REMEDY}"


def check_tokenizer(contents: Contents, path: Path) -> None:
    """Raise ManifestError for a file whose tokenizer cannot be rebuilt and does not lie next to it."""
    model, pre = (contents.fields.get(f"tokenizer.ggml.{key}", "") for key in ("model", "pre"))
    if (fault := tokenizer_fault(str(model), str(pre))) and not path.with_name(TOKENIZER_FILE).is_file():
        raise ManifestError(f"{path} {fault}")
