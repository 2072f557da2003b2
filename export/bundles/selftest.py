"""Runs a bundle's self-test on this processor, and on an arm64 processor under qemu.

Both run the program that goes into bundles, in a process of its own: the installed copy, so that a bundle from
elsewhere runs no code here. On a device, an NPU or its emulator it is run from the bundle: `python -m selftest.run`.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from tempfile import TemporaryDirectory

from edgedecode.engines.child import signal_name
from edgedecode.errors import InputError, ManifestError, RuntimeUnavailable
from edgedecode.typed_json import JsonValue, typed

from .bundle import Bundle
from .lint import lint_bundle

SYSROOT = "EDGEDECODE_ARM64_SYSROOT"
_DEVICE = Path(__file__).parent / "device"
_SECONDS = 3600


@dataclass(frozen=True, slots=True)
class Answered:
    """How one prompt was answered. equal: as expected. lossless: the same text with and without drafts.

    largest_gap: how far an expected token, or one written with drafts, was below the likeliest, in logits.
    """

    name: str
    tokens: int
    equal: bool
    lossless: bool
    largest_gap: float
    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True)
class _Report:
    """The line that the program prints."""

    machine: str
    onnxruntime: str
    tolerance: float
    seconds: float
    prompts: tuple[Answered, ...]


@dataclass(frozen=True, slots=True)
class LaneResult:
    """A lane's outcome. reason: why it could not run, or failed other than by its answers; empty: it ran."""

    lane: str
    engine: str = ""
    answers: Sequence[Answered] = ()
    tolerance: float = 0.0
    seconds: float = 0.0
    reason: str = ""
    ran: bool = True

    @property
    def passed(self) -> bool:
        scored = bool(self.answers) and all(each.tokens for each in self.answers)
        within = all(each.largest_gap <= self.tolerance for each in self.answers)
        return self.ran and not self.reason and scored and within


@dataclass(frozen=True, slots=True)
class Interpreter:
    """How a lane's Python is started."""

    command: Sequence[str]
    environment: Mapping[str, str]


def check_bundle(root: Path) -> Bundle:
    """Read a bundle that `lint` finds no error in. Raises ManifestError: native code reads its files next."""
    for finding in lint_bundle(root):
        if finding.level == "error":
            raise ManifestError(
                f"{root / finding.file} {finding.message}: {finding.remedy} "
                f"(`edgedecode lint {quote(str(root))}` lists all errors)"
            )
    return Bundle.load(root)


def run_lanes(root: Path, bundle: Bundle, *, sysroot: Path | None, threads: int | None) -> Iterator[LaneResult]:
    """Run all lanes that can run here. Raises InputError for a bundle that none can.

    sysroot: an arm64 Python's folder. threads: None: as planned.
    """
    if all(graph.provider != "cpu" for graph in bundle.models["target"].graphs):
        raise InputError(
            f"a bundle for {bundle.target} holds no graph for processors: run it on a device (docs/android.md says how)"
        )
    for name, found in LANES.items():
        try:
            python = found(sysroot)
        except RuntimeUnavailable as error:
            yield LaneResult(name, reason=str(error), ran=False)
        else:
            yield _run(name, python, root, threads or min(bundle.plan.threads, os.cpu_count() or 1))


def own_python(sysroot: Path | None) -> Interpreter:
    """Return the interpreter that runs this. Raises RuntimeUnavailable."""
    if find_spec("onnxruntime") is None:
        raise RuntimeUnavailable("onnxruntime is not installed: pip install 'edgedecode[onnx]'")
    return Interpreter([sys.executable], os.environ)


def arm64_python(sysroot: Path | None) -> Interpreter:
    """Return an arm64 Python under qemu-user: the kernels of phones, slowly. Raises RuntimeUnavailable."""
    if shutil.which("qemu-aarch64") is None:
        raise RuntimeUnavailable("qemu-aarch64 is not installed: apt install qemu-user (10 or later)")
    sysroot = sysroot or Path(os.environ.get(SYSROOT, ""))
    if sysroot == Path():
        raise RuntimeUnavailable(
            f"there is no arm64 Python: give --sysroot, or {SYSROOT} (docs/android.md says how to make one)"
        )
    sysroot = sysroot.absolute()  # the program runs in another folder
    pythons = sorted(path for path in sysroot.glob("usr/bin/python3.*") if path.suffix[1:].isdigit())
    if not pythons:
        raise RuntimeUnavailable(f"{sysroot} has no usr/bin/python3.*: make it again (docs/android.md)")
    environment = os.environ | {"PYTHONPATH": str(sysroot / "site"), "PYTHONHOME": str(sysroot / "usr")}
    return Interpreter(["qemu-aarch64", "-L", str(sysroot), str(pythons[-1])], environment)


LANES: Mapping[str, Callable[[Path | None], Interpreter]] = {"cpu": own_python, "arm64": arm64_python}


def _run(lane: str, python: Interpreter, root: Path, threads: int) -> LaneResult:
    words = ["--bundle", str(root.resolve()), "--provider", "cpu", "--json", "--threads", str(threads)]
    with TemporaryDirectory(prefix="selftest") as folder:
        shutil.copytree(_DEVICE, Path(folder) / "selftest", ignore=shutil.ignore_patterns("__pycache__"))
        try:
            done = subprocess.run(
                [*python.command, "-m", "selftest.run", *words],
                cwd=folder,
                env=python.environment,
                capture_output=True,
                text=True,
                timeout=_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return LaneResult(lane, reason=str(error))
    lines = done.stdout.strip().splitlines()
    try:
        value: JsonValue = json.loads(lines[-1]) if lines else None
        report = typed(value, _Report, "report")
    except ValueError:
        ended = signal_name(done.returncode) or f"exit code {done.returncode}"
        last = (done.stderr.strip().splitlines() or [""])[-1]
        return LaneResult(lane, reason=f"the program ended with {ended}{last and ': '}{last}")
    engine = f"onnxruntime {report.onnxruntime}, {report.machine}"
    return LaneResult(lane, engine, report.prompts, report.tolerance, report.seconds)
