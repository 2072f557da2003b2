"""Facts about this machine: processor, cores, memory, and the versions of the software."""

import platform
import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from edgedecode import __version__
from edgedecode.engines.hardware import cores
from edgedecode.memory.limit import system_lines

_ALWAYS = ("numpy", "tokenizers")


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts reported with every measurement."""

    processor: str
    cores: int
    """Cores this process may use."""
    total_nbytes: int | None
    available_nbytes: int | None
    system: str
    python: str

    @classmethod
    def here(cls) -> "Machine":
        lines = (line.split() for line in system_lines(Path("/proc/meminfo")) if line.endswith(" kB"))
        memory = {name: 1024 * int(size) for name, size, _ in lines}
        return cls(
            processor=_processor(),
            cores=cores(),
            total_nbytes=memory.get("MemTotal:"),
            available_nbytes=memory.get("MemAvailable:"),
            system=platform.platform(terse=True),
            python=platform.python_version(),
        )

    @property
    def line(self) -> str:
        """Processor, cores and system in one line."""
        return f"{self.processor}, {self.cores} cores, {self.system}"


def versions(runtime: str) -> dict[str, str]:
    """Return the versions of edgedecode, of numpy and tokenizers, and of the packages in the runtime's extra."""
    return {"edgedecode": __version__} | {name: _version(name) for name in (*_ALWAYS, *_extra(runtime))}


def engine_versions(runtime: str) -> str:
    """Return a runtime's engine with its version, such as `onnxruntime 1.31.1`; the runtime's name if unknown."""
    return ", ".join(f"{name} {_version(name)}" for name in dict.fromkeys(_extra(runtime))) or runtime


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _extra(name: str) -> list[str]:
    """Return the distributions that the extra of this name needs, except edgedecode itself."""
    try:
        lines = requires("edgedecode") or []
    except PackageNotFoundError:
        return []
    marker = re.compile(rf"extra\s*==\s*['\"]{re.escape(name)}['\"]")
    names = [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in lines if marker.search(line)]
    return [name for name in names if name != "edgedecode"]


def _processor() -> str:
    text = "\n".join(system_lines(Path("/proc/cpuinfo"))).encode("utf-8", "replace").decode()
    for key in ("model name", "Model", "Hardware"):
        if found := re.search(rf"^{key}\s*:\s*(.+)$", text, re.MULTILINE):
            return f"{found[1].strip()} ({platform.machine()})"
    return f"{platform.processor() or 'unknown processor'} ({platform.machine()})"
