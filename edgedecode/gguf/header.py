"""What a GGUF file says of the model in it, checked before native code sees the file, which aborts on wrong numbers.

Knows what llama.cpp reads and asserts of a model; the format itself is `contents`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edgedecode.errors import ManifestError

from .assertions import check_assertions
from .contents import Contents, Tensor, read_contents
from .fields import TOKENS

__all__ = ["EMBEDDING", "OUTPUT", "Header", "header_of", "read_header"]

FLOAT_TYPES = (0, 1, 28, 30)
EMBEDDING = "token_embd.weight"
OUTPUT = "output.weight"
NO_VOCABULARY = ("none", "no_vocab")
FLOAT_NBYTES = 4


@dataclass(frozen=True, slots=True)
class Header:
    """What a GGUF file says of its model; 0 where it does not say."""

    architecture: str
    layers: int
    rows: int
    """Rows of the embedding: the logits' width."""
    context: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_size: int
    mlp_size: int
    window: int
    quantized_nbytes: int
    """Bytes of quantized matrices, which the engine may repack into memory of its own."""
    recurrent_nbytes: int = 0
    """An upper bound of what recurrent layers keep of one sequence; 0: no such layers, or of an unknown kind."""
    tensors: Mapping[str, Tensor] = field(default_factory=dict, repr=False)


def read_header(path: Path) -> Header:
    """Read the header of the GGUF file at `path` and check that its tensors lie inside the file.

    Raises ManifestError in one line for a file that is missing, truncated, foreign, big-endian, newer, split, or holds
    a vocabulary only, and for numbers that the engine asserts.
    """
    return header_of(read_contents(path), path)


def header_of(contents: Contents, path: Path) -> Header:
    """Return what the contents of the file at `path` say of its model. Raises ManifestError as `read_header`."""
    if not contents.tensors:
        raise ManifestError(f"{path} holds a vocabulary and no weights: export the model itself")
    header = _header(contents, path)
    if contents.twice is not None and contents.fields.get("tokenizer.ggml.model") not in NO_VOCABULARY:
        raise ManifestError(f"{path} lists the token {contents.twice[:40]!r} twice: convert it again from its source")
    return header


def _header(contents: Contents, path: Path) -> Header:
    architecture = contents.fields.get("general.architecture")
    embedding = contents.tensors.get(EMBEDDING)
    if not isinstance(architecture, str) or embedding is None or len(embedding.shape) != 2:
        raise ManifestError(f"{path} holds no language model (no architecture or embedding): give another")
    hidden, rows = embedding.shape
    check_assertions(contents, architecture, path=path)

    def size(name: str) -> int:
        return contents.integer(f"{architecture}.{name}")

    listed = contents.fields.get(TOKENS) or size("vocab_size") or rows
    if listed != rows:
        raise ManifestError(f"{path} lists {listed} tokens for {rows} rows: convert or export it again")
    heads = size("attention.head_count")
    return Header(
        architecture=architecture,
        layers=size("block_count"),
        rows=rows,
        context=size("context_length"),
        hidden_size=hidden,
        heads=heads,
        kv_heads=size("attention.head_count_kv") or heads,
        head_size=size("attention.key_length") or (hidden // heads if heads else 0),
        mlp_size=size("feed_forward_length"),
        window=size("attention.sliding_window"),
        quantized_nbytes=sum(tensor.nbytes for tensor in contents.tensors.values() if tensor.type not in FLOAT_TYPES),
        recurrent_nbytes=FLOAT_NBYTES * size("block_count") * _recurrent_values(contents, architecture, hidden),
        tensors=contents.tensors,
    )


def _recurrent_values(contents: Contents, architecture: str, hidden: int) -> int:
    """Return what one recurrent layer keeps of a sequence, in values (n_embd_r and n_embd_s of llama-hparams.cpp)."""

    def size(name: str) -> int:
        return contents.integer(f"{architecture}.{name}")

    if head := size("wkv.head_size"):  # RWKV
        return hidden * (head + (size("token_shift_count") or 2))
    if head := size("kda.head_dim"):
        heads = size("attention.head_count")
        return heads * head * (head + 3 * max(size("ssm.conv_kernel") - 1, 3))
    if kernel := size("shortconv.l_cache"):  # LFM2
        return hidden * (kernel - 1)
    inner, state = size("ssm.inner_size"), size("ssm.state_size")
    return state * inner + max(0, size("ssm.conv_kernel") - 1) * (inner + 2 * size("ssm.group_count") * state)
