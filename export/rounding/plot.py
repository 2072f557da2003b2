"""A comparison drawn as one self-contained SVG: size to the right, agreement with the original weights upwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10

__all__ = ["Point", "scatter_svg"]

_WIDTH, _HEIGHT = 900, 480
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 40, 50, 60
_TICKS = 5
_MARGIN = 0.08
_LABEL_HEIGHT = 15
_COLOURS = {False: "#1f77b4", True: "#d95f02"}


@dataclass(frozen=True, slots=True)
class Point:
    """One recipe: megabytes, agreement in percent, a label; marked ones have the other colour."""

    x: float
    y: float
    label: str
    marked: bool = False


@dataclass(frozen=True, slots=True)
class _Axis:
    """Maps values onto pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    @classmethod
    def over(cls, values: Sequence[float], start: float, end: float) -> _Axis:
        low, high = min(values), max(values)
        margin = (high - low) * _MARGIN or abs(high) * _MARGIN or 1.0
        return cls(low - margin, high + margin, start, end)

    def at(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    @property
    def ticks(self) -> list[float]:
        """Round values inside the axis, about five."""
        raw = (self.high - self.low) / _TICKS
        power = 10.0 ** floor(log10(raw))
        step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw)
        first = floor(self.low / step) + 1
        return [index * step for index in range(first, first + 2 * _TICKS) if index * step <= self.high]


def scatter_svg(points: Sequence[Point], *, title: str) -> str:
    """Return the drawing as text. At least one point is needed."""
    x = _Axis.over([point.x for point in points], _LEFT, _WIDTH - _RIGHT)
    y = _Axis.over([point.y for point in points], _HEIGHT - _BOTTOM, _TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        f'font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        _text(_WIDTH / 2, 24, title, anchor="middle"),
        *_x_axis(x),
        *_y_axis(y),
        *_marks(points, x, y),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _x_axis(axis: _Axis) -> list[str]:
    base = _HEIGHT - _BOTTOM
    lines = [_line(_LEFT, base, _WIDTH - _RIGHT, base, "black")]
    for tick in axis.ticks:
        lines.append(_line(axis.at(tick), _TOP, axis.at(tick), base, "#dddddd"))
        lines.append(_text(axis.at(tick), base + 18, f"{tick:g}", anchor="middle"))
    lines.append(_text(_WIDTH / 2, _HEIGHT - 16, "weights, MB", anchor="middle"))
    return lines


def _y_axis(axis: _Axis) -> list[str]:
    lines = [_line(_LEFT, _TOP, _LEFT, _HEIGHT - _BOTTOM, "black")]
    for tick in axis.ticks:
        lines.append(_line(_LEFT, axis.at(tick), _WIDTH - _RIGHT, axis.at(tick), "#dddddd"))
        lines.append(_text(_LEFT - 8, axis.at(tick) + 4, f"{tick:g} %", anchor="end"))
    lines.append(_text(_LEFT, _TOP - 12, "same leading token as the original weights", anchor="start"))
    return lines


def _marks(points: Sequence[Point], x: _Axis, y: _Axis) -> list[str]:
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
        lines.append(_text(across + (10 if right else -10), height, point.label, anchor=anchor, colour=colour))
    return lines


def _text(x: float, y: float, text: str, *, anchor: str, colour: str = "black") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'
