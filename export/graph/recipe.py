"""How a model's weights are stored: quantization schemes for projections, outer layers, head and embedding."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from .model_shape import Shape
from .quantize import Scheme

HEAD = "head"
"""The head's name among the projections."""
EMBEDDING = "embedding"
"""The embedding table's name, under which a tied head is stored too."""

_LAYER = re.compile(r"\blayers\.(\d+)\.")
_ATTENTION_INPUTS = "attn.qkv_proj"
_SHARED_INPUT = {
    re.compile(r"\battn\.(?:q|k|v)_proj$"): _ATTENTION_INPUTS,
    re.compile(r"\bmlp\.(?:gate|up)_proj$"): "mlp.gate_up_proj",
}


@dataclass(frozen=True, slots=True)
class Recipe:
    """The schemes of a model: `body` for its projections, `head` for head and embedding.

    raised: the scheme of query, key and value, and of the first and last layer's projections, if it differs from
    `body`. layers: number of layers, 0 while no model is known. calibrated: 4-bit weights are rounded for the least
    error of their products on a text.
    """

    body: Scheme
    head: Scheme
    raised: Scheme | None = None
    layers: int = 0
    calibrated: bool = False

    @property
    def quantized(self) -> bool:
        return self.body.quantized or self.head.quantized

    @property
    def name(self) -> str:
        """The recipe in words, as in `int4 block 32, q, k, v, layers 0 and 9 and head int8, calibrated`."""
        higher = [scheme for scheme in (self.raised, self.head) if scheme is not None and scheme != self.body]
        same = len(higher) == 2 and self.raised == self.head
        parts = [self.body.name.replace(",", "")]
        if self.raised is not None:
            where = f"layers 0 and {self.layers - 1}" if self.layers > 1 else "first and last layer"
            parts.append(f"q, k, v, {where}{' and head' if same else ''} {_width(self.raised)}")
        if self.head != self.body and not same:
            parts.append(f"head {_width(self.head)}")
        return ", ".join([*parts, *(["calibrated"] if self.calibrated else [])])

    @property
    def remark(self) -> str:
        """The name if bits and block size do not describe the recipe fully, else an empty string."""
        return self.name if self.raised is not None or self.calibrated else ""

    def of(self, shape: Shape) -> Recipe:
        """Return the recipe for a model of this shape."""
        return replace(self, layers=shape.layers)

    def nbytes(self, shape: Shape) -> int:
        """Return the size of a model's stored weights, without norms and rotary tables."""
        tables = 1 if shape.tied else 2
        body, raised = (shape.parameters - tables * shape.embedding), 0
        if self.raised is not None:
            outer = min(2, shape.layers)
            raised = outer * (body // shape.layers) + (shape.layers - outer) * shape.attention_inputs
        width = self.body.block_size or 1
        found = self.body.nbytes((body - raised) // width, width)
        found += (self.raised or self.body).nbytes(raised // width, width)
        return found + tables * self.head.nbytes(shape.rows, shape.hidden)

    def scheme_of(self, name: str) -> Scheme:
        """Return the scheme of a projection, by its graph name (without `.weight`) or its transformers module name."""
        if name == HEAD:
            return self.head
        layer = _LAYER.search(name)
        if self.raised is None or layer is None:
            return self.body
        assert self.layers
        outer = int(layer[1]) in (0, self.layers - 1)
        return self.raised if outer or projection_name(name).endswith(_ATTENTION_INPUTS) else self.body


UNROUNDED = Recipe(Scheme(32), Scheme(32))


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
