"""A bench run drawn as one SVG: the cost curves c(n), and speed-ups by family. Computes nothing but places."""

from __future__ import annotations

from collections.abc import Sequence

from edgedecode.svg import Axis, document, line, polyline, rectangle, text

from ..measure.cost_meter import Costs
from ..measure.family_results import FamilyResult

__all__ = ["speed_svg"]

_WIDTH, _PANEL = 900, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 40, 40, 50
_COLOURS = ("#1f77b4", "#d95f02", "#1b9e77", "#7570b3")
_PLAIN = "#999999"


def speed_svg(costs: Sequence[Costs], families: Sequence[FamilyResult], *, title: str) -> str:
    """Return the drawing as text: one panel, and a second one where families were measured."""
    parts = [text(_WIDTH / 2, 20, title, anchor="middle"), *_curves(costs)]
    if families:
        parts += _bars(families, top=_PANEL)
    return document(parts, width=_WIDTH, height=_PANEL * (2 if families else 1))


def _curves(costs: Sequence[Costs]) -> list[str]:
    """Draw c(n) of each context, and what n tokens would cost one by one, which is where a pass gains nothing."""
    curves = [{n: measured.c(n) for n in measured.target_seconds} for measured in costs]
    widest = max(n for curve in curves for n in curve)
    across = Axis(1, widest, _LEFT, _WIDTH - _RIGHT)
    up = Axis(0, 1.05 * max(*(c for curve in curves for c in curve.values()), 2.0), _PANEL - _BOTTOM, _TOP)
    parts = _grid(up, _PANEL - _BOTTOM, label="c(n): a pass over n tokens / over one")
    parts += [text(across.at(n), _PANEL - _BOTTOM + 18, str(n), anchor="middle") for n in range(1, widest + 1)]
    end = min(float(widest), up.high)
    parts.append(line(across.at(1), up.at(1), across.at(end), up.at(end), _PLAIN))
    for number, (measured, curve) in enumerate(zip(costs, curves, strict=True)):
        colour = _COLOURS[number % len(_COLOURS)]
        parts.append(polyline([across.at(n) for n in curve], [up.at(c) for c in curve.values()], colour))
        label = f"{measured.context} tokens of context, one token {1000 * measured.step_seconds:.2f} ms"
        parts.append(text(_LEFT + 10, _TOP + 16 * (number + 1), label, anchor="start", colour=colour))
    return parts


def _bars(families: Sequence[FamilyResult], *, top: int) -> list[str]:
    """Draw the scheduler's S (decoding, whole request) and the best fixed arm's, plain decoding being 1."""
    base = top + _PANEL - _BOTTOM
    values = [_values(family) for family in families]
    up = Axis(0, 1.1 * max(*(value for row in values for value in row), 1.0), base, top + _TOP)
    parts = _grid(up, base, label="S: speed over plain decoding")
    share = (_WIDTH - _LEFT - _RIGHT) / len(families)
    for index, (family, row) in enumerate(zip(families, values, strict=True)):
        left = _LEFT + index * share
        width = 0.8 * share / len(row)
        for number, value in enumerate(row):
            height = base - up.at(value)
            at = left + 0.1 * share + number * width
            parts.append(rectangle(at, base - height, width=width, height=height, colour=_COLOURS[number]))
        below = base + (16 if index % 2 == 0 else 28)  # names of neighbours shall not meet
        parts.append(text(left + share / 2, below, family.family, anchor="middle"))
    parts.append(line(_LEFT, up.at(1), _WIDTH - _RIGHT, up.at(1), "black"))
    names = ("scheduled, after the first token", "scheduled, whole request", "best fixed choice in hindsight")
    for number, name in enumerate(names[: len(values[0])]):
        parts.append(text(_LEFT + 250 * number, base + 46, name, anchor="start", colour=_COLOURS[number]))
    return parts


def _values(family: FamilyResult) -> list[float]:
    scheduled = [family.scheduled.speed_up or 0.0, family.scheduled.whole_speed_up or 0.0]
    return scheduled if not family.arms else [*scheduled, family.hindsight.speed_up if family.hindsight else 0.0]


def _grid(up: Axis, base: float, *, label: str) -> list[str]:
    parts = [text(_LEFT, up.end - 8, label, anchor="start"), line(_LEFT, base, _WIDTH - _RIGHT, base, "black")]
    for tick in up.ticks:
        parts.append(line(_LEFT, up.at(tick), _WIDTH - _RIGHT, up.at(tick), "#dddddd"))
        parts.append(text(_LEFT - 8, up.at(tick) + 4, f"{tick:g}", anchor="end"))
    return parts
