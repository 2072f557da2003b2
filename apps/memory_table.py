"""Planned and measured memory of the process, as a line, a table and JSON."""

from typing import TYPE_CHECKING

from edgedecode.memory.process_memory import ProcessMemory, memory_now, peak_nbytes
from edgedecode.memory.sizes import format_nbytes

if TYPE_CHECKING:
    from rich.table import Table

KINDS = ("resident", "anonymous", "proportional")


def memory_line(planned: int, peak: int | None) -> str:
    """Return the plan and the resident peak in one line."""
    known = "not available on this system" if peak is None else f"{format_nbytes(peak)} resident"
    return f"planned {format_nbytes(planned)}; peak of the process: {known}"


def memory_table(planned: int) -> "Table":
    """Return a table of this process's planned, current and peak memory."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("", "planned", *KINDS):
        table.add_column(column, justify="right" if column else "left")
    peak = peak_nbytes()
    for name, memory in (("now", memory_now()), ("peak", None if peak is None else ProcessMemory(peak))):
        cells = (None if memory is None else getattr(memory, kind) for kind in KINDS)
        table.add_row(name, format_nbytes(planned), *("-" if each is None else format_nbytes(each) for each in cells))
    return table


def memory_json(planned: int, peak: int | None) -> dict[str, int | None]:
    """Return the plan and the resident peak in bytes; null: not available on this system."""
    return {"planned_nbytes": planned, "peak_resident_nbytes": peak}
