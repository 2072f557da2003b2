"""Output of `trim`: a table of the measured sizes, and the same as JSON values."""

from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from edgedecode.memory.sizes import format_nbytes

from ..trim.trim_pack import TrimResult
from .display import Report

_LEGEND = (
    "coverage: share of held-out tokens that the vocabulary has; a round: tokens per round, the target's own included, "
    "at the best draft length; step: drafting one token; S: speed-up over plain decoding, from measured passes"
)


def show_trim(result: TrimResult) -> None:
    """Print the measurements and what was changed."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    table = Table("size", box=None, pad_edge=False)
    for title in ("coverage", "a round", "length", "step ms", "S"):
        table.add_column(title, justify="right")
    for row in (result.sizes.whole, *reversed(result.sizes.rows)):
        numbers = (f"{row.coverage:.2%}", f"{row.tokens_per_round:.3f}", str(row.length))
        table.add_row(str(row.size), *numbers, f"{1000 * row.step_seconds:.3f}", f"{row.speed_up:.3f}")
    console.print(table)
    console.print(_LEGEND, style="dim")
    console.print(_conclusion(result))


def trim_report(result: TrimResult) -> Report:
    """Return the result as JSON values; times in seconds, sizes in ids or bytes."""
    chosen = result.chosen
    return {
        "pack": str(result.root),
        "whole": asdict(result.sizes.whole),
        "sizes": [asdict(row) for row in result.sizes.rows],
        "size": None if chosen is None else chosen.size,
        "reason": result.sizes.reason() if chosen is None else None,
        "files": dict(result.files),
    }


def _conclusion(result: TrimResult) -> str:
    row, whole = result.chosen, result.sizes.whole
    if row is None:
        return f"no size is faster, and nothing was changed: {result.sizes.reason()}"
    use = "drafts by default" if row.speed_up > whole.speed_up else "is slower, and drafts only with --drafter trim"
    files = ", ".join(f"{name} ({format_nbytes(nbytes)})" for name, nbytes in result.files.items())
    return f"a draft of {row.size} of {whole.size} ids was added and {use}: {files}"
