"""Output of `compile`: a table, and the same as JSON values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from edgedecode.memory.sizes import format_nbytes

from ..npu.compile_pack import CompiledGraph
from ..npu.compile_request import CompileRequest
from .display import Report

_LEGEND = (
    "same token: positions of chains and trees where the NPU's emulator and the processor choose the same token, the "
    "latter without rounding of activations; error: root mean square difference in logits, relative to their "
    "deviation. The emulator says nothing about speed."
)


def show_compiled(pack: Path, results: Sequence[CompiledGraph]) -> None:
    """Print a line for each compiled graph."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("model", "graph", "chip", "size", "same token", "error"):
        table.add_column(column)
    for result in results:
        same = f"{result.agreed} of {result.positions}" if result.positions else f"not run: {result.reason}"
        error = f"{result.error:.1%}" if result.positions else ""
        table.add_row(result.role, result.graph, result.group.folder, format_nbytes(result.nbytes), same, error)
    console = Console(soft_wrap=True, highlight=False, markup=False)
    console.print(table)
    console.print(_LEGEND, style="dim")
    console.print(f"{pack}: {format_nbytes(sum(result.nbytes for result in results))} of compiled graphs")


def compile_report(pack: Path, request: CompileRequest, results: Sequence[CompiledGraph]) -> Report:
    """Return the same as JSON values; sizes in bytes."""
    graphs: list[Report] = [
        {
            "role": result.role,
            "graph": result.graph,
            "chip": result.group.folder,
            "nbytes": result.nbytes,
            "positions": result.positions,
            "agreed": result.agreed,
            "error": result.error,
            "not_run": result.reason,
        }
        for result in results
    ]
    return {"pack": str(pack), "compiled": graphs, "device": request.device, "widths": [*request.widths]}
