"""The metadata of a GGUF file whose graph is built, with llama.cpp's defaults of missing fields."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgedecode.errors import ManifestError
from edgedecode.gguf.architectures import (
    AFTER_NORMS,
    ASSISTANT,
    ATTENTION,
    BLOCK_HEAD,
    BY_NAME,
    CONVOLUTION,
    GATED_DELTA,
    HEAD,
    HEAD_IDS,
    HEAD_NORMS,
    HEAD_TAPS,
    HEADS,
    MAMBA2,
    Architecture,
)
from edgedecode.gguf.contents import Contents, read_contents
from edgedecode.gguf.header import check_assertions, header_of

from .gated_recurrence import GatedRecurrence

_NO_CAP = 1e4
_NORMS = ("attn_norm", "ffn_norm", *AFTER_NORMS)
_PRODUCTS = ("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
GATED = {
    GATED_DELTA: ("attn_gate", "ssm_conv1d", "ssm_alpha", "ssm_beta", "ssm_a", "ssm_dt", "ssm_norm", "ssm_out"),
    MAMBA2: ("ssm_in", "ssm_conv1d", "ssm_a", "ssm_d", "ssm_dt", "ssm_norm", "ssm_out"),
}
_RECURRENT = {**GATED, CONVOLUTION: ("shortconv.conv", "shortconv.in_proj", "shortconv.out_proj")}
"""The tensors of layers with something else than attention."""
_PER_LAYER = ("inp_gate", "proj", "post_norm", "layer_output_scale")
_LAYER_PARTS = frozenset((*_PRODUCTS, *HEAD_NORMS, *_NORMS, *_PER_LAYER))
_MODEL_PARTS = frozenset(
    ("token_embd", "output", "per_layer_token_embd", "per_layer_model_proj", "per_layer_proj_norm")
)


@dataclass(frozen=True, slots=True)
class Layer:
    """What one layer computes. Its own matrices' other sizes are those of its tensors."""

    mixer: str
    """`ATTENTION`, or what the layer has in its place."""
    heads: int
    kv_heads: int
    """0: a layer without attention."""
    head_size: int
    window: bool
    """Whether it sees only the last positions."""
    rotated: bool
    source: int
    """The layer whose keys and values it reads; another one's: it has none of its own. -1: a layer of the target's."""
    mlp: int
    """The width of its feed-forward part; 0: not specified."""

    @property
    def queries(self) -> int:
        return self.heads * self.head_size

    @property
    def keys(self) -> int:
        return self.kv_heads * self.head_size


@dataclass(frozen=True, slots=True)
class Metadata:
    """The fields of one file."""

    contents: Contents
    name: str
    """general.architecture."""

    @property
    def architecture(self) -> Architecture:
        if self.name in HEADS:
            return replace(HEADS[self.name], gated=bool(self.integer("attention.gated")))
        return BY_NAME[self.name]

    @property
    def is_head(self) -> bool:
        """Whether it is a drafting head."""
        return self.name in HEADS

    @property
    def is_eagle(self) -> bool:
        """Whether it is a head of EAGLE-3's form, whose layer reads embedding and features side by side."""
        return self.name == HEAD.name

    @property
    def is_assistant(self) -> bool:
        """Whether it is Gemma 4's assistant, whose layers read its target's keys and values."""
        return self.name == ASSISTANT.name

    @property
    def is_block(self) -> bool:
        """Whether it is a drafter of blocks, whose layers read features as further keys and values."""
        return self.name == BLOCK_HEAD.name

    @property
    def taps(self) -> int:
        """The places of its target that a head reads."""
        listed = self.contents.layers.get(f"{self.name}.target_layers", ()) if self.is_block else ()
        return len(listed) or (HEAD_TAPS if self.is_eagle else 1)

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
        """The layers of the model itself: those behind them draft."""
        return self.integer("block_count") - self.integer("nextn_predict_layers")

    @property
    def hidden(self) -> int:
        return self.integer("embedding_length")

    def listed(self, key: str, layer: int, default: int = 0) -> int:
        """Return a layer's value of a field that is one number, or one for each layer; only those may be 0."""
        values = self.contents.layers.get(f"{self.name}.{key}")
        return values[layer] if values is not None and layer < len(values) else self.integer(key, default)

    def layer(self, index: int) -> Layer:
        """Return the facts of one layer."""
        heads = self.listed("attention.head_count", index)
        kv_heads = 0 if self._is_recurrent(index) else self.listed("attention.head_count_kv", index, heads)
        window = self._has_window(index)
        own = self.layers - self.integer("attention.shared_kv_layers")
        alike = [each for each in range(min(index + 1, own)) if self._has_window(each) == window]
        return Layer(
            mixer=ATTENTION if kv_heads else self.architecture.recurrent or ATTENTION,
            heads=heads,
            kv_heads=kv_heads,
            head_size=self.integer("attention.key_length_swa", self.head_size) if window else self.head_size,
            window=window,
            rotated=self._is_rotated(index),
            source=-1 if self.is_assistant else index if index < own or not alike else alike[-1],
            mlp=self.listed("feed_forward_length", index),
        )

    @property
    def every_layer(self) -> list[Layer]:
        return [self.layer(index) for index in range(self.layers)]

    @property
    def head_size(self) -> int:
        return self.integer("attention.key_length", self.hidden // max(1, self.integer("attention.head_count")))

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
        size = self.hidden // self.integer("attention.head_count") if wide else self.head_size
        return self.number("attention.scale", self.architecture.score_scale or size**-0.5)

    @property
    def per_layer(self) -> int:
        """The values that each layer reads of a token's second embedding; 0: there is none."""
        return self.integer("embedding_length_per_layer_input")

    def temperatures(self, context: int) -> npt.NDArray[np.float32] | None:
        """Return by what queries are multiplied at each position (llama-graph.cpp, attn_temp); None: by nothing."""
        scale = self.number("attention.temperature_scale", 0.0) if self.architecture.tempered else 0.0
        original = self.integer("rope.scaling.original_context_length", self.integer("context_length"))
        if not scale or context <= original:
            return None
        return (1 + scale * np.log(1 + np.arange(context) // original)).astype(np.float32)

    @property
    def recurrence(self) -> GatedRecurrence:
        """The sizes of layers with a gated recurrence."""
        heads = self.integer("ssm.time_step_rank", 1)
        return GatedRecurrence(
            heads=heads,
            key_heads=self.integer("ssm.group_count", 1),
            key_size=self.integer("ssm.state_size"),
            value_size=self.integer("ssm.inner_size") // heads,
            width=self.integer("ssm.conv_kernel"),
            delta=self.architecture.recurrent == GATED_DELTA,
        )

    def is_draft(self, name: str) -> bool:
        """Return whether a tensor belongs to layers behind the model's own, which draft (multi-token prediction).

        Files of older versions of Ollama name them as the checkpoint does.
        """
        layer = name.removeprefix("blk.").partition(".")[0]
        return name.startswith("mtp.") or (name.startswith("blk.") and layer.isdecimal() and int(layer) >= self.layers)

    def _is_recurrent(self, layer: int) -> bool:
        if listed := self.contents.layers.get(f"{self.name}.attention.recurrent_layers"):
            return bool(listed[layer % len(listed)])
        every = self.integer("full_attention_interval", self.architecture.full_every)
        return bool(self.architecture.full_every) and (layer + 1) % every != 0

    def _is_rotated(self, layer: int) -> bool:
        if self.architecture.optional_rotation:
            return bool(self.contents.fields.get(f"{self.name}.rope.scaling.finetuned", True))
        return not self.architecture.unrotated or (layer + 1) % self.architecture.unrotated != 0

    def _has_window(self, layer: int) -> bool:
        key = "attention.sliding_window_pattern"
        if listed := self.contents.layers.get(f"{self.name}.{key}"):
            return bool(self.window and listed[layer % len(listed)])
        every = self.integer(key, self.architecture.every)
        return bool(self.window) and (every == 1 or layer % every < every - 1)

    def knows(self, name: str) -> bool:
        """Return whether a model of these architectures may have this tensor."""
        part = name.removeprefix("blk.").partition(".")[2] if name.startswith("blk.") else ""
        stem = (part or name).removesuffix(".weight").removesuffix(".bias")
        if stem == "attn_qkv" and self.architecture.normed_values:
            return False  # values have a norm
        if not part:
            return self.is_head or stem in (*_MODEL_PARTS, self.architecture.final_norm) or name.startswith("rope_")
        return self.is_head or stem in _LAYER_PARTS or stem in _RECURRENT.get(self.architecture.recurrent, ())

    def shape_fault(self, name: str, shape: tuple[int, ...]) -> str:
        """Describe a tensor whose sizes are not the model's; empty: they are, or the tensor's are not known."""
        layer, _, part = name.removeprefix("blk.").partition(".")
        facts = self.layer(int(layer) if layer.isdecimal() else 0)
        queries, keys = facts.queries, facts.keys
        read = 2 * self.hidden if self.is_eagle else self.hidden
        down = self.contents.tensors.get(f"blk.{layer}.ffn_down.weight")
        wide = facts.mlp or (down.shape[0] if down else 0)
        stacked = f"blk.{layer}.ffn_gate.weight" not in self.contents.tensors
        sizes = {
            "attn_q": (read, 2 * queries if self.architecture.gated else queries),
            "attn_k": (read, keys),
            "attn_v": (read, keys),
            "attn_qkv": (self.hidden, queries + 2 * keys),
            "attn_output": (queries, self.hidden),
            "ffn_gate": (self.hidden, wide),
            "ffn_up": (self.hidden, 2 * wide if stacked else wide),
            "ffn_down": (wide, self.hidden),
            "shortconv.conv": (self.integer("shortconv.l_cache"), self.hidden),
            "shortconv.in_proj": (self.hidden, 3 * self.hidden),
            "shortconv.out_proj": (self.hidden, self.hidden),
            "inp_gate": (self.hidden, self.per_layer),
            "proj": (self.per_layer, self.hidden),
            "post_norm": (self.hidden,),
            "layer_output_scale": (1,),
            **dict.fromkeys(HEAD_NORMS, (facts.head_size,)),
            **dict.fromkeys((*_NORMS, "attn_norm_2"), (self.hidden,)),
        }
        if facts.mixer in GATED:
            sizes |= self.recurrence.shapes(self.hidden)
        expected = sizes.get(part.removesuffix(".weight").removesuffix(".bias"), shape)
        if name.startswith("per_layer_"):
            tokens, wide = self.contents.tensors["token_embd.weight"].shape[-1], self.layers * self.per_layer
            parts = {"token_embd": (wide, tokens), "model_proj": (self.hidden, wide), "proj_norm": (self.per_layer,)}
            expected = parts[name.removeprefix("per_layer_").removesuffix(".weight")]
        expected = (self.hidden,) if name == f"{self.architecture.final_norm}.weight" else expected
        if self.is_head:
            wide = self.integer("target_hidden_size", self.hidden)
            features = self.taps * wide
            own: dict[str, tuple[int, ...]] = {
                "fc.weight": (features if self.is_eagle or self.is_block else features + self.hidden, self.hidden)
            }
            own |= {"enc.output_norm.weight": (features,), "enc.token_norm.weight": (self.hidden,)}
            own |= {f"fc_norm.{index}.weight": (wide,) for index in range(HEAD_TAPS)}
            own |= {"nextn.pre_projection.weight": (2 * wide, self.hidden)}
            own |= {"nextn.post_projection.weight": (self.hidden, wide), "context_norm.weight": (self.hidden,)}
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
        if (name := contents.fields.get("general.architecture")) in HEADS:
            floats = {each: tensor for each, tensor in contents.tensors.items() if each != HEAD_IDS}
            check_assertions(replace(contents, tensors=floats), str(name), path=path)
            _READ[key] = Metadata(contents, str(name))
        else:
            _READ[key] = Metadata(contents, header_of(contents, path).architecture)
    return _READ[key]
