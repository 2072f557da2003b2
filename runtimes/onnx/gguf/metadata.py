"""The metadata of a GGUF file whose graph is built, with llama.cpp's defaults of missing fields."""

from dataclasses import dataclass, replace
from pathlib import Path

from edgedecode.errors import ManifestError
from edgedecode.gguf.architectures import AFTER_NORMS, BY_NAME, HEAD, HEAD_IDS, HEAD_NORMS, HEAD_TAPS, Architecture
from edgedecode.gguf.contents import Contents, read_contents
from edgedecode.gguf.header import check_assertions, header_of

_NO_CAP = 1e4
_NORMS = ("attn_norm", "ffn_norm", *AFTER_NORMS)
_PRODUCTS = ("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
_LAYER_PARTS = frozenset((*_PRODUCTS, *HEAD_NORMS, *_NORMS))
_MODEL_PARTS = frozenset(("token_embd", "output", "output_norm"))


@dataclass(frozen=True, slots=True)
class Metadata:
    """The fields of one file."""

    contents: Contents
    name: str
    """general.architecture."""

    @property
    def architecture(self) -> Architecture:
        return HEAD if self.is_head else BY_NAME[self.name]

    @property
    def is_head(self) -> bool:
        """Whether it is a drafting head, whose layer reads embedding and features side by side."""
        return self.name == HEAD.name

    def integer(self, key: str, default: int = 0) -> int:
        return self.contents.integer(f"{self.name}.{key}") or default

    def number(self, key: str, default: float) -> float:
        """Return a number; the default if it is 0, which stands for none (llama-model.cpp and llama-graph.cpp)."""
        value = self.contents.fields.get(f"{self.name}.{key}", default)
        return float(value) if isinstance(value, (int, float)) and value else default

    def text(self, key: str) -> str:
        value = self.contents.fields.get(f"{self.name}.{key}", "")
        return value if isinstance(value, str) else ""

    @property
    def layers(self) -> int:
        return self.integer("block_count")

    @property
    def hidden(self) -> int:
        return self.integer("embedding_length")

    @property
    def heads(self) -> int:
        return self.integer("attention.head_count")

    @property
    def kv_heads(self) -> int:
        return self.integer("attention.head_count_kv", self.heads)

    @property
    def head_size(self) -> int:
        return self.integer("attention.key_length", self.hidden // max(1, self.heads))

    @property
    def window(self) -> int:
        """The positions that layers with a window see; 0: no layer has one."""
        return self.integer("attention.sliding_window") if self.architecture.every else 0

    def cap(self, key: str, default: float) -> float:
        """Return a soft cap; 0: none, also for one that changes nothing, as a tanh near 0 would lose digits."""
        cap = self.contents.fields.get(f"{self.name}.{key}", default)
        return float(cap) if isinstance(cap, (int, float)) and cap < _NO_CAP else 0.0

    @property
    def score_scale(self) -> float:
        wide = self.layers == self.architecture.wide_layers
        size = self.hidden // self.heads if wide else self.head_size
        return self.number("attention.scale", size**-0.5)

    def has_window(self, layer: int) -> bool:
        key = "attention.sliding_window_pattern"
        if listed := self.contents.layers.get(f"{self.name}.{key}"):
            return bool(self.window and listed[layer % len(listed)])
        every = self.integer(key, self.architecture.every)
        return bool(self.window) and (every == 1 or layer % every < every - 1)

    def is_rotated(self, layer: int) -> bool:
        return not self.architecture.unrotated or (layer + 1) % self.architecture.unrotated != 0

    def knows(self, name: str) -> bool:
        """Return whether a model of these architectures may have this tensor."""
        part = name.removeprefix("blk.").partition(".")[2] if name.startswith("blk.") else ""
        stem = (part or name).removesuffix(".weight").removesuffix(".bias")
        return self.is_head or name.startswith("rope_") or stem in (_LAYER_PARTS if part else _MODEL_PARTS)

    def shape_fault(self, name: str, shape: tuple[int, ...]) -> str:
        """Describe a tensor whose sizes are not the model's; empty: they are, or the tensor's are not known."""
        layer, _, part = name.removeprefix("blk.").partition(".")
        queries, keys = self.heads * self.head_size, self.kv_heads * self.head_size
        read = 2 * self.hidden if self.is_head else self.hidden
        down = self.contents.tensors.get(f"blk.{layer}.ffn_down.weight")
        wide = self.integer("feed_forward_length") or (down.shape[0] if down else 0)
        stacked = f"blk.{layer}.ffn_gate.weight" not in self.contents.tensors
        sizes = {
            "attn_q": (read, queries),
            "attn_k": (read, keys),
            "attn_v": (read, keys),
            "attn_qkv": (self.hidden, queries + 2 * keys),
            "attn_output": (queries, self.hidden),
            "ffn_gate": (self.hidden, wide),
            "ffn_up": (self.hidden, 2 * wide if stacked else wide),
            "ffn_down": (wide, self.hidden),
            **dict.fromkeys(HEAD_NORMS, (self.head_size,)),
            **dict.fromkeys((*_NORMS, "attn_norm_2"), (self.hidden,)),
        }
        expected = sizes.get(part.removesuffix(".weight").removesuffix(".bias"), shape)
        expected = (self.hidden,) if name == "output_norm.weight" else expected
        if self.is_head:
            wide = self.integer("target_hidden_size", self.hidden)
            own = {"fc.weight": (HEAD_TAPS * wide, self.hidden), "enc.output_norm.weight": (HEAD_TAPS * wide,)}
            own |= {f"fc_norm.{index}.weight": (wide,) for index in range(HEAD_TAPS)}
            expected = own.get(name, expected)
        expected = expected[1:] if part.endswith(".bias") else expected
        return "" if shape == expected else f"{name[:60]} has the shape {list(shape)}, not {list(expected)}"


_READ: dict[tuple[Path, int, int], Metadata] = {}


def read_metadata(path: Path) -> Metadata:
    """Return a file's metadata, cached while the file is the same. Raises ManifestError."""
    try:
        state = path.stat()
    except OSError as error:
        raise ManifestError(f"{path} cannot be read ({error.strerror}): put it back, or name another file") from None
    key = path, state.st_mtime_ns, state.st_size
    if key not in _READ:
        _READ.clear()
        contents = read_contents(path)
        if contents.fields.get("general.architecture") == HEAD.name:
            floats = {name: tensor for name, tensor in contents.tensors.items() if name != HEAD_IDS}
            check_assertions(replace(contents, tensors=floats), HEAD.name, path=path)
            _READ[key] = Metadata(contents, HEAD.name)
        else:
            _READ[key] = Metadata(contents, header_of(contents, path).architecture)
    return _READ[key]
