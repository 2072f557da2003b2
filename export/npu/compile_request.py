"""What to compile: for which chips, which widths, and how many past positions."""

import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from edgedecode.errors import ExportError, InputError, RuntimeUnavailable
from edgedecode.pack.chips import CHIPS, Chip
from edgedecode.pack.manifest import Manifest
from edgedecode.pack.static_graphs import HEAD_ROWS

DEVICES = ("qnn", "openvino")
"""Providers that need graphs of fixed shapes. For openvino nothing is compiled ahead of time."""
DEFAULT_WIDTHS = "128,8,1"
_DEFAULT_SLOTS = 2048
_MOST_WIDTH, _MOST_WIDTHS = 512, 6
_PACKAGE, _DISTRIBUTION, _SERIES = "onnxruntime_qnn", "onnxruntime-qnn", "2.7."

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
        return f"{'+'.join(map(str, self.numbers))}_{'+'.join(generations)}"

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(soc.number for soc in self.socs)

    @property
    def options(self) -> dict[str, str]:
        """The provider options that select it."""
        generations = ",".join(str(soc.generation) for soc in self.socs)
        return {"soc_model": ",".join(map(str, self.numbers)), "htp_arch": generations}


@dataclass(frozen=True, slots=True)
class CompileRequest:
    """slots: past positions; None: the model's context, up to 2048."""

    device: str
    socs: tuple[SocGroup, ...]
    """Chips to compile for; empty: the graphs alone are made."""
    widths: tuple[int, ...]
    """Rows of a pass, ascending."""
    slots: int | None = None

    @classmethod
    def of(
        cls, device: str, *, socs: str | None, widths: str = DEFAULT_WIDTHS, slots: int | None = None
    ) -> "CompileRequest":
        """Parse the command line's values. Raises InputError."""
        if device not in DEVICES:
            raise InputError(f"--device {device}: graphs can be compiled for {', '.join(DEVICES)}")
        if socs is not None and device != "qnn":
            raise InputError(f"--soc {socs}: --device {device} compiles for no chip: leave --soc out")
        return cls(device, () if socs is None else read_socs(socs), _read_widths(widths), slots)

    def slots_of(self, manifest: Manifest) -> int:
        """Return the past positions for a pack. Raises ExportError if a model or a width does not allow them."""
        context = min(entry.context for entry in manifest.models.values())
        slots = min(context, _DEFAULT_SLOTS) if self.slots is None else self.slots
        if slots > context:
            raise ExportError(
                f"--context {slots}: the pack's models have a context of {context}: give at most that, or export the "
                f"pack again with a longer one"
            )
        if self.widths[-1] > slots:
            raise ExportError(
                f"--widths {self.widths[-1]}: a pass cannot be wider than the context of {slots}: give a smaller width"
            )
        return slots


def _read_widths(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if wrong := [part for part in parts if not (part.isdecimal() and len(part) < 6 and 1 <= int(part) <= _MOST_WIDTH)]:
        raise InputError(f"--widths: {wrong[0]!r} is not a number of rows from 1 to {_MOST_WIDTH}")
    widths = sorted({int(part) for part in parts})
    if len(widths) > _MOST_WIDTHS:
        raise InputError(f"--widths: {len(widths)} widths, each a copy of the weights: give at most {_MOST_WIDTHS}")
    if widths[0] > HEAD_ROWS:
        raise InputError(
            f"--widths: the narrowest pass, {widths[0]} rows, returns one row's logits, and verification needs every "
            f"row's: add a width of 1 to {HEAD_ROWS}"
        )
    return tuple(widths)


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


def require_compiler() -> None:
    """Raise RuntimeUnavailable with the remedy unless the compiler is installed."""
    remedy = "pip install 'edgedecode[export,qnn]'"
    if find_spec(_PACKAGE) is None:
        where = "" if sys.platform == "linux" else " (the compiler needs Linux on x86-64)"
        raise RuntimeUnavailable(f"{_DISTRIBUTION}, which compiles for Hexagon NPUs, is not installed{where}: {remedy}")
    try:
        found = version(_DISTRIBUTION)
    except PackageNotFoundError:
        found = "unknown"
    if not found.startswith(_SERIES):
        raise RuntimeUnavailable(f"{_DISTRIBUTION} {found} is installed, {_SERIES}* is needed: {remedy}")
