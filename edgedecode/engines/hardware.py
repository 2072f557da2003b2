"""Facts about the processor that key cached measurements of native code."""

import os
import platform
from pathlib import Path


def processor_facts() -> list[str]:
    """Return the processor's model and flags on Linux, else the platform's description."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return [platform.platform(), platform.processor()]
    return sorted({line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))})


def cores() -> int:
    """Return the number of logical cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
