"""Write a small random model whose graph concatenates its KV cache itself, with its manifest entry."""

from __future__ import annotations

from pathlib import Path

import onnx

from edgedecode.pack.manifest import Graph, ModelEntry
from tests.optimum_layout import load_recipe

WEIGHTS, GRAPH = "weights.bin", "base.onnx"


def write_concat(folder: Path, *, context: int = 512, **sizes: object) -> ModelEntry:
    """Write base.onnx and weights.bin into `folder`; `sizes` are those of the recipe's Layout."""
    recipe = load_recipe()
    layout = recipe.Layout(**sizes)
    model = recipe.OptimumGraph(layout).build()
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model, folder / GRAPH, save_as_external_data=True, location=WEIGHTS, size_threshold=256)
    graph = Graph(
        file=GRAPH,
        inputs=tuple(value.name for value in model.graph.input),
        outputs=tuple(value.name for value in model.graph.output),
        capabilities=("concat",),
    )
    return ModelEntry(
        architecture="toy",
        rows=layout.rows,
        context=context,
        hidden_size=layout.hidden,
        layers=layout.layers,
        kv_heads=layout.kv_heads,
        head_size=layout.head_size,
        parameters=25_000,
        weights=WEIGHTS,
        graphs={"base": graph},
        bits=32,
        block_size=0,
        head_bits=32,
        license="Apache-2.0",
        source=f"seed {layout.seed}",
    )
