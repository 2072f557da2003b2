"""Builds a model's base graph and plans its weights file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgedecode.pack.manifest import Graph

from .passes.graph_inputs import declared_shapes, direct_lengths, explicit_positions, tree_bias
from .passes.picked_rows import picked_rows
from .passes.stored_weights import (
    exact_products,
    placed_weights,
    stored_constants,
    stored_embedding,
    stored_projections,
)
from .recipe import Recipe
from .skeleton import build_skeleton
from .weights_file import Weights

if TYPE_CHECKING:
    import onnx_ir as ir
    from transformers import PreTrainedModel

GRAPH_FILE = "base.onnx"
EXACT_FILE = "exact.onnx"
WEIGHTS_FILE = "weights.bin"


@dataclass(frozen=True, slots=True)
class Drawing:
    """A finished graph whose weights are planned but not written yet."""

    model: ir.Model
    weights: Weights

    def write_weights(self, folder: Path, *, progress: Callable[[int], None], release: Callable[[], None]) -> None:
        """Write only the weights: the graph's activation bits may still change."""
        self.weights.write(folder / WEIGHTS_FILE, progress=progress, release=release)

    def write_graph(self, folder: Path) -> None:
        """Write the graph next to the weights."""
        import onnx_ir as ir

        ir.save(self.model, folder / GRAPH_FILE)


def graph_entry(model: ir.Model, file: str) -> Graph:
    """Return the manifest entry of a base graph, or one with its inputs and outputs, in this file of the pack."""
    inputs, outputs = ([str(value.name) for value in values] for values in (model.graph.inputs, model.graph.outputs))
    return Graph(file, tuple(inputs), tuple(outputs), ("tree", "rows"))


def write_exact(model: ir.Model, path: Path) -> None:
    """Write a copy of the graph whose matrix products do not round activations."""
    import onnx_ir as ir

    exact = model.clone()
    exact_products(exact)
    ir.save(exact, path)


def draw(
    network: PreTrainedModel,
    *,
    builder: str,
    head_size: int,
    recipe: Recipe,
    early_rows: bool,
    windowed: Sequence[bool] = (),
) -> Drawing:
    """Build a model's base graph with weights stored according to `recipe`.

    early_rows: see `picked_rows`. windowed: which layers have a sliding window, see `tree_bias`.
    """
    skeleton = build_skeleton(network, builder, packed=recipe.one_width)
    model, recorded, weights = skeleton.model, skeleton.recorded, Weights()
    direct_lengths(model)
    explicit_positions(model)
    tree_bias(model, windowed=windowed)
    picked_rows(model, early=early_rows)
    stored_embedding(model, recorded, weights=weights, scheme=recipe.head)
    stored_projections(model, recorded, weights=weights, scheme_of=recipe.scheme_of)
    stored_constants(model, recorded, weights=weights)
    declared_shapes(model, head_size=head_size)
    placed_weights(model, weights.extents(), file=WEIGHTS_FILE)
    return Drawing(model, weights)
