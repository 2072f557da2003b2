"""Devices that bundles are planned for: memory, what an app may hold of it, and how fast memory is.

Shares and bandwidths are assumptions for planning, from the makers' published figures; a profile that was measured on
the device (`edgedecode bench --json`, `package --profile`) replaces the speeds.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from edgedecode.errors import InputError
from edgedecode.memory.sizes import format_nbytes

GB = 10**9


@dataclass(frozen=True, slots=True)
class Device:
    """A device. soc: its chip as `Build.SOC_MODEL` names it; empty: any."""

    memory_nbytes: int
    soc: str = ""
    threads: int = 4
    """Fast cores, which decoding runs on."""
    bandwidth: float = 12e9
    """Bytes a second that the processor reads from memory."""

    @property
    def budget_nbytes(self) -> int:
        """What an app may hold in the foreground."""
        return int(self.memory_nbytes * usual_share(self.memory_nbytes))


def usual_share(memory_nbytes: int) -> float:
    """Return the share of a phone's memory that an app may hold: the system needs about 3 GB whatever its size."""
    return min(0.5, max(0.2, (memory_nbytes - 3 * GB) / memory_nbytes / 1.5))


_BANDWIDTHS: Mapping[str, float] = {
    "SM8350": 25e9,
    "SM8550": 33e9,
    "SM8650": 38e9,
    "SM8750": 42e9,
    "SM8850": 42e9,
    "X1E80100": 65e9,
    "X2E80100": 75e9,
    "QCS6490": 12e9,
    "QCS8550": 33e9,
}
"""About half of what the memory could deliver, by chip."""


def device_of(memory_nbytes: int | None, soc: str) -> Device:
    """Return a device of this memory (None: 8 GB) and chip, as `Build.SOC_MODEL` names it. Raises InputError."""
    nbytes = memory_nbytes or 8 * GB
    if not GB <= nbytes <= 1024 * GB:
        raise InputError(f"--device-memory: {format_nbytes(nbytes)} is out of range: 1GB to 1024GB")
    return Device(nbytes, soc, bandwidth=_BANDWIDTHS.get(soc, 12e9))
