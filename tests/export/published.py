"""Models as published, except for depth and weights: `write_published` writes one with random weights.

published.json holds the config.json and generation_config.json of each named repository (as of 2025), with fewer
layers. The texts of ordinary tokens and the long-rope factors (in the published number) are made up.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
import torch
from safetensors.torch import save_file
from tokenizers import decoders, models, normalizers, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM

__all__ = ["PUBLISHED", "Published", "write_published"]


@dataclass(frozen=True)
class Published:
    """A model's configuration and tokenizer. pieces: a SentencePiece tokenizer; otherwise byte-level, like GPT-2's."""

    source: str
    ends: int | Sequence[int]
    tokens: int
    """Number of ids in the tokenizer; the model may have more rows."""
    pieces: bool
    specials: Mapping[int, str]
    config: Mapping[str, Any]
    defaults: Mapping[str, Any]
    """generation_config.json without its end tokens."""


def _read() -> dict[str, Published]:
    rows = json.loads(Path(__file__).with_suffix(".json").read_text())
    return {
        name: Published(**{**row, "specials": {int(id): text for id, text in row["specials"].items()}})
        for name, row in rows.items()
    }


PUBLISHED: Mapping[str, Published] = _read()


def write_published(folder: Path, model: Published) -> Path:
    """Write a Hugging Face folder with bfloat16 weights with which every layer affects the logits."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**model.config, "torch_dtype": "bfloat16"}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": model.ends, **model.defaults}))
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    (folder / "README.md").write_text("---\nlicense: other\n---\n")
    _tokenizer(model).save(str(folder / "tokenizer.json"))
    usual = model.config["eos_token_id"]
    first = usual[0] if isinstance(usual, list) else usual
    bos = model.specials[model.config["bos_token_id"]]
    named = {"bos_token": bos, "eos_token": model.specials[first]}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    save_file(_weights(folder), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    """Set every parameter to random numbers.

    Matrices preserve the norm of their input. Layers outweigh the embedding: a tied head would repeat every token.
    """
    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    generator = torch.Generator().manual_seed(0)
    gemma = "Gemma" in type(network).__name__  # Gemma scales its embedding, and its norms add 1 to their weights
    scale = math.sqrt(network.config.hidden_size) if gemma else getattr(network.config, "embedding_multiplier", 1)
    found = {}
    for name, parameter in network.named_parameters():
        deviation = 0.02 / scale if "embed" in name else 1.5 / math.sqrt(parameter.shape[-1])
        if parameter.dim() == 1:
            deviation = 0.1
        values = torch.empty(parameter.shape, dtype=torch.bfloat16).normal_(0, deviation, generator=generator)
        found[name] = values + 1 if "norm" in name and not gemma else values
    return found


def _tokenizer(model: Published) -> tokenizers.Tokenizer:
    """Build a tokenizer with the special tokens at their published ids, and an alphabet and made-up tokens between."""
    alphabet = [f"<0x{byte:02X}>" for byte in range(256)] + ["\u2581"] if model.pieces else [*_alphabet(), "he"]
    spare = iter(alphabet)
    tokens = [
        model.specials.get(id) or next(spare, None) or f"{chr(0x2581) if model.pieces else ''}w{id}"
        for id in range(model.tokens)
    ]
    vocabulary = {token: id for id, token in enumerate(tokens)}
    if model.pieces:
        inner = tokenizers.Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
        inner.normalizer = normalizers.Replace(" ", "\u2581")
        inner.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    else:
        inner = tokenizers.Tokenizer(models.BPE(vocabulary, [("h", "e")]))
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(list(model.specials.values()))
    return inner


def _alphabet() -> list[str]:
    return sorted(pre_tokenizers.ByteLevel.alphabet())
