"""What becomes of one source: its role, how it is stored, what it serves, which graphs it gets. Does nothing."""

from __future__ import annotations

from dataclasses import dataclass

from .base_model import Source
from .checks.model_checks import CheckTexts
from .gguf.model_file import GgufRequest
from .graph.graph_request import BASE_ONLY, GraphRequest, Span
from .graph.model_shape import Shape
from .graph.recipe import Recipe
from .recipes.calibration import Tokens

__all__ = ["ModelJob", "weights_nbytes"]


@dataclass(frozen=True, slots=True)
class ModelJob:
    """What is exported as which role, and how it is stored."""

    role: str
    source: Source
    recipe: Recipe
    license: str
    texts: CheckTexts
    span: Span
    calibration: Tokens = ()
    """What a calibrated recipe is calibrated on; empty: text that the model itself writes."""
    graphs: GraphRequest = BASE_ONLY
    activations: str = "8"
    """Bits of quantized products' activations: `8`, `16`, or `auto`, chosen for each product by measured error."""
    gguf: GgufRequest | None = None
    """What the model's GGUF file, or its plan, is made of; None: it gets neither."""

    @property
    def adds_files(self) -> bool:
        """Whether it gets more than weights and a base graph."""
        return bool(self.graphs.names[1:]) or self.gguf is not None

    @property
    def measures_activations(self) -> bool:
        """Whether there is anything to choose."""
        return self.activations != "8" and self.recipe.quantized

    @property
    def context(self) -> int:
        """Most positions that the exported graph serves."""
        return self.span.context_of(self.source.shape)

    @property
    def nbytes(self) -> int:
        """About how large its files become; a model that is calibrated on its own text is written twice."""
        weights = weights_nbytes(self.source.shape, self.recipe, context=self.context)
        gguf = 0 if self.gguf is None else self.gguf.nbytes(self.recipe, self.source.shape)
        return weights * (2 if self.recipe.calibrated and not self.calibration else 1) + gguf


def weights_nbytes(shape: Shape, recipe: Recipe, *, context: int) -> int:
    """Return about how large the weights file of a model becomes."""
    rotary = 2 * 4 * context * shape.head_size // 2
    return recipe.nbytes(shape) + rotary
