"""The architectures whose graph is built from a GGUF file: what the tensor list does not tell, and the metadata.

Sources: src/llama-model.cpp of llama.cpp (defaults of missing fields) and transformers' models of the same names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgedecode.gguf.contents import Contents
from edgedecode.gguf.gguf_names import INTERLEAVED


@dataclass(frozen=True, slots=True)
class Architecture:
    """What an architecture is, besides its tensors.

    every: 0: no layer has a window; 1: all have one; n > 1: all but every n-th layer, which has full attention.
    unrotated: 0: all layers have a rotary embedding; n: all but every n-th.
    """

    gelu: bool = False
    scaled_embedding: bool = False
    """The embedding is multiplied by the root of the hidden size."""
    every: int = 0
    unrotated: int = 0
    own_window_rotation: bool = False
    """Layers with a window rotate with another base, and without scaling."""
    attention_cap: float = 0.0
    logits_cap: float = 0.0
    wide_layers: int = 0
    """The number of layers of the one model that scales scores by the hidden size per head instead of the head size."""


ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(),
    "qwen2": Architecture(),
    "qwen3": Architecture(),
    "phi3": Architecture(every=1),
    "granite": Architecture(),
    "smollm3": Architecture(unrotated=4),
    "gemma": Architecture(gelu=True, scaled_embedding=True),
    "gemma2": Architecture(
        gelu=True, scaled_embedding=True, every=2, attention_cap=50.0, logits_cap=30.0, wide_layers=46
    ),
    "gemma3": Architecture(gelu=True, scaled_embedding=True, every=6, own_window_rotation=True, wide_layers=62),
}
"""By general.architecture."""


_NO_CAP = 1e4


@dataclass(frozen=True, slots=True)
class Metadata:
    """The fields of one file."""

    contents: Contents
    name: str
    """general.architecture."""

    @property
    def architecture(self) -> Architecture:
        return ARCHITECTURES[self.name]

    def integer(self, key: str, default: int = 0) -> int:
        return self.contents.integer(f"{self.name}.{key}") or default

    def number(self, key: str, default: float) -> float:
        value = self.contents.fields.get(f"{self.name}.{key}", default)
        return float(value) if isinstance(value, (int, float)) else default

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
    def interleaved(self) -> bool:
        return self.name in INTERLEAVED

    @property
    def window(self) -> int:
        """The positions that layers with a window see; 0: no layer has one."""
        return self.integer("attention.sliding_window") if self.architecture.every else 0

    def cap(self, key: str, default: float) -> float:
        """Return a soft cap; 0: none, also for one that changes nothing, as a tanh near 0 would lose digits."""
        cap = self.number(key, default)
        return 0.0 if cap >= _NO_CAP else cap

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
