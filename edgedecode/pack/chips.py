"""Qualcomm's systems on chip: their numbers and NPU generations, and the names that Android reports."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Chip:
    """One system on chip: its number, the generation of its NPU (Hexagon), and name.

    models: as Android's `Build.SOC_MODEL` or Windows reports it.
    """

    number: int
    generation: int
    name: str
    models: tuple[str, ...] = ()


CHIPS = {
    chip.number: chip
    for chip in (
        Chip(30, 68, "Snapdragon 888", ("SM8350",)),
        Chip(43, 73, "Snapdragon 8 Gen 2, QCS8550", ("SM8550", "QCS8550")),
        Chip(57, 75, "Snapdragon 8 Gen 3", ("SM8650",)),
        Chip(60, 73, "Snapdragon X Elite", ("X1E80100", "X1E78100")),
        Chip(69, 79, "Snapdragon 8 Elite", ("SM8750",)),
        Chip(87, 81, "Snapdragon 8 Elite Gen 5", ("SM8850",)),
        Chip(88, 81, "Snapdragon X2 Elite", ("X2E80100",)),
        Chip(93, 68, "QCS6490", ("QCS6490",)),
    )
}
