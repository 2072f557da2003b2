"""Reads a model's sizes from a GGUF file, and refuses files that would crash llama.cpp.

llama.cpp asserts some properties of a file when it loads or first runs it, which ends the process. These are checked
here; they were found by changing every field and tensor of small files (tests/contract/test_llama_refusals.py lists the
cases). Files that the engine itself refuses with a reason are left to it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from shlex import quote

from edgedecode.errors import ManifestError

from .architectures import BY_NAME, HEADS
from .contents import Contents, Tensor, read_contents
from .fields import TOKENS

FLOAT_TYPES = (0, 1, 28, 30)
EMBEDDING = "token_embd.weight"
OUTPUT = "output.weight"
NO_VOCABULARY = ("none", "no_vocab")
FLOAT_NBYTES = 4


@dataclass(frozen=True, slots=True)
class Header:
    """A GGUF file's description of its model; 0: not specified."""

    architecture: str
    layers: int
    rows: int
    """Rows of the embedding, which is the width of the logits."""
    context: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_size: int
    mlp_size: int
    window: int
    kv_layers: int
    """Layers with keys and values."""
    quantized_nbytes: int
    """Bytes of quantized matrices, which the engine may repack into separate memory."""
    recurrent_nbytes: int = 0
    """An upper bound of the recurrent state of one sequence; 0: no recurrent layers, or of an unknown kind."""
    tensors: Mapping[str, Tensor] = field(default_factory=dict, repr=False)


def read_header(path: Path) -> Header:
    """Read the header of the GGUF file at `path`, and check that its tensors are inside the file.

    Raises ManifestError in one line for a file that `read_contents` refuses or that holds only a vocabulary, and for
    values that violate the engine's assertions.
    """
    return header_of(read_contents(path), path)


def header_of(contents: Contents, path: Path) -> Header:
    """Return the header from the contents of the file at `path`. Raises ManifestError like `read_header`."""
    if not contents.tensors:
        raise ManifestError(f"{path} holds a vocabulary and no weights: export the model itself")
    header = _header(contents, path)
    if contents.twice is not None and contents.fields.get("tokenizer.ggml.model") not in NO_VOCABULARY:
        raise ManifestError(f"{path} lists the token {contents.twice[:40]!r} twice: convert it again from its source")
    return header


def _header(contents: Contents, path: Path) -> Header:
    architecture = contents.fields.get("general.architecture")
    embedding = contents.tensors.get(EMBEDDING)
    if architecture in HEADS:
        raise ManifestError(
            f"{path} holds a drafting head, which no command runs alone: `edgedecode head add PACK {quote(str(path))}`"
        )
    if not isinstance(architecture, str) or embedding is None or len(embedding.shape) != 2:
        raise ManifestError(f"{path} does not hold a language model (no architecture or embedding): give another file")
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
        kv_layers=size("block_count") - _recurrent_layers(contents.tensors),
        quantized_nbytes=sum(tensor.nbytes for tensor in contents.tensors.values() if tensor.type not in FLOAT_TYPES),
        recurrent_nbytes=FLOAT_NBYTES * size("block_count") * _recurrent_values(contents, architecture, hidden),
        tensors=contents.tensors,
    )


def _recurrent_layers(tensors: Mapping[str, Tensor]) -> int:
    """Return how many layers have tensors of a recurrence and no matrix of keys."""
    layers = {name.split(".")[1] for name in tensors if ".ssm_" in name or ".shortconv." in name}
    return sum(f"blk.{layer}.attn_k.weight" not in tensors for layer in layers)


def _recurrent_values(contents: Contents, architecture: str, hidden: int) -> int:
    """Return the values in one recurrent layer's state of a sequence (n_embd_r and n_embd_s of llama-hparams.cpp)."""

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


F32 = 0
NO_MATMUL = {24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64"}
"""Tensor types that the engine cannot multiply with."""
FLOAT32_ONLY = (".ssm_a.", ".ssm_conv1d.", ".shortconv.conv.")
"""Small arrays of recurrent layers, which must be 32-bit floats."""
MOST_LAYERS, MOST_EXPERTS, MOST_POSITIONS = 512, 1024, 1 << 24
SCALINGS = ("none", "linear", "yarn", "longrope")
ROTATING = frozenset((*BY_NAME, "lfm2moe"))
_POSITIVE = ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon", "rope.freq_base")
"""Values that must be finite and above 0: others violate an assertion of the engine, or give garbage."""
_NOT_NEGATIVE = (
    *("rope.freq_base_swa", "rope.scaling.factor", "rope.scaling.attn_factor"),
    *("rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow", "rope.scaling.original_context_length"),
    *("attention.scale", "embedding_scale", "residual_scale", "logit_scale"),
    *("attn_logit_softcapping", "final_logit_softcapping"),
)
"""Values of which 0 stands for none."""


def check_assertions(contents: Contents, architecture: str, *, path: Path) -> None:
    """Raise ManifestError for the first value or tensor that would end the process."""
    fault = (
        _number_fault(contents, architecture)
        or _head_fault(contents, architecture)
        or _expert_fault(contents, architecture)
        or _tensor_fault(contents)
    )
    if fault:
        raise ManifestError(f"{path} is damaged or of an unknown kind ({fault}): copy, download or export it again")


_TRANSLATED = {"gemma3": "rope.global.freq_base"}
"""Architecture → a field of files that Ollama converted itself, under other names than llama.cpp's."""


def _number_fault(contents: Contents, architecture: str) -> str:
    if f"{architecture}.{_TRANSLATED.get(architecture)}" in contents.fields:
        return "an older Ollama wrote its fields under names of its own"
    for name in (*_POSITIVE, *_NOT_NEGATIVE):
        value = contents.fields.get(f"{architecture}.{name}", 1.0)
        if not (
            isinstance(value, (int, float)) and isfinite(value) and value >= 0 and (value or name in _NOT_NEGATIVE)
        ):
            return f"its {name} is {value}"
    layers = contents.integer(f"{architecture}.block_count")
    if not 0 < layers <= MOST_LAYERS:
        return f"it has {layers or 'no'} layers"
    if (context := contents.integer(f"{architecture}.context_length")) > MOST_POSITIONS:
        return f"it claims a context of {context} tokens"
    if (ahead := contents.integer(f"{architecture}.nextn_predict_layers")) >= layers:
        return f"{ahead} of its {layers} layers predict further tokens"
    if (shared := contents.integer(f"{architecture}.attention.shared_kv_layers")) and shared + 2 > layers:
        return f"{shared} of its {layers} layers read the keys and values of other layers"
    if contents.fields.get(f"{architecture}.attention.causal", 1) != 1:
        return "its attention is not causal: it is not a decoder"
    pattern = f"{architecture}.attention.sliding_window_pattern"
    if contents.fields.get(pattern) == 1 and pattern not in contents.layers:
        return "no layer has the sliding window that the file declares"
    scaling = contents.fields.get(f"{architecture}.rope.scaling.type", SCALINGS[0])
    return "" if scaling in SCALINGS else f"its rotary scaling is {scaling!r}"


def _head_fault(contents: Contents, architecture: str) -> str:
    """Describe why the attention kernels cannot run these heads; empty: they can."""
    key = f"{architecture}.attention.head_count"
    heads, size = contents.integer(key), contents.integer(f"{architecture}.attention.key_length")
    hidden = contents.integer(f"{architecture}.embedding_length")
    rotated = contents.integer(f"{architecture}.rope.dimension_count")
    counts = set(contents.layers.get(f"{key}_kv", (contents.integer(f"{key}_kv"),)))
    if any(count and heads % count for count in counts):
        return f"its {heads} heads do not share {sorted(counts)} KV heads evenly"
    if not contents.fields.get(f"{architecture}.rope.dimension_count", 1) and architecture in ROTATING:
        return "its rotary embedding rotates nothing, with which the engine never ends"
    inner, recurrent = (contents.integer(f"{architecture}.ssm.{name}") for name in ("inner_size", "time_step_rank"))
    if recurrent and (inner % recurrent or (architecture == "granitehybrid" and inner != 2 * hidden)):
        return f"its recurrent layers have {recurrent} heads and {inner} values"
    if rotated % 2 or (heads and rotated > (size or hidden // heads)):
        return f"its rotary embedding rotates {rotated} values of heads of {size or hidden // max(1, heads)}"
    return _query_fault(contents, architecture, heads * (size or hidden // max(1, heads)))


def _query_fault(contents: Contents, architecture: str, width: int) -> str:
    """Describe a query product whose outputs do not divide into queries. Skips architectures with mixed head sizes."""
    fields = (f"{architecture}.attention.key_length_swa", f"{architecture}.attention.head_count")
    if not width or fields[0] in contents.fields or fields[1] in contents.layers:
        return ""
    for name, tensor in contents.tensors.items():
        if name.endswith(".attn_q.weight") and len(tensor.shape) == 2 and tensor.shape[1] % width:
            return f"{name[:40]} returns {tensor.shape[1]} values for queries of {width}"
    return ""


def _expert_fault(contents: Contents, architecture: str) -> str:
    count = contents.integer(f"{architecture}.expert_count")
    used = contents.layers.get(f"{architecture}.expert_used_count")
    uses = used or (contents.integer(f"{architecture}.expert_used_count"),)
    if count > MOST_EXPERTS or max(uses) > count or (count and not max(uses)):
        return f"it uses {max(uses)} of {count} experts"
    return ""


def _tensor_fault(contents: Contents) -> str:
    for tensor in contents.tensors.values():
        if len(tensor.shape) == 1 and tensor.type != F32:
            return f"{tensor.name[:40]} is a vector, and not of 32-bit floats"
        if tensor.type != F32 and any(part in f"{tensor.name}." for part in FLOAT32_ONLY):
            return f"{tensor.name[:40]} is not of 32-bit floats"
        if tensor.type in NO_MATMUL:
            return f"{tensor.name[:40]} is of type {NO_MATMUL[tensor.type]}"
    return ""
