"""Pieces of self-contained SVG drawings, axes, lines, text, and the files they are written to."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10
from pathlib import Path

from edgedecode.cache import aside
from edgedecode.errors import InputError

__all__ = ["Axis", "check_drawing", "document", "line", "polyline", "text", "write_drawing"]

_DRAWING_NBYTES = 1 << 18
"""More than any drawing has."""

_TICKS = 5
_MARGIN = 0.08


@dataclass(frozen=True, slots=True)
class Axis:
    """Maps values onto pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    @classmethod
    def over(cls, values: Sequence[float], start: float, end: float) -> Axis:
        """Return an axis over all values, with a margin on both sides."""
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


def document(parts: Sequence[str], *, width: int, height: int) -> str:
    """Return the whole drawing, on white."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
    ground = f'<rect width="{width}" height="{height}" fill="white"/>'
    return "\n".join([f'{head}font-size="12">', ground, *parts, "</svg>"]) + "\n"


def text(x: float, y: float, content: str, *, anchor: str, colour: str = "black") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(content)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def polyline(xs: Sequence[float], ys: Sequence[float], colour: str) -> str:
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True))
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'


def check_drawing(path: Path) -> None:
    """Raise InputError, before anything is measured, for a file that could not be written in the end."""
    folder = path.absolute().parent
    if path.suffix.lower() != ".svg":
        raise InputError(f"--plot {path}: drawings are SVG, name the file so (such as {path.stem or 'plot'}.svg)")
    if not folder.is_dir():
        raise InputError(f"--plot {path}: there is no folder {folder}")
    if path.is_dir():
        raise InputError(f"--plot {path} is a folder: name a file in it")
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_DRAWING_NBYTES))
    except OSError as error:
        raise _unwritten(path, error) from None


def write_drawing(path: Path, drawing: str) -> None:
    """Write a drawing, in one step. Raises InputError where that fails."""
    try:
        with aside(path) as fresh:
            fresh.write_text(drawing, encoding="utf-8")
    except OSError as error:
        raise _unwritten(path, error) from None


def _unwritten(path: Path, error: OSError) -> InputError:
    return InputError(f"--plot {path} cannot be written: {error.strerror or error}")
