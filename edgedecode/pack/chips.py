"""Qualcomm's systems on chip, by the numbers and NPU generations that compiler and driver take."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CHIPS", "Chip"]


@dataclass(frozen=True, slots=True)
class Chip:
    """One system on chip: its number, the generation of its NPU (Hexagon), and name."""

    number: int
    generation: int
    name: str


CHIPS = {
    chip.number: chip
    for chip in (
        Chip(30, 68, "Snapdragon 888"),
        Chip(43, 73, "Snapdragon 8 Gen 2, QCS8550"),
        Chip(57, 75, "Snapdragon 8 Gen 3"),
        Chip(60, 73, "Snapdragon X Elite"),
        Chip(69, 79, "Snapdragon 8 Elite"),
        Chip(87, 81, "Snapdragon 8 Elite Gen 5"),
        Chip(88, 81, "Snapdragon X2 Elite"),
        Chip(93, 68, "QCS6490"),
    )
}
