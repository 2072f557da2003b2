"""A comparison drawn as one self-contained SVG: size to the right, agreement with the original weights upwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgedecode.svg import Axis, document, line, text

__all__ = ["Point", "scatter_svg"]

_WIDTH, _HEIGHT = 900, 480
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 40, 50, 60
_LABEL_HEIGHT = 15
_COLOURS = {False: "#1f77b4", True: "#d95f02"}


@dataclass(frozen=True, slots=True)
class Point:
    """One recipe: megabytes, agreement in percent, a label; marked ones have the other colour."""

    x: float
    y: float
    label: str
    marked: bool = False


def scatter_svg(points: Sequence[Point], *, title: str) -> str:
    """Return the drawing as text. At least one point is needed."""
    x = Axis.over([point.x for point in points], _LEFT, _WIDTH - _RIGHT)
    y = Axis.over([point.y for point in points], _HEIGHT - _BOTTOM, _TOP)
    parts = [text(_WIDTH / 2, 24, title, anchor="middle"), *_x_axis(x), *_y_axis(y), *_marks(points, x, y)]
    return document(parts, width=_WIDTH, height=_HEIGHT)


def _x_axis(axis: Axis) -> list[str]:
    base = _HEIGHT - _BOTTOM
    lines = [line(_LEFT, base, _WIDTH - _RIGHT, base, "black")]
    for tick in axis.ticks:
        lines.append(line(axis.at(tick), _TOP, axis.at(tick), base, "#dddddd"))
        lines.append(text(axis.at(tick), base + 18, f"{tick:g}", anchor="middle"))
    lines.append(text(_WIDTH / 2, _HEIGHT - 16, "weights, MB", anchor="middle"))
    return lines


def _y_axis(axis: Axis) -> list[str]:
    lines = [line(_LEFT, _TOP, _LEFT, _HEIGHT - _BOTTOM, "black")]
    for tick in axis.ticks:
        lines.append(line(_LEFT, axis.at(tick), _WIDTH - _RIGHT, axis.at(tick), "#dddddd"))
        lines.append(text(_LEFT - 8, axis.at(tick) + 4, f"{tick:g} %", anchor="end"))
    lines.append(text(_LEFT, _TOP - 12, "same leading token as the original weights", anchor="start"))
    return lines


def _marks(points: Sequence[Point], x: Axis, y: Axis) -> list[str]:
    """Draw dots and labels; labels are moved apart, and turned to the side that has room."""
    lines: list[str] = []
    taken: list[float] = []
    for point in sorted(points, key=lambda point: -point.y):
        across, up = x.at(point.x), y.at(point.y)
        height = up + 4
        while any(abs(height - other) < _LABEL_HEIGHT for other in taken):
            height += 1
        taken.append(height)
        right = across < _WIDTH / 2
        colour = _COLOURS[point.marked]
        lines.append(f'<circle cx="{across:.1f}" cy="{up:.1f}" r="5" fill="{colour}"/>')
        anchor = "start" if right else "end"
        lines.append(text(across + (10 if right else -10), height, point.label, anchor=anchor, colour=colour))
    return lines
