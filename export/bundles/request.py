"""What `edgedecode package` was asked for, checked before anything is written."""

import re
from dataclasses import dataclass
from pathlib import Path

from edgedecode.errors import InputError
from edgedecode.pack.chips import CHIPS, Chip

from .devices import Device
from .targets import Target

_PACKAGE = re.compile(r"[a-zA-Z][a-zA-Z0-9_]*(\.[a-zA-Z][a-zA-Z0-9_]*)+")
_RESERVED = frozenset(
    re.findall(
        r"\w+",
        """abstract as boolean break class const continue default do else enum extends false final for fun if import in
        int interface is long native new null object package private protected public return short static super switch
        this throw true try typealias typeof val var void when while""",
    )
)


@dataclass(frozen=True, slots=True)
class PackageRequest:
    """pack: its folder. socs: the chips to take compiled graphs of; empty: all. context: None: chosen by the plan."""

    pack: Path
    target: Target
    out: Path
    device: Device
    package: str
    """The app's name for Android, such as com.example.chat."""
    socs: tuple[Chip, ...] = ()
    context: int | None = None
    prompts: Path | None = None
    """Self-test prompts as jsonl; None: bundled ones."""
    profile: Path | None = None
    tokens: int = 32
    """Most tokens of a self-test answer."""


def check_package_name(name: str) -> str:
    """Return the name. Raises InputError for one that Android refuses."""
    if len(name) > 200 or not _PACKAGE.fullmatch(name):
        raise InputError(
            f"--app-id {name!r}: Android takes names of two or more parts, separated by dots, of letters, digits and "
            f"underscores, each beginning with a letter, such as com.example.chat"
        )
    if wrong := [part for part in name.split(".") if part in _RESERVED]:
        raise InputError(f"--app-id {name!r}: {wrong[0]!r} is a keyword of Java or Kotlin: use another word")
    return name


def read_chip(text: str) -> Chip:
    """Return the chip of this number, or of this name in `Build.SOC_MODEL`. Raises InputError."""
    for chip in CHIPS.values():
        if text == str(chip.number) or text.upper() in chip.models:
            return chip
    known = "; ".join(f"{chip.number}: {', '.join(chip.models)} ({chip.name})" for chip in CHIPS.values())
    raise InputError(f"--soc: {text!r} is not a known chip, which are {known}")
