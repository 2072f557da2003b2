"""How a model's weights are stored: quantization schemes for projections, head and embedding."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from .model_shape import Shape
from .quantize import Scheme

HEAD = "head"
"""The head's name among the projections."""
EMBEDDING = "embedding"
"""The embedding table's name, under which a tied head is stored too."""

_PROJECTION = re.compile(r"\blayers\.(\d+)\.(?:\w+\.)?(\w+_proj\w*|\w+_linear|\w+_gate|w\d)$")
_MATRICES = {"k": "k_v", "v": "k_v", "gate": "gate_up", "up": "gate_up"} | {
    "w1": "gate_up", "w3": "gate_up", "w2": "down", "input_linear": "gate_up", "output_linear": "down",
}  # fmt: skip
"""The names in `Shape.matrices` of projections that have the same width as another, or another name in LFM2 or Granite
4."""
_IN_WORDS = {"k_v": "k, v", "gate_up": "gate, up"}
_ATTENTION_INPUTS = ("q", "k_v", "qkv")
_SHARED_INPUT = {
    re.compile(r"\battn\.(?:q|k|v)_proj$"): "attn.qkv_proj",
    re.compile(r"\bmlp\.(?:gate|up)_proj$"): "mlp.gate_up_proj",
    re.compile(r"\bfeed_forward\.w[13]$"): "feed_forward.w1_w3",
    re.compile(r"\blinear_attn\.in_proj_\w+$"): "linear_attn.in_proj",
}


@dataclass(frozen=True, slots=True)
class Recipe:
    """The schemes of a model: `body` for its projections, `head` for head and embedding.

    raised: the scheme of the projections in `matrices`, named as in `matrix_name`. layers: number of layers, 0 while
    no model is known. calibrated: 4-bit weights are rounded for the least error of their products on a text.
    """

    body: Scheme
    head: Scheme
    raised: Scheme | None = None
    layers: int = 0
    calibrated: bool = False
    matrices: tuple[str, ...] = ()

    @property
    def quantized(self) -> bool:
        return self.body.quantized or self.head.quantized

    @property
    def name(self) -> str:
        """The recipe in words, as in `int4 block 32; int8: k, v of all layers, down of 13, head; calibrated`."""
        higher: dict[str, list[str]] = {}
        if self.raised is not None:
            higher[_width(self.raised)] = self._counted()
        if self.head != self.body:
            higher.setdefault(_width(self.head), []).append(HEAD)
        parts = [f"{width}: {', '.join(names)}" for width, names in higher.items()]
        return "; ".join([self.body.name.replace(",", ""), *parts, *(["calibrated"] if self.calibrated else [])])

    @property
    def remark(self) -> str:
        """The name if bits and block size do not describe the recipe fully, else an empty string."""
        return self.name if self.raised is not None or self.calibrated else ""

    def of(self, shape: Shape) -> "Recipe":
        """Return the recipe for a model of this shape, whose layers are alike."""
        names = (f"{layer}.{name}" for layer in range(shape.layers) for name in shape.matrices)
        return self.among(names, layers=shape.layers)

    def among(self, names: Iterable[str], *, layers: int) -> "Recipe":
        """Return the recipe for a model with matrices of these names, as in `matrix_name`.

        Raised are query, key and value, and the first and last layer: a guess, for want of a text to measure on.
        """

        def guessed(name: str) -> bool:
            layer, _, matrix = name.partition(".")
            return matrix in _ATTENTION_INPUTS or int(layer) in (0, layers - 1)

        raised = () if self.raised is None else tuple(filter(guessed, names))
        return replace(self, layers=layers, matrices=raised)

    def nbytes(self, shape: Shape) -> int:
        """Return the size of a model's stored weights, without norms and rotary tables."""
        raised = sum(shape.matrices[name.partition(".")[2]] for name in self.matrices)
        body = shape.layers * sum(shape.matrices.values()) - raised
        width = self.body.block_size or 1
        found = self.body.nbytes(body // width, width)
        found += (self.raised or self.body).nbytes(raised // width, width)
        return found + (1 if shape.tied else 2) * self.head.nbytes(shape.rows, shape.hidden)

    def scheme_of(self, name: str) -> Scheme:
        """Return the scheme of a projection, by its graph name (without `.weight`) or its transformers module name."""
        if name == HEAD:
            return self.head
        matrix = matrix_name(name)
        wider = matrix in self.matrices or matrix.removesuffix("kv") in self.matrices  # a graph's qkv may be q and k_v
        return self.raised if self.raised is not None and wider else self.body

    def one_width(self, layer: int) -> bool:
        """Return whether a layer's query, key and value have one scheme, and so can be one product."""
        return len({self.scheme_of(f"layers.{layer}.attn.{part}_proj") for part in "qkv"}) == 1

    def _counted(self) -> list[str]:
        """Return the raised matrices in words, by the number of layers in which they are raised."""
        found: dict[int, list[str]] = {}
        for name, count in Counter(name.partition(".")[2] for name in self.matrices).most_common():
            found.setdefault(count, []).append(_IN_WORDS.get(name, name))
        return [
            f"{', '.join(names)} of {'all layers' if count == self.layers else count}" for count, names in found.items()
        ]


UNROUNDED = Recipe(Scheme(32), Scheme(32))


def matrix_name(name: str) -> str:
    """Return the layer and the name in `Shape.matrices`, as in `3.k_v`, of a projection named as in `scheme_of`.

    Hybrids have others beside these, such as `3.in_proj_qkv`.
    """
    found = _PROJECTION.search(name)
    if found is None:
        return ""
    own = found[2].removesuffix("_proj")
    return f"{found[1]}.{_MATRICES.get(own, own)}"


def projection_name(name: str) -> str:
    """Return a common name for graph and transformers names, e.g. `model.layers.3.attn.qkv_proj` for q, k and v.

    Projections with the same input share a name, because some networks and graphs stack them into one weight.
    """
    name = name.replace("self_attn", "attn")
    for pattern, shared in _SHARED_INPUT.items():
        name = pattern.sub(shared, name)
    return name


def _width(scheme: Scheme) -> str:
    return f"int{scheme.bits}" if scheme.quantized else f"float{scheme.bits}"
