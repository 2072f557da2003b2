"""Write GGUF files as another tool would: a random Llama with a vocabulary, and LoRA adapters for it."""

import mmap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import tokenizers
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter, Keys
from gguf.quants import quantize

from edgedecode.export.gguf.specials import read_specials, write_vocabulary
from edgedecode.export.gguf.vocabulary import Vocabulary, read_vocabulary
from edgedecode.export.imports.gguf_vocabulary import Metadata
from edgedecode.gguf.contents import Contents
from edgedecode.gguf.fields import FieldReader
from edgedecode.pack.manifest import Generation

Floats = npt.NDArray[np.float32]
HIDDEN, MLP, HEADS, HEAD_SIZE = 64, 96, 4, 16
TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"


@dataclass(frozen=True)
class File:
    """A model file. `rows` above the vocabulary are padding; `more` adds fields; `kind` is the type of the matrices."""

    rows: int = 352
    layers: int = 2
    architecture: str = "llama"
    kind: str = "F32"
    context: int = 256
    eos: str = "<|end|>"
    template: str | None = TEMPLATE
    stacked: bool = False
    """Whether query, key and value are one matrix, and gate and up."""
    pre: str | None = None
    model: str | None = None
    seed: int = 3
    added: Mapping[str, Floats] = field(default_factory=dict)
    """Matrices added to the random weights, by name."""
    replaced: Mapping[str, Floats] = field(default_factory=dict)
    """Tensors that take the place of the random weights, or come after them."""
    more: Callable[[GGUFWriter], None] = field(default=lambda writer: None)


def write_file(path: Path, inner: tokenizers.Tokenizer, file: File = File()) -> Path:
    """Write a complete model with the tokenizer's vocabulary."""
    writer = GGUFWriter(None, file.architecture)
    add_sizes(writer, file)
    add_vocabulary(writer, inner, file)
    file.more(writer)
    for name, values in tensors(file).items():
        add_tensor(writer, name, values, kind=file.kind)
    return finished(writer, path)


def add_sizes(writer: GGUFWriter, file: File) -> None:
    writer.add_name("tiny")
    writer.add_license("mit")
    writer.add_block_count(file.layers)
    writer.add_context_length(file.context)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(MLP)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_key_length(HEAD_SIZE)
    writer.add_value_length(HEAD_SIZE)
    writer.add_rope_dimension_count(HEAD_SIZE)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(file.rows)


def add_vocabulary(writer: GGUFWriter, inner: tokenizers.Tokenizer, file: File) -> Vocabulary:
    vocabulary = read_vocabulary(inner, rows=file.rows, name="tiny")
    generation = Generation(end_token_ids=(), eos_token=file.eos)
    specials = read_specials(inner, generation, name="tiny")
    changes = {key: value for key, value in (("pre", file.pre), ("model", file.model)) if value is not None}
    written = vocabulary if not changes else _changed(vocabulary, changes)
    write_vocabulary(writer, written, specials, chat_template=file.template)
    return vocabulary


def _changed(vocabulary: Vocabulary, changes: Mapping[str, str]) -> Vocabulary:
    from dataclasses import replace

    return replace(vocabulary, **changes)  # type: ignore[arg-type]


def tensors(file: File) -> dict[str, Floats]:
    """Return random weights large enough for clearly different logits."""
    rng = np.random.default_rng(file.seed)

    def normal(*sizes: int) -> Floats:
        return (rng.standard_normal(sizes) * 0.15).astype(np.float32)

    found = {"token_embd.weight": normal(file.rows, HIDDEN) * 4, "output_norm.weight": np.ones(HIDDEN, np.float32)}
    found["output.weight"] = normal(file.rows, HIDDEN)
    shapes = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), (HIDDEN, HIDDEN))
    shapes |= {"ffn_gate": (MLP, HIDDEN), "ffn_up": (MLP, HIDDEN), "ffn_down": (HIDDEN, MLP)}
    if file.stacked:
        shapes = {"attn_qkv": (3 * HIDDEN, HIDDEN), "attn_output": (HIDDEN, HIDDEN)}
        shapes |= {"ffn_up": (2 * MLP, HIDDEN), "ffn_down": (HIDDEN, MLP)}
    for layer in range(file.layers):
        found |= {f"blk.{layer}.{name}.weight": normal(*shape) for name, shape in shapes.items()}
        found |= {f"blk.{layer}.{norm}.weight": np.ones(HIDDEN, np.float32) for norm in ("attn_norm", "ffn_norm")}
    return {name: values + file.added.get(name, np.float32(0)) for name, values in found.items()} | file.replaced


def write_adapter(
    path: Path,
    *,
    architecture: str = "llama",
    modules: Sequence[str] = ("attn_q", "ffn_down"),
    hidden: int = HIDDEN,
    rank: int = 4,
    kind: str = "lora",
    more: Mapping[str, Floats] | None = None,
    invocation: Sequence[object] = (5, 6),
    tokens: GGUFValueType = GGUFValueType.UINT32,
) -> Path:
    """Write a LoRA for the first layer of a model with this hidden size; without `invocation` it is always active.

    tokens: the type of the invocation tokens.
    """
    writer = GGUFWriter(None, architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", kind)
    writer.add_float32("adapter.lora.alpha", 6.0)
    if invocation:
        key = Keys.Adapter.ALORA_INVOCATION_TOKENS
        writer.add_key_value(key, list(invocation), GGUFValueType.ARRAY, sub_type=tokens)
    for module in modules:
        inside = MLP if module == "ffn_down" else hidden
        add_tensor(writer, f"blk.0.{module}.weight.lora_a", np.ones((rank, inside), np.float32))
        add_tensor(writer, f"blk.0.{module}.weight.lora_b", np.ones((hidden, rank), np.float32))
    for name, values in (more or {}).items():
        add_tensor(writer, name, values)
    return finished(writer, path)


def add_tensor(writer: GGUFWriter, name: str, values: Floats, *, kind: str = "F32") -> None:
    if kind != "F32" and values.ndim == 2:
        chosen = GGMLQuantizationType[kind]
        writer.add_tensor(name, quantize(values, chosen), raw_dtype=chosen)
    else:
        writer.add_tensor(name, values)


def finished(writer: GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def fields_of(path: Path) -> Metadata:
    """Read the fields of a file, which may have only a vocabulary."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        reader = FieldReader(content, keep_arrays=True)
        reader.take(16)
        count = reader.integer("Q")
        fields = dict(reader.field() for _ in range(count))
    return Metadata(Contents(fields, reader.types, reader.layers, {}, None, reader.arrays))
