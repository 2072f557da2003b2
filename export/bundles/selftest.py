"""Runs a bundle's self-test on this processor, and on an arm64 processor under qemu.

A bundle of graphs is run by the program that goes into it, one for the native library by `edgedecode-run`; in a process
of its own, and from the installed copy, so that a bundle from elsewhere runs no code here.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from math import inf
from pathlib import Path
from shlex import quote
from tempfile import TemporaryDirectory
from time import perf_counter

import edgedecode
from edgedecode.cache import cache_folder, facts_key
from edgedecode.engines.child import signal_name
from edgedecode.errors import InputError, ManifestError, RuntimeUnavailable
from edgedecode.locks import FOLDER, wait_for_lock
from edgedecode.typed_json import JsonValue, typed

from .bundle import Bundle
from .lint import lint_bundle
from .request import NATIVE
from .template_files import runtimes

SYSROOT = "EDGEDECODE_ARM64_SYSROOT"
_DEVICE = Path(__file__).parent / "device"
_SECONDS = 3600


@dataclass(frozen=True, slots=True)
class Answered:
    """How one prompt was answered. equal: as expected. lossless: the same text with and without drafts.

    largest_gap: how far an expected token, or one written with drafts, was below the likeliest, in logits; None: not
    measured, because the same bits are expected.
    """

    name: str
    tokens: int
    equal: bool
    lossless: bool
    largest_gap: float | None
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
class _Prompt:
    name: str


@dataclass(frozen=True, slots=True)
class _Prompts:
    prompts: tuple[_Prompt, ...]


@dataclass(frozen=True, slots=True)
class _Replayed:
    expected: tuple[int, ...]


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
        return self.ran and not self.reason and bool(self.answers) and all(map(self._is_right, self.answers))

    def _is_right(self, one: Answered) -> bool:
        gap = one.largest_gap
        return one.tokens > 0 and (one.equal if gap is None else gap <= self.tolerance)


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


def run_lanes(
    root: Path, bundle: Bundle, *, sysroot: Path | None, threads: int | None, program: Path | None = None
) -> Iterator[LaneResult]:
    """Run all lanes that can run here. Raises InputError for a bundle that none can, ManifestError for a damaged test.

    sysroot: an arm64 Python's folder. threads: None: as planned. program: `edgedecode-run`, one for arm64 with a
    sysroot; None: it is built.
    """
    if bundle.for_native:
        yield _run_native(root, bundle, program, sysroot, threads)
        return
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


def _run_native(
    root: Path, bundle: Bundle, program: Path | None, sysroot: Path | None, threads: int | None
) -> LaneResult:
    """Replay the recorded answers: the native library must write the same ids, with and without drafts."""
    expected = _replayed(root, bundle)
    lane = "native" if sysroot is None else "arm64"
    try:
        program = program.absolute() if program else built_program()  # a name alone would be looked for in PATH
        command = [str(program)]
        if sysroot is not None:
            command = [*arm64_python(sysroot).command[:-1], *command]
        engine = own_engine() if sysroot is None else _engine_in(sysroot)
    except RuntimeUnavailable as error:
        return LaneResult(lane, reason=str(error), ran=False)
    words = [str(root / NATIVE), "--replay", str(root / bundle.selftest.rounds), "--engine", str(engine)]
    words += ["--threads", str(threads or min(bundle.plan.threads, os.cpu_count() or 1))]
    started = perf_counter()
    try:
        done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return LaneResult(lane, reason=str(error))
    if not done.stdout.startswith('{"answers"'):
        ended = signal_name(done.returncode) or f"exit code {done.returncode}"
        said = (done.stderr.strip().splitlines() or [""])[-1]
        return LaneResult(lane, reason=f"edgedecode-run ended with {ended}{said and ': '}{said}")
    wrong = {int(number) for number in re.findall(r"^line (\d+):", done.stderr, re.MULTILINE)}
    answers = []
    for number, (name, tokens) in enumerate(expected, 1):
        equal = number not in wrong
        answers.append(Answered(name, tokens, equal, equal, None, 0, 0))
    seconds = round(perf_counter() - started, 2)
    return LaneResult(lane, f"edgedecode-run with {engine.name}", answers, 0.0, seconds)


def _replayed(root: Path, bundle: Bundle) -> list[tuple[str, int]]:
    """Return the prompt's name and the expected tokens of each answer to replay. Raises ManifestError."""
    try:
        text = (root / bundle.selftest.prompts).read_text(encoding="utf-8")
        prompts = typed(json.loads(text), _Prompts, "prompts").prompts
        lines = (root / bundle.selftest.rounds).read_text(encoding="utf-8").splitlines()
        answers = [typed(json.loads(line), _Replayed, f"line {number}") for number, line in enumerate(lines, 1)]
        names = [each.name for each in prompts for _ in range(2)]  # plainly, and with drafts
        if len(names) != len(answers):
            raise ValueError(f"it has {len(answers)} answers for {len(prompts)} prompts, not two for each")
        return [(name, len(answer.expected)) for name, answer in zip(names, answers, strict=True)]
    except ValueError as error:
        raise ManifestError(
            f"{root / bundle.selftest.rounds} cannot be replayed: {error}: make the bundle again"
        ) from None


def built_program() -> Path:
    """Return `edgedecode-run`, built again where a source has changed. Raises RuntimeUnavailable."""
    cache = cache_folder("native")
    if cache is None or any(shutil.which(name) is None for name in ("cmake", "c++")):
        raise RuntimeUnavailable(
            "edgedecode-run cannot be built here, which takes cmake, a C++ compiler and the user's cache: install "
            "them, or give --program"
        )
    source = (runtimes() / "native").resolve()
    folder = cache / facts_key(source)  # cmake refuses a folder of other sources
    version = f"-DEDGEDECODE_VERSION={edgedecode.__version__}"
    configure = ["cmake", "-S", str(source), "-B", str(folder), "-G", "Unix Makefiles", version]
    with _building(folder):
        for command in (configure, ["cmake", "--build", str(folder), "-j", "2", "--target", "edgedecode-run"]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                last = (done.stderr.strip().splitlines() or [""])[-1]
                raise RuntimeUnavailable(f"{shlex.join(command)} failed: {last}")
    return folder / "edgedecode-run"


@contextmanager
def _building(folder: Path) -> Iterator[None]:
    """Let one process at a time build in a folder; without a lock where the system has none."""
    locks, lock = cache_folder(FOLDER), None
    with suppress(OSError):
        if locks is not None:
            waiting = "waiting for another process that builds edgedecode-run"
            lock = wait_for_lock(locks / f"native-{folder.name}", seconds=inf, waiting=waiting)
    with lock or nullcontext():
        yield


def own_engine() -> Path:
    """Return the library of Python's onnxruntime. Raises RuntimeUnavailable."""
    spec = find_spec("onnxruntime")
    found = None if spec is None or spec.origin is None else Path(spec.origin).parent / "capi"
    engine = None if found is None else next(found.glob("libonnxruntime.so*"), None)
    if engine is None:
        raise RuntimeUnavailable("onnxruntime, or its library, is not installed: pip install 'edgedecode[onnx]'")
    return engine


def _engine_in(sysroot: Path) -> Path:
    engine = next(sysroot.absolute().rglob("libonnxruntime.so*"), None)
    if engine is None:
        raise RuntimeUnavailable(f"{sysroot} has no libonnxruntime.so: make it again (docs/android.md)")
    return engine


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
