"""Phones and chips that bundles are planned for: memory, what an app may hold of it, and how fast memory is.

Shares and bandwidths are assumptions for planning, from the makers' published figures; a profile that was measured on
the device (`edgedecode bench --json`, `package --profile`) replaces the speeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgedecode.errors import InputError
from edgedecode.memory.sizes import format_nbytes

GB = 10**9


@dataclass(frozen=True, slots=True)
class Device:
    """A device. soc: its chip as `Build.SOC_MODEL` names it; empty: any."""

    name: str
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

PHONES: Mapping[str, Device] = {
    device.name: device
    for device in (
        Device("Galaxy A15", 4 * GB, threads=2, bandwidth=8e9),
        Device("Galaxy A54", 6 * GB, bandwidth=12e9),
        Device("Pixel 7a", 8 * GB, bandwidth=20e9),
        Device("Pixel 8", 8 * GB, bandwidth=25e9),
        Device("Galaxy S21 Ultra", 12 * GB, "SM8350", bandwidth=25e9),
        Device("Galaxy S23", 8 * GB, "SM8550", bandwidth=33e9),
        Device("Galaxy S24", 8 * GB, "SM8650", bandwidth=38e9),
        Device("OnePlus 12", 12 * GB, "SM8650", bandwidth=38e9),
        Device("Galaxy S25", 12 * GB, "SM8750", bandwidth=42e9),
        Device("Surface Laptop 7", 16 * GB, "X1E80100", threads=8, bandwidth=65e9),
    )
}


def find_device(name: str | None, *, memory_nbytes: int | None, soc: str | None) -> Device:
    """Return a phone of the table, or a device of this memory and chip; without any, one of 8 GB.

    soc: as `Build.SOC_MODEL` names it. Raises InputError.
    """
    if name is not None:
        found = next((device for device in PHONES.values() if device.name.casefold() == name.casefold()), None)
        if found is None:
            known = "; ".join(f"{device.name} ({format_nbytes(device.memory_nbytes)})" for device in PHONES.values())
            raise InputError(f"--device {name}: give one of these, or --device-memory: {known}")
        return found
    memory_nbytes = memory_nbytes or 8 * GB
    if not GB <= memory_nbytes <= 1024 * GB:
        raise InputError(f"--device-memory: {format_nbytes(memory_nbytes)} is out of range: 1GB to 1024GB")
    return Device("", memory_nbytes, soc or "", bandwidth=_BANDWIDTHS.get(soc or "", 12e9))
