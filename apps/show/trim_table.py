"""What a manifest says of a draft's trimmed vocabulary, as rows of a table. Reads no file."""

from __future__ import annotations

from collections.abc import Iterator

from edgedecode.pack.manifest import TrimEntry
from edgedecode.pack.trim_report import TrimCategory

__all__ = ["trim_rows"]


def trim_rows(trim: TrimEntry, *, rows: int) -> Iterator[tuple[str, str]]:
    """Yield title and content: its size, what it was worth on each category, and where it loses."""
    advice = "recommended" if trim.recommended else "not recommended"
    measured = f" on {trim.runtime}" if trim.runtime else ""
    step = "" if trim.step_share is None else f", a draft step takes {1 - trim.step_share:.1%} less"
    counted = f", counted: {trim.calibration}" if trim.calibration else ""
    yield "trim", f"{trim.size} of {rows} ids, {advice}{measured}{step}{counted}"
    for name, found in (trim.categories or {}).items():
        yield f"trim: {name}", _category(found, length=trim.length)
    for number, warning in enumerate(trim.warnings, start=1):
        yield f"trim warning {number}", warning


def _category(found: TrimCategory, *, length: int) -> str:
    speeds = ""
    if found.speed_up is not None and found.speed_up_full is not None:
        speeds = f"; S {found.speed_up:.2f}, whole {found.speed_up_full:.2f}"
    if found.measured is not None and found.measured_full is not None:
        speeds += f" (measured {found.measured:.2f}, {found.measured_full:.2f})"
    return (
        f"{found.coverage:.1%} of {found.tokens} tokens kept; drafts of {length}: {found.acceptance:.2f} tokens a "
        f"round, whole {found.acceptance_full:.2f}{speeds}"
    )
