"""What a GGUF file says of the model in it, checked before native code sees the file, which aborts on wrong numbers.

Knows what llama.cpp reads and asserts of a model; the format itself is `contents`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path

from edgedecode.errors import ManifestError
from edgedecode.manifest import ModelEntry

from .architectures import gguf_name
from .contents import Contents, Tensor, read_contents
from .fields import TOKENS

__all__ = ["Header", "check_header", "read_header"]

FLOAT_TYPES = (0, 1, 28, 30)
EMBEDDING = "token_embd.weight"
NO_VOCABULARY = ("none", "no_vocab")
FLOAT_NBYTES = 4
MOST_LAYERS = 512
_POSITIVE = ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon", "rope.freq_base")
"""Numbers that the engine asserts, or computes nonsense with, unless they are finite and above 0."""


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
    contents = read_contents(path)
    if not contents.tensors:
        raise ManifestError(f"{path} holds a vocabulary and no weights: export the model itself")
    header = _header(contents, path)
    if contents.twice is not None and contents.fields.get("tokenizer.ggml.model") not in NO_VOCABULARY:
        raise ManifestError(f"{path} lists the token {contents.twice[:40]!r} twice: export it again from its source")
    return header


def check_header(header: Header, entry: ModelEntry, *, path: Path) -> None:
    """Raise ManifestError unless the file holds a model of the entry's architecture and sizes."""
    wanted = gguf_name(entry.architecture)
    if wanted is not None and wanted != header.architecture:
        raise ManifestError(
            f"{path} has the architecture {header.architecture!r}, the manifest says {entry.architecture}: export the "
            f"pack again"
        )
    pairs = {
        "rows": (header.rows, entry.rows),
        "layers": (header.layers, entry.layers),
        "hidden size": (header.hidden_size, entry.hidden_size),
        "KV heads": (header.kv_heads, entry.kv_heads),
        "head size": (header.head_size, entry.head_size),
    }
    for name, (found, said) in pairs.items():
        if found not in (said, 0):  # recurrent models have no heads
            raise ManifestError(f"{path} has {name} {found}, the manifest says {said}: export the pack again")


def _header(contents: Contents, path: Path) -> Header:
    architecture = contents.fields.get("general.architecture")
    embedding = contents.tensors.get(EMBEDDING)
    if not isinstance(architecture, str) or embedding is None or len(embedding.shape) != 2:
        raise ManifestError(f"{path} holds no language model (no architecture or embedding): export the pack again")
    hidden, rows = embedding.shape
    for name in _POSITIVE:
        value = contents.fields.get(f"{architecture}.{name}", 1.0)
        if not (isinstance(value, (int, float)) and isfinite(value) and value > 0):
            raise _damaged(path, f"its {name} is {value}")

    def size(name: str) -> int:
        return contents.integer(f"{architecture}.{name}")

    listed = contents.fields.get(TOKENS) or size("vocab_size") or rows
    if listed != rows:
        raise ManifestError(f"{path} lists {listed} tokens for {rows} rows: export the pack again")
    if not 0 < size("block_count") <= MOST_LAYERS:
        raise _damaged(path, f"it has {size('block_count') or 'no'} layers")
    heads = size("attention.head_count")
    header = Header(
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
    _check_heads(header, rotated=size("rope.dimension_count"), path=path)
    return header


def _check_heads(header: Header, *, rotated: int, path: Path) -> None:
    """Refuse what the attention's kernels assert of heads."""
    if header.heads and header.heads % header.kv_heads:
        raise _damaged(path, f"its {header.heads} heads do not share {header.kv_heads} KV heads evenly")
    if rotated % 2 or (header.heads and rotated > header.head_size):
        raise _damaged(path, f"it rotates {rotated} values of heads of {header.head_size}")


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


def _damaged(path: Path, what: str) -> ManifestError:
    return ManifestError(f"{path} is truncated or damaged ({what}): copy or export it again")
