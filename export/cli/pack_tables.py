"""Output of `export` and `import`: tables, and the same as JSON values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from edgedecode.memory.sizes import format_nbytes
from edgedecode.pack.entries import ActivationsEntry
from edgedecode.pack.manifest import Manifest, ModelEntry
from edgedecode.text.printable import counted

from ..stages import StageRecord, Stages
from .display import Report, live_stages, stage_table, timings

_LEGEND = (
    "parity: maximum logit error without rounding of activations; kernels: root mean square error from that rounding, "
    "relative to the logits' deviation; KL: divergence from the original weights' distributions, in nats; "
    "same token: how often the most likely token is the same; noise: in logits, 99.9th percentile"
)
_FACTS = ("source", "license", "parameters", "bits", "block_size", "head_bits", "quantization", "kernel_noise")
"""What the JSON values say of a model as the manifest does."""


def shown(make: Callable[[Stages], Manifest], *, out: Path) -> Report:
    """Make a pack with a progress display, print a summary and return it as JSON values."""
    with live_stages() as stages:
        manifest = make(stages)
    show_pair(manifest, stages.records, out=out)
    return pair_report(manifest, stages.records, out=out)


def show_pair(manifest: Manifest, records: Sequence[StageRecord], *, out: Path) -> None:
    """Print the stages and a summary of the pack."""
    console = Console(soft_wrap=True, highlight=False, markup=False)
    console.print(stage_table(records))
    console.print()
    console.print(_model_table(manifest))
    for role, entry in manifest.models.items():
        if entry.quantization:
            console.print(f"{role}: {entry.quantization}")
        if entry.activations is not None and entry.activations.wide:
            console.print(_activations_line(role, entry.activations))
    console.print(_LEGEND, style="dim")
    for role, entry in manifest.models.items():
        if positions := entry.parity.get("loss_positions"):
            console.print(
                f"{role}: KL and same token over {positions:.0f} positions of answers that it wrote", style="dim"
            )
        if len(entry.graphs) > 1:
            console.print(_graph_line(role, entry))
        for note in entry.notes:
            console.print(f"{role}: {note}")
    console.print()
    size = format_nbytes(sum(entry.nbytes for entry in manifest.files.values()))
    console.print(f"{out}: {size}, {counted(len(manifest.files), 'file')}")
    for name, outside in manifest.outside.items():
        console.print(f"{name} stays at {outside.path}")


def pair_report(manifest: Manifest, records: Sequence[StageRecord], *, out: Path) -> Report:
    """Return the summary as JSON values; sizes in bytes, times in seconds."""
    models: Report = {
        role: {
            **{name: getattr(entry, name) for name in _FACTS},
            "weights_nbytes": manifest.weights_nbytes(role),
            "graphs": ",".join(entry.graphs),
            "parity": dict(entry.parity),
            "notes": list(entry.notes),
            "activations": _activations(entry),
        }
        for role, entry in manifest.models.items()
    }
    nbytes = sum(entry.nbytes for entry in manifest.files.values())
    return {"pack": str(out), "nbytes": nbytes, "models": models, **timings(records)}


def _model_table(manifest: Manifest) -> Table:
    table = Table("model", box=None, pad_edge=False, collapse_padding=True)
    for title in ("weights", "MB", "bits", "head", "parity", "kernels", "KL", "same token", "noise"):
        table.add_column(title, justify="right")
    for role, entry in manifest.models.items():
        wiring = [error for name, error in entry.parity.items() if name.endswith("_error") and not _rounds(name)]
        table.add_row(
            role,
            f"{entry.parameters / 1e6:.1f}M",
            f"{manifest.weights_nbytes(role) / 1e6:.1f}",
            f"{entry.bits}",
            f"{entry.head_bits}",
            _optional(max(wiring, default=None), ".0e"),
            _optional(entry.parity.get("kernel_rms_error"), ".1%"),
            _optional(entry.parity.get("loss_kl"), ".2g"),
            _optional(entry.parity.get("loss_top1"), ".1%"),
            _optional(entry.kernel_noise, ".2g"),
        )
    return table


def _activations(entry: ModelEntry) -> Report | None:
    """Return the number of products with 16-bit activations, and each choice's top-1 agreement with float ones."""
    found = entry.activations
    if found is None:
        return None
    ways: Report = {name: way.agreement for name, way in found.ways.items()}
    return {"asked": found.asked, "wide": len(found.wide), "products": len(found.products), "agreement": ways}


def _activations_line(role: str, found: ActivationsEntry) -> str:
    ways = ", ".join(f"{way.agreement:.1%} ({name})" for name, way in found.ways.items())
    count = f"{len(found.wide)} of {len(found.products)}"
    return f"{role}: 16-bit activations in {count} products' inputs; top-1 agreement {ways}"


def _rounds(name: str) -> bool:
    """Return whether a parity number measures intended rounding."""
    return name.startswith(("kernel", "kv8"))


def _graph_line(role: str, entry: ModelEntry) -> str:
    """Return the line on a role's graphs, with the measured loss of an 8-bit KV cache."""
    line = f"{role}: graphs {', '.join(entry.graphs)}, sharing one weights file"
    if "kv8_rms_error" not in entry.parity:
        return line
    error, same = entry.parity["kv8_rms_error"], entry.parity["kv8_top1"]
    return f"{line}; an 8-bit KV cache changes logits by {error:.1%} of their deviation, top-1 agreement {same:.0%}"


def _optional(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
