"""Make the static graphs of a model that has a base graph."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import onnx_ir as ir

from edgedecode.export.graph.passes.static_shapes import StaticSize, static_shapes
from edgedecode.pack.entries import STATIC
from edgedecode.pack.manifest import ModelEntry
from edgedecode.runtimes.onnx.providers.cpu import CpuProvider

__all__ = ["WIDTHS", "StaticCpu", "add_static"]

WIDTHS = (1, 4, 8, 128)


def add_static(root: Path, entry: ModelEntry, *, slots: int, widths: Sequence[int] = WIDTHS) -> ModelEntry:
    """Write static graphs of the base graph and of the one with adapters; return the entry that lists them."""
    graphs = dict(entry.graphs)
    sources = [("base", ""), *([("lora", "lora-")] if "lora" in graphs else [])]
    for (source, prefix), width in product(sources, widths):
        base, name = entry.graphs[source], f"static-{prefix}{width}"
        model = ir.load(root / base.file)
        static_shapes(model, StaticSize(width, slots, base.lora_rank))
        file = str(Path(base.file).with_name(f"{name}.onnx"))
        ir.save(model, root / file)
        graphs[name] = replace(
            base,
            file=file,
            inputs=tuple(str(value.name) for value in model.graph.inputs),
            outputs=tuple(str(value.name) for value in model.graph.outputs),
            capabilities=(*base.capabilities, STATIC),
            width=width,
            slots=slots,
        )
    return replace(entry, graphs=graphs)


class StaticCpu(CpuProvider):
    """A provider that needs static graphs, on the processor."""

    name = "static"
    own_kernels = False
    needs = (STATIC,)
