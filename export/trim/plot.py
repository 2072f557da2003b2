"""A sweep drawn as one SVG: coverage and predicted speed by size, a line for each category. Computes only places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log2

from edgedecode.svg import Axis, document, line, polyline, text

from .prediction import Prediction, Sweep, SweepRow

__all__ = ["sweep_svg"]

_WIDTH, _PANEL = 900, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 160, 40, 40
_COLOURS = ("#1f77b4", "#d95f02", "#1b9e77", "#7570b3", "#e7298a", "#666666")


def sweep_svg(sweep: Sweep, *, title: str, chosen: int | None) -> str:
    """Return the drawing as text; a vertical line marks the chosen size."""
    rows = (*sweep.rows, sweep.whole)
    across = Axis.over([log2(row.size) for row in rows], _LEFT, _WIDTH - _RIGHT)
    parts = [text(_WIDTH / 2, 20, title, anchor="middle")]
    parts += _panel(rows, across, _TOP, label="coverage", value=lambda found: found.acceptance.coverage)
    parts += _panel(
        rows, across, _PANEL + _TOP, label="S: speed over plain decoding, predicted", value=lambda found: found.speed_up
    )
    if chosen is not None:
        at = across.at(log2(chosen))
        parts.append(line(at, _TOP, at, 2 * _PANEL - _BOTTOM, "black"))
    return document(parts, width=_WIDTH, height=2 * _PANEL)


def _panel(
    rows: Sequence[SweepRow], across: Axis, top: int, *, label: str, value: Callable[[Prediction], float]
) -> list[str]:
    base = top + _PANEL - _BOTTOM - _TOP
    up = Axis.over([value(found) for row in rows for found in row.categories.values()], base, top)
    parts = [line(_LEFT, base, _WIDTH - _RIGHT, base, "black"), text(_LEFT, top - 6, label, anchor="start")]
    parts += [text(across.at(log2(row.size)), base + 16, str(row.size), anchor="middle") for row in rows]
    for tick in up.ticks:
        parts.append(line(_LEFT, up.at(tick), _WIDTH - _RIGHT, up.at(tick), "#dddddd"))
        parts.append(text(_LEFT - 8, up.at(tick) + 4, f"{tick:.3g}", anchor="end"))
    for number, name in enumerate(rows[0].categories):
        colour = _COLOURS[number % len(_COLOURS)]
        xs = [across.at(log2(row.size)) for row in rows]
        parts.append(polyline(xs, [up.at(value(row.categories[name])) for row in rows], colour))
        parts.append(text(_WIDTH - _RIGHT + 12, top + 16 * (number + 1), name, anchor="start", colour=colour))
    return parts
