"""Qualcomm's systems on chip by the numbers and generations that the compiler takes."""

from __future__ import annotations

from dataclasses import dataclass

from edgedecode.errors import InputError

__all__ = ["SOCS", "Soc", "SocGroup", "read_socs"]

_FLOAT_GENERATION = 73
"""The first generation that these graphs were compiled for here. v68 has no 16-bit float products."""


@dataclass(frozen=True, slots=True)
class Soc:
    """One system on chip: its number, Hexagon generation, and name."""

    number: int
    generation: int
    name: str


SOCS = {
    soc.number: soc
    for soc in (
        Soc(30, 68, "Snapdragon 888"),
        Soc(43, 73, "Snapdragon 8 Gen 2, QCS8550"),
        Soc(57, 75, "Snapdragon 8 Gen 3"),
        Soc(60, 73, "Snapdragon X Elite"),
        Soc(69, 79, "Snapdragon 8 Elite"),
        Soc(87, 81, "Snapdragon 8 Elite Gen 5"),
        Soc(88, 81, "Snapdragon X2 Elite"),
        Soc(93, 68, "QCS6490"),
    )
}


@dataclass(frozen=True, slots=True)
class SocGroup:
    """The systems on chip that share one binary; usually one."""

    socs: tuple[Soc, ...]

    @property
    def folder(self) -> str:
        """The name of its folder in a pack."""
        generations = dict.fromkeys(f"v{soc.generation}" for soc in self.socs)
        return "+".join(str(soc.number) for soc in self.socs) + "_" + "+".join(generations)

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(soc.number for soc in self.socs)

    @property
    def options(self) -> dict[str, str]:
        """The provider options that select it."""
        return {
            "soc_model": ",".join(str(soc.number) for soc in self.socs),
            "htp_arch": ",".join(str(soc.generation) for soc in self.socs),
        }


def read_socs(text: str) -> tuple[SocGroup, ...]:
    """Parse `57,69+87`: a binary for 57, and one for 69 and 87 together. Raises InputError."""
    groups = [SocGroup(tuple(_soc(part) for part in parts.split("+"))) for parts in text.split(",")]
    numbers = [number for group in groups for number in group.numbers]
    if twice := [number for number in numbers if numbers.count(number) > 1]:
        raise InputError(f"--soc {text}: {twice[0]} is given twice")
    return tuple(groups)


def _soc(text: str) -> Soc:
    soc = SOCS.get(int(text)) if text.strip().isdecimal() and len(text) < 6 else None
    if soc is None:
        known = "; ".join(f"{each.number}: {each.name}" for each in SOCS.values())
        raise InputError(f"--soc: {text.strip()!r} is not a known system on chip, which are {known}")
    if soc.generation < _FLOAT_GENERATION:
        raise InputError(
            f"--soc {soc.number}: the {soc.name} (Hexagon v{soc.generation}) has no 16-bit float products, which these "
            f"graphs use: leave it out, and run the pack on its processor"
        )
    return soc
