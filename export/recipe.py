"""How a model's weights are stored: one scheme for its projections, one for head and embedding."""

from __future__ import annotations

from dataclasses import dataclass

from .architectures import Shape
from .quantize import Scheme

__all__ = ["HEAD", "UNROUNDED", "Recipe"]

HEAD = "head"
"""The head's name among the projections."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The schemes of a model: `body` for its projections, `head` for head and embedding."""

    body: Scheme
    head: Scheme

    @property
    def quantized(self) -> bool:
        return self.body.quantized or self.head.quantized

    def nbytes(self, shape: Shape) -> int:
        """Size of a model's stored weights, without norms and tables."""
        tables = 1 if shape.tied else 2
        body = shape.parameters - tables * shape.embedding
        width = self.body.block_size or 1
        return self.body.nbytes(body // width, width) + tables * self.head.nbytes(shape.rows, shape.hidden)

    def scheme_of(self, name: str) -> Scheme:
        """Return the scheme of a projection, named as in the graph without `.weight`."""
        return self.head if name == HEAD else self.body


UNROUNDED = Recipe(Scheme(32), Scheme(32))
