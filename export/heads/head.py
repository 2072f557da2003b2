"""A drafting head (EAGLE-3, 2503.01840; MTP; DFlash, DSpark): its sizes, and its tensors under llama.cpp's names.

All layouts become this one, so that the same head gives the same bytes whatever it came from.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np

from edgedecode.arrays import FloatArray, IntArray
from edgedecode.errors import ExportError
from edgedecode.gguf.architectures import BLOCK_HEAD, HEAD, HEAD_TAPS, MARKOV, MTP
from edgedecode.gguf.contents import BLOCKS
from edgedecode.gguf.encoding import F32
from edgedecode.gguf.header import EMBEDDING, OUTPUT
from edgedecode.text.printable import counted

from ..graph.quantize import ByteArray

INPUT_NORM, FACTORS = "enc.output_norm.weight", "rope_freqs.weight"
"""The norm over all features, and the divisors of RoPE's frequencies (Llama 3)."""
TOKEN_NORM = "enc.token_norm.weight"
"""The norm of the embedding that an MTP layer reads."""
CONTEXT_NORM = "context_norm.weight"
"""The norm of what a block drafter makes of its features."""
LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    **{f"self_attn.{each}_proj": f"attn_{each}" for each in "qkv"},
    "self_attn.o_proj": "attn_output",
    **{f"self_attn.{each}_norm": f"attn_{each}_norm" for each in "qk"},
    **{f"mlp.{each}_proj": f"ffn_{each}" for each in ("gate", "up", "down")},
}
"""Modules of a layer that publishers name alike → llama.cpp's names."""
MOST_IDS = 1 << 24
"""More than any vocabulary, context or layer of a model has."""
_NAMED = 5
"""Tensors that a message names."""
LEAST_LAYERS = 6
"""With fewer, the default layers 2, L / 2 and L - 3 are not three."""


def default_taps(layers: int) -> tuple[int, ...]:
    """Return the layers whose inputs a head reads if it does not say."""
    return 2, layers // 2, layers - 3


@dataclass(frozen=True, slots=True)
class HeadShape:
    """The sizes and flags of a head."""

    hidden: int
    target_hidden: int
    rows: int
    """Ids that it proposes."""
    heads: int
    kv_heads: int
    head_size: int
    rotated: int
    """Values of each head that RoPE rotates, from the first."""
    mlp: int
    epsilon: float
    base: float
    """RoPE's base."""
    context: int
    vocabulary: int = 0
    """The target's ids; 0: not stated."""
    stretch: float = 1.0
    """RoPE's linear scaling: positions are divided by it."""
    window: int = 0
    """Positions that it sees, its own included; 0: all."""
    taps: tuple[int, ...] = ()
    """The target's layers whose inputs it reads; empty: 2, L / 2 and L - 3."""
    norm_before_residual: bool = False
    norm_output: bool = False
    """The next step reads the output after the final norm, not before it."""
    tied: bool = False
    """It has no rows of logits of its own: they are its target's, of its ids."""
    verifier: str = ""
    """The target's name, as the publisher gives it."""
    license: str = "unknown"
    kind: str = HEAD.name
    """Or `MTP`: its layer reads an embedding and what follows its target's final norm, side by side in `fc`. Or
    `BLOCK_HEAD`: its layers read what `fc` makes of its target's outputs, and the embeddings of a block."""
    gated: bool = False
    """The matrix of queries also returns a gate for each head's result, behind its query."""
    layers: int = 1
    block: int = 0
    """Of a block drafter, as what follows: the tokens that it proposes at most."""
    mask: int = 0
    """The token whose embedding the rows of unknown tokens read."""
    rank: int = 0
    """Of the matrices by which each token changes the logits of the next one; 0: there are none."""
    from_anchor: bool = True
    """Whether the first row, of the last known token, proposes the first token; else the mask behind it does."""
    target_layers: int = 0
    """The layers of its target; 0: not stated."""

    @property
    def is_block(self) -> bool:
        return self.kind == BLOCK_HEAD.name

    @property
    def is_mtp(self) -> bool:
        return self.kind == MTP.name

    def as_mtp(self, *, gated: bool) -> "HeadShape":
        """Return the shape of an MTP layer of these sizes, whose rows of logits are its target's."""
        return replace(self, kind=MTP.name, gated=gated, rows=0, taps=(), norm_output=True, tied=True)

    def sizes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor that a head must have, outer size first."""
        hidden, queries, keys = self.hidden, self.heads * self.head_size, self.kv_heads * self.head_size
        eagle = not self.is_mtp and not self.is_block
        read = 2 * hidden if eagle else hidden
        features = (len(self.taps) if self.is_block else HEAD_TAPS) * self.target_hidden
        layer = {
            "attn_norm": (hidden,),
            **({"attn_norm_2": (hidden,)} if eagle else {}),
            "attn_q": (queries * (1 + self.gated), read),
            "attn_k": (keys, read),
            "attn_v": (keys, read),
            "attn_output": (hidden, queries),
            "ffn_norm": (hidden,),
            "ffn_gate": (self.mlp, hidden),
            "ffn_up": (self.mlp, hidden),
            "ffn_down": (hidden, self.mlp),
        }
        return {
            "fc.weight": (hidden, hidden + self.target_hidden if self.is_mtp else features),
            **({INPUT_NORM: (self.target_hidden,), TOKEN_NORM: (hidden,)} if self.is_mtp else {}),
            **({CONTEXT_NORM: (hidden,)} if self.is_block else {}),
            **(dict.fromkeys(MARKOV, (self.vocabulary, self.rank)) if self.rank else {}),
            "output_norm.weight": (hidden,),
            **({} if self.tied else {OUTPUT: (self.rows, hidden)}),
            **{f"blk.{index}.{name}.weight": size for index in range(self.layers) for name, size in layer.items()},
            **(self._head_norms() if self.gated or self.is_block else {}),
        }

    def optional(self) -> tuple[dict[str, tuple[int, ...]], ...]:
        """Return the tensors that a head may have, in groups of which it has all or none."""
        queries, keys = (self.heads * self.head_size * (1 + self.gated),), (self.kv_heads * self.head_size,)
        features = (
            {INPUT_NORM: (HEAD_TAPS * self.target_hidden,)},
            {f"fc_norm.{index}.weight": (self.target_hidden,) for index in range(HEAD_TAPS)},
        )
        if self.is_block:
            return {FACTORS: (self.rotated // 2,)}, {EMBEDDING: (self.vocabulary, self.hidden)}
        return (
            *(() if self.is_mtp else features),
            self._head_norms(),
            {"blk.0.attn_q.bias": queries, "blk.0.attn_k.bias": keys, "blk.0.attn_v.bias": keys},
            {"blk.0.attn_output.bias": (self.hidden,)},
            {FACTORS: (self.rotated // 2,)},
            {EMBEDDING: (self.vocabulary, self.hidden)},
        )

    def _head_norms(self) -> dict[str, tuple[int, ...]]:
        names = (f"blk.{index}.attn_{each}_norm.weight" for index in range(self.layers) for each in "qk")
        return dict.fromkeys(names, (self.head_size,))


@dataclass(frozen=True, slots=True)
class HeadTensor:
    """A tensor: its shape, outer size first, and its values, which are read when they are needed.

    kind: ggml's type of the bytes; F32 for values in floats, of which `read` returns float32. read_first: reads only
    this many rows; None: `read` reads all of them.
    """

    shape: tuple[int, ...]
    read: Callable[[], FloatArray | ByteArray]
    kind: int = F32
    read_first: Callable[[int], FloatArray | ByteArray] | None = None

    def first(self, rows: int) -> FloatArray | ByteArray:
        """Return the first rows, as `read` does."""
        return self.read()[:rows] if self.read_first is None else self.read_first(rows)

    @classmethod
    def of(cls, values: FloatArray) -> "HeadTensor":
        """Return a tensor of float32 values."""
        return cls(values.shape, lambda: values)


@dataclass(frozen=True, slots=True)
class Head:
    """A head whose tensors have been checked. `ids`: each row's token id, ascending; None: a row is its id."""

    shape: HeadShape
    tensors: Mapping[str, HeadTensor]
    ids: IntArray | None = None

    def of_ids(self, ids: IntArray) -> "Head":
        """Return the head, whose rows of logits are its target's, so that it proposes these ids alone."""
        tensors = dict(self.tensors)
        if (whole := tensors.get(MARKOV[1])) is not None:
            tensors[MARKOV[1]] = HeadTensor((len(ids), whole.shape[1]), lambda: whole.read()[ids])
        return Head(self.shape, tensors, ids)


def put(placed: dict[str, HeadTensor], name: str, tensor: HeadTensor, *, source: Path) -> None:
    """Add a tensor under its new name. Raises ExportError if there is one."""
    if name in placed:
        raise ExportError(f"{source} has two tensors that are {name} here: one of its files is of another head")
    placed[name] = tensor


def checked_head(
    shape: HeadShape,
    tensors: Mapping[str, HeadTensor],
    ids: IntArray | None,
    *,
    published: Callable[[str], str] = lambda name: name,
) -> Head:
    """Return the head with its rows in the order of their ids. Raises ExportError if tensors or ids are wrong.

    published: what the publisher calls a tensor.
    """
    _check_numbers(shape)
    _check_tensors(shape, tensors, published)
    if ids is None or np.array_equal(ids, np.arange(shape.vocabulary)):
        return Head(shape, tensors)
    _check_ids(ids, shape)
    order = np.argsort(ids)
    if (np.diff(ids) > 0).all():
        return Head(shape, tensors, ids)
    if (head := tensors.get(OUTPUT)) is not None:
        rows = head
        tensors = {**tensors, OUTPUT: replace(rows, read=lambda: rows.read()[order])}
    return Head(shape, tensors, ids[order])


def _check_numbers(shape: HeadShape) -> None:
    for each in fields(shape):
        value = getattr(shape, each.name)
        least = 0 if each.default == 0 or each.name == "rows" else 1
        if each.type is int and not least <= value < MOST_IDS:
            raise ExportError(f"the head's {each.name} is {value}: download it again")
        if each.type is float and not 0 < value < float("inf"):
            raise ExportError(f"the head's {each.name} is {value}: download it again")
    if shape.heads % shape.kv_heads:
        raise ExportError(f"the head's {shape.heads} query heads do not share {shape.kv_heads} KV heads evenly")
    if shape.rotated % 2 or shape.rotated > shape.head_size:
        raise ExportError(f"the head rotates {shape.rotated} of {shape.head_size} values of a head: download it again")
    if shape.head_size % 16:
        raise ExportError(f"the head's attention has heads of {shape.head_size} values: multiples of 16 are supported")


def _check_tensors(shape: HeadShape, tensors: Mapping[str, HeadTensor], published: Callable[[str], str]) -> None:
    sizes = shape.sizes()
    for group in shape.optional():
        if any(name in tensors for name in group):
            sizes |= group
    for names, what in (
        ([name for name in sizes if name not in tensors], "lacks {}, {}: download it again"),
        ([name for name in tensors if name not in sizes], "has {} that no head known here has, {}: it is another kind"),
    ):
        if names:
            listed = ", ".join(published(name)[:60] for name in names[:_NAMED]) + (" …" if len(names) > _NAMED else "")
            raise ExportError("the head " + what.format(counted(len(names), "tensor"), listed))
    for name, tensor in tensors.items():
        if tensor.shape != sizes[name]:
            raise ExportError(
                f"its configuration makes {published(name)} {list(sizes[name])}, the file has {list(tensor.shape)}: "
                f"download both again"
            )
        block = BLOCKS[tensor.kind][0]
        if tensor.shape[-1] % block:
            raise ExportError(f"{name} has rows of {tensor.shape[-1]} values, which are not whole blocks of {block}")
    if INPUT_NORM in tensors and "fc_norm.0.weight" in tensors:
        raise ExportError("the head has a norm over all features and norms over each: only one of them can be meant")


def _check_ids(ids: IntArray, shape: HeadShape) -> None:
    if len(ids) != shape.rows:
        raise ExportError(f"d2t has {len(ids)} ids for {shape.rows} rows of lm_head: download the head again")
    most = shape.vocabulary or MOST_IDS
    if ids.min() < 0 or ids.max() >= most:
        wrong = int(ids[(ids < 0) | (ids >= most)][0])
        raise ExportError(f"d2t names the token {wrong}, the target has {most}: the head is for another vocabulary")
    found, counts = np.unique(ids, return_counts=True)
    if (counts > 1).any():
        raise ExportError(f"d2t names the token {int(found[counts > 1][0])} twice: download the head again")
