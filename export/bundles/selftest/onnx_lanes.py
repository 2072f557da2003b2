"""ONNX Runtime's lanes: this processor, an arm64 processor under qemu, and an NPU or its emulator.

All run the files that go into bundles, in a process of its own: the installed copies, so that a bundle from elsewhere
runs no code here.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from edgedecode.engines.child import signal_name
from edgedecode.typed_json import JsonValue, typed

from ..bundle import Bundle
from .lane import Answered, LaneResult, Options

_DEVICE = Path(__file__).parents[1] / "device"
_SECONDS = 3600


@dataclass(frozen=True, slots=True)
class _Report:
    """The line that the program prints."""

    machine: str
    onnxruntime: str
    tolerance: float
    seconds: float
    prompts: tuple[Answered, ...]


class OnnxLane:
    """A lane whose program is `selftest/run.py`."""

    name = ""
    description = ""
    provider = "cpu"

    def suits(self, bundle: Bundle) -> bool:
        return any(graph.provider == self.provider for graph in bundle.models["target"].graphs)

    def missing(self, options: Options) -> str:
        return "" if find_spec("onnxruntime") else "onnxruntime is not installed: pip install 'edgedecode[onnx]'"

    def interpreter(self, options: Options) -> tuple[Sequence[str], Mapping[str, str]]:
        """Return the command of a Python interpreter, and its environment."""
        return [sys.executable], os.environ

    def run(self, root: Path, bundle: Bundle, options: Options) -> LaneResult:
        command, environment = self.interpreter(options)
        words = ["--bundle", str(root.resolve()), "--provider", self.provider, "--json"]
        words += ["--soc", str(options.soc)] if options.soc is not None and self.provider == "qnn" else []
        words += ["--threads", str(options.threads or min(bundle.plan.threads, os.cpu_count() or 1))]
        with TemporaryDirectory(prefix="selftest") as folder:
            shutil.copytree(_DEVICE, Path(folder) / "selftest", ignore=shutil.ignore_patterns("__pycache__"))
            try:
                done = subprocess.run(
                    [*command, "-m", "selftest.run", *words],
                    cwd=folder,
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=_SECONDS,
                    check=False,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                return LaneResult(self.name, reason=str(error))
        return self._read(done)

    def _read(self, done: subprocess.CompletedProcess[str]) -> LaneResult:
        lines = done.stdout.strip().splitlines()
        try:
            value: JsonValue = json.loads(lines[-1]) if lines else None
            report = typed(value, _Report, "report")
        except ValueError:
            ended = signal_name(done.returncode) or f"exit code {done.returncode}"
            last = (done.stderr.strip().splitlines() or [""])[-1]
            return LaneResult(self.name, reason=f"the program ended with {ended}{last and ': '}{last}")
        return LaneResult(
            self.name,
            engine=f"onnxruntime {report.onnxruntime}, {report.machine}",
            answers=report.prompts,
            tolerance=report.tolerance,
            seconds=report.seconds,
        )


class CpuLane(OnnxLane):
    """This machine's processor."""

    name = "cpu"
    description = "ONNX Runtime on this processor"


class Arm64Lane(OnnxLane):
    """An arm64 Python under qemu-user: the kernels of phones, slowly."""

    name = "arm64"
    description = "ONNX Runtime on an emulated arm64 processor"
    variable = "EDGEDECODE_ARM64_SYSROOT"

    def suits(self, bundle: Bundle) -> bool:
        return super().suits(bundle) and bundle.abi.startswith("arm64")

    def missing(self, options: Options) -> str:
        sysroot = self._sysroot(options)
        if shutil.which("qemu-aarch64") is None:
            return "qemu-aarch64 is not installed: apt install qemu-user (10 or later)"
        if sysroot is None:
            return (
                f"there is no arm64 Python: give --sysroot, or {self.variable} (docs/android.md says how to make one)"
            )
        if not self._python(sysroot):
            return f"{sysroot} has no usr/bin/python3.*: make it again (docs/android.md)"
        return ""

    def interpreter(self, options: Options) -> tuple[Sequence[str], Mapping[str, str]]:
        sysroot = self._sysroot(options)
        assert sysroot is not None
        environment = os.environ | {"PYTHONPATH": str(sysroot / "site"), "PYTHONHOME": str(sysroot / "usr")}
        return ["qemu-aarch64", "-L", str(sysroot), self._python(sysroot)], environment

    def _sysroot(self, options: Options) -> Path | None:
        named = os.environ.get(self.variable)
        sysroot = options.sysroot or (Path(named) if named else None)
        return None if sysroot is None else sysroot.absolute()  # programs run in another folder

    def _python(self, sysroot: Path) -> str:
        found = sorted(path for path in sysroot.glob("usr/bin/python3.*") if path.suffix[1:].isdigit())
        return str(found[-1].absolute()) if found else ""


class NpuLane(OnnxLane):
    """The NPU of this machine, or on x86-64 Linux its emulator."""

    name = "npu"
    description = "Qualcomm's NPU, emulated on x86-64"
    provider = "qnn"

    def missing(self, options: Options) -> str:
        if find_spec("onnxruntime_qnn") is None:
            return "onnxruntime-qnn is not installed: pip install 'edgedecode[qnn]'"
        return super().missing(options)
