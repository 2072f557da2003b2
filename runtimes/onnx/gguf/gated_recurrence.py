"""The sizes of layers with a gated recurrence, and the shapes of their tensors."""

from dataclasses import dataclass

_TILE, _MOST_SIZE, _MOST_WIDTH = 16, 512, 16


@dataclass(frozen=True, slots=True)
class GatedRecurrence:
    """The sizes of one layer's `GatedDelta`.

    width: of its convolution. delta: it has the gated delta rule, and value head h has the keys of key head h modulo
    key_heads, which is the order of llama.cpp's files; else it is Mamba-2's, and key heads serve neighbours.
    """

    heads: int
    key_heads: int
    key_size: int
    value_size: int
    width: int
    delta: bool = True

    @property
    def fault(self) -> str:
        """Say why `GatedDelta` does not serve these sizes; empty: it does."""
        sizes = self.key_size, self.value_size
        if any(size % _TILE or not 0 < size <= _MOST_SIZE for size in sizes):
            return f"its recurrent layers have heads of {sizes[0]} keys and {sizes[1]} values"
        if self.heads % self.key_heads or not 0 < self.width <= _MOST_WIDTH:
            return f"its recurrent layers have {self.heads} heads for {self.key_heads}, and convolve {self.width} rows"
        return ""

    @property
    def keys(self) -> int:
        return self.key_heads * self.key_size

    @property
    def values(self) -> int:
        return self.heads * self.value_size

    @property
    def channels(self) -> int:
        """The values of a row that go through the convolution: queries, keys and values."""
        return 2 * self.keys + self.values

    @property
    def state_values(self) -> int:
        return _tiles((self.width - 1) * self.channels) + self.key_size * self.values

    @property
    def row_values(self) -> int:
        """The values of a row that are kept: channels, steps and rates."""
        return _tiles(self.channels + (2 if self.delta else 1) * self.heads)

    @property
    def attributes(self) -> dict[str, int | float | bytes]:
        return {
            "heads": self.heads,
            "key_heads": self.key_heads,
            "key_size": self.key_size,
            "value_size": self.value_size,
            "width": self.width,
            "delta": int(self.delta),
            "interleaved": int(self.delta),
        }

    def shapes(self, hidden: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of a layer's tensors in GGUF files, by the part of their names behind the layer."""
        both = {
            "ssm_conv1d": (self.width, self.channels),
            "ssm_dt": (1, self.heads),
            "ssm_out": (self.values, hidden),
        }
        if not self.delta:
            joined = (hidden, self.values + self.channels + self.heads)
            vectors = {"ssm_a": (1, self.heads), "ssm_d": (1, self.heads), "ssm_norm": (self.values, 1)}
            return {**both, **vectors, "ssm_in": joined}
        return {
            **both,
            "attn_qkv": (hidden, self.channels),
            "attn_gate": (hidden, self.values),
            "ssm_alpha": (hidden, self.heads),
            "ssm_beta": (hidden, self.heads),
            "ssm_a": (self.heads,),
            "ssm_norm": (self.value_size,),
        }


def _tiles(count: int) -> int:
    return -(-count // _TILE) * _TILE
