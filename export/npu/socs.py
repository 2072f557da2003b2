"""The chips that a pack is compiled for: reads `--soc`."""

from dataclasses import dataclass

from edgedecode.errors import InputError
from edgedecode.pack.chips import CHIPS, Chip

_FLOAT_GENERATION = 73
"""The first generation that these graphs were compiled for here. v68 has no 16-bit float products."""


@dataclass(frozen=True, slots=True)
class SocGroup:
    """The systems on chip that share one binary; usually one."""

    socs: tuple[Chip, ...]

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
    for group in groups:
        if groups.count(group) > 1 or len(set(group.numbers)) < len(group.numbers):
            raise InputError(f"--soc {text}: {'+'.join(map(str, group.numbers))} names a chip twice")
    return tuple(groups)


def _soc(text: str) -> Chip:
    soc = CHIPS.get(int(text)) if text.strip().isdecimal() and len(text) < 6 else None
    if soc is None:
        known = "; ".join(f"{each.number}: {each.name}" for each in CHIPS.values())
        raise InputError(f"--soc: {text.strip()!r} is not a known system on chip, which are {known}")
    if soc.generation < _FLOAT_GENERATION:
        raise InputError(
            f"--soc {soc.number}: the {soc.name} (Hexagon v{soc.generation}) has no 16-bit float products, which these "
            f"graphs use: leave it out, and run the pack on its processor"
        )
    return soc
