"""Planned and measured memory of the process, as a line, a table and JSON."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from edgedecode.memory.peaks import PeakSampler
from edgedecode.memory.process_memory import ProcessMemory
from edgedecode.memory.sizes import format_nbytes
from edgedecode.user_notices import notice

from .terminal import show_notices

if TYPE_CHECKING:
    from rich.table import Table

KINDS = ("resident", "anonymous", "proportional")


@contextmanager
def sampling(asked: bool) -> Iterator[PeakSampler | None]:
    """Sample this process's memory while the block runs, if `asked`. A notice says why where that is not possible."""
    if not asked:
        yield None
        return
    with PeakSampler() as sampler:
        if sampler.why_not:
            show_notices()
            notice(f"memory is not sampled: {sampler.why_not}")
        yield sampler


def memory_line(planned: int, peak: ProcessMemory | None) -> str:
    """Return the plan and the known peaks in one line."""
    known = {} if peak is None else {kind: nbytes for kind, nbytes in peak._asdict().items() if nbytes is not None}
    peaks = ", ".join(f"{kind} {format_nbytes(known[kind])}" for kind in KINDS if kind in known)
    return f"planned {format_nbytes(planned)}; peak of the process: {peaks or 'not available on this system'}"


def memory_table(planned: int, *, now: ProcessMemory | None, peak: ProcessMemory | None) -> Table:
    """Return a table of planned, current and peak memory."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("", "planned", *KINDS):
        table.add_column(column, justify="right" if column else "left")
    for name, memory in (("now", now), ("peak", peak)):
        cells = (None if memory is None else getattr(memory, kind) for kind in KINDS)
        table.add_row(name, format_nbytes(planned), *("-" if each is None else format_nbytes(each) for each in cells))
    return table


def memory_json(planned: int, peak: ProcessMemory | None) -> dict[str, int | None]:
    """Return the plan and the peaks in bytes; null: not available on this system."""
    peaks = {kind: None if peak is None else getattr(peak, kind) for kind in KINDS}
    return {"planned_nbytes": planned, **{f"peak_{kind}_nbytes": nbytes for kind, nbytes in peaks.items()}}
