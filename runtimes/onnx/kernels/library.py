"""Finds and loads the kernels' library, and says why the engine's own kernels run where they do.

`EDGEDECODE_KERNELS` chooses: auto (the best this processor has), an instruction set by name, or engine. The library is
tried in a child process first, once for each build and processor: native code that dies must not take a chat with it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from ctypes import CDLL, POINTER, Structure, byref, c_char_p, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgedecode.cache import cache_folder, keep_json, kept_json
from edgedecode.decoding.arrays import FloatArray
from edgedecode.engines.hardware import processor_facts
from edgedecode.engines.interpreter import interpreter
from edgedecode.errors import InputError, RuntimeUnavailable
from edgedecode.schedule.checked_numbers import mapping
from edgedecode.user_notices import notice

__all__ = [
    "CHOICES",
    "INSTRUCTION_SETS",
    "VARIABLE",
    "KernelLibrary",
    "Matrix",
    "kernels_line",
    "load_kernels",
    "tried",
]

VARIABLE = "EDGEDECODE_KERNELS"
INSTRUCTION_SETS = ("avx512", "avxvnni", "avx2", "i8mm", "neon", "generic")
CHOICES = ("auto", *INSTRUCTION_SETS, "engine")
FOLDER = "kernels"
LIBRARY = Path(__file__).with_name("_rows.dll" if sys.platform == "win32" else "_rows.so")
TRY_SECONDS = 60
WIDE_SCALES, BAD_SCALE = 1, 2
ANY_FINDING = WIDE_SCALES | BAD_SCALE
"""What `inspect` finds: scales beyond half precision, a scale that is infinite or NaN."""
_CODE = (
    "import sys; sys.path[:] = filter(None, sys.path); "  # not the working folder, which may hold anything
    "from edgedecode.runtimes.onnx.kernels.library import KernelLibrary; "
    "from edgedecode.runtimes.onnx.kernels.self_check import run_once; "
    "from pathlib import Path; run_once(KernelLibrary(Path(sys.argv[1]))); print('sound')"
)


class _Matrix(Structure):
    """`EdgedecodeMatrix` of prepare.cpp."""

    _fields_ = (
        ("packed", c_void_p),
        ("scales", c_void_p),
        ("columns", c_int64),
        ("blocks", c_int64),
        ("block", c_int64),
        ("bits", c_int64),
        ("wide_scales", c_int64),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """A quantized matrix as MatMulNBits stores it.

    packed: uint8 [columns, blocks, block · bits / 8]. scales: float32 [columns, blocks]. wide_scales: the tiles keep
    them as float32, where half precision would change one.
    """

    packed: npt.NDArray[np.uint8]
    scales: FloatArray
    bits: int
    block: int
    wide_scales: bool = False

    @property
    def columns(self) -> int:
        return int(self.packed.shape[0])

    def _native(self) -> _Matrix:
        columns, blocks = self.packed.shape[:2]
        pointers = self.packed.ctypes.data, self.scales.ctypes.data
        return _Matrix(*pointers, columns, blocks, self.block, self.bits, self.wide_scales)


class KernelLibrary:
    """The loaded library. Raises RuntimeUnavailable where it cannot be loaded or lacks a function."""

    def __init__(self, path: Path = LIBRARY) -> None:
        self.path = path
        try:
            self.handle = CDLL(str(path))
            self._kernels = self.handle.edgedecode_kernels
            self._has, self._choose = self.handle.edgedecode_has_kernels, self.handle.edgedecode_choose_kernels
            self._nbytes, self._inspect = self.handle.edgedecode_prepared_nbytes, self.handle.edgedecode_inspect
            self._prepare, self._use_threads = self.handle.edgedecode_prepare, self.handle.edgedecode_use_threads
        except (OSError, AttributeError) as error:
            raise RuntimeUnavailable(f"the kernels' library {path} cannot be loaded ({error})") from None
        self._kernels.restype = c_char_p
        self._has.argtypes = self._choose.argtypes = [c_char_p]
        self._has.restype = self._choose.restype = self._inspect.restype = c_int32
        self._nbytes.restype = c_int64
        self._nbytes.argtypes = self._inspect.argtypes = [POINTER(_Matrix)]
        self._prepare.argtypes, self._prepare.restype = [POINTER(_Matrix), c_int64, c_int64, c_void_p], None
        self._use_threads.argtypes, self._use_threads.restype = [c_int32], None

    @property
    def instruction_set(self) -> str:
        """The kernels in force in this process."""
        return str(self._kernels().decode())

    @property
    def instruction_sets(self) -> tuple[str, ...]:
        """Those that this processor has and this build holds, the best first."""
        return tuple(name for name in INSTRUCTION_SETS if self._has(name.encode()))

    def choose(self, name: str) -> None:
        """Use an instruction set from now on, or the best with "auto". Raises InputError where there is none."""
        if not self._choose(name.encode()):
            usable = ", ".join(self.instruction_sets)
            raise InputError(f"{VARIABLE}={name}: this processor or build has no such kernels; it has: {usable}")

    def use_threads(self, threads: int) -> None:
        """Limit the threads of passes that the calling thread runs from now on."""
        self._use_threads(threads)

    def inspect(self, matrix: Matrix) -> int:
        """Return which of WIDE_SCALES and BAD_SCALE a matrix has."""
        return int(self._inspect(byref(matrix._native())))

    def prepared_nbytes(self, matrix: Matrix) -> int:
        """Return the bytes of a matrix as tiles."""
        return int(self._nbytes(byref(matrix._native())))

    def prepare(self, matrix: Matrix, out: npt.NDArray[np.uint8]) -> None:
        """Write a matrix as tiles to `out`, uint8 [prepared_nbytes]."""
        assert out.nbytes == self.prepared_nbytes(matrix)
        assert out.flags.c_contiguous
        self._prepare(byref(matrix._native()), 0, -(-matrix.columns // 32), out.ctypes.data)


def load_kernels() -> KernelLibrary | None:
    """Return the library as `EDGEDECODE_KERNELS` asks for it; None: the engine's kernels run.

    Raises InputError for a choice that does not exist or that this processor does not have.
    """
    choice = os.environ.get(VARIABLE, "") or "auto"
    if choice not in CHOICES:
        raise InputError(f"{VARIABLE}={choice}: give one of {', '.join(CHOICES)}")
    if choice == "engine":
        return None
    library, reason = tried()
    if library is None:
        if choice != "auto":
            raise InputError(f"{VARIABLE}={choice}: {reason}")
        _say_once(f"ONNX Runtime's own kernels run: {reason}")
        return None
    library.choose(choice)
    return library


def kernels_line() -> str:
    """Return which kernels run here and why, for people."""
    choice = os.environ.get(VARIABLE, "") or "auto"
    if choice == "engine":
        return f"ONNX Runtime's own kernels: {VARIABLE}=engine"
    library, reason = tried()
    if library is None:
        return f"ONNX Runtime's own kernels: {reason}"
    if choice != "auto" and choice not in library.instruction_sets:
        return (
            f"{VARIABLE}={choice} cannot be had here: this processor or build has {', '.join(library.instruction_sets)}"
        )
    name = library.instruction_sets[0] if choice == "auto" else choice
    return f"edgedecode's kernels: {name} (of {', '.join(library.instruction_sets)})"


@lru_cache(maxsize=1)
def tried() -> tuple[KernelLibrary | None, str]:
    """Return the library, or None and the reason; it has run in a child process without dying."""
    if not LIBRARY.is_file():
        return None, (
            "edgedecode was installed without its kernels (no C++ compiler, or EDGEDECODE_BUILD_KERNELS=0): "
            "install a compiler and reinstall"
        )
    try:
        reason = _reason_against(LIBRARY, engine=_engine())
        return (None, reason) if reason else (KernelLibrary(LIBRARY), "")
    except RuntimeUnavailable as error:
        return None, str(error)


def _engine() -> str:
    """Return the file of the engine as a version: several distributions bring it."""
    found = find_spec("onnxruntime")
    return "" if found is None or found.origin is None else f"{found.origin} {Path(found.origin).stat().st_mtime_ns}"


@lru_cache(maxsize=8)
def _say_once(text: str) -> None:
    notice(text)


def _reason_against(path: Path, *, engine: str) -> str:
    """Return why this build cannot run on this processor with this engine; empty: it can. Kept in the user's cache."""
    stamp = path.stat()
    facts = [str(path), str(stamp.st_size), str(stamp.st_mtime_ns), engine, *processor_facts()]
    folder = cache_folder(FOLDER)
    kept = None if folder is None else folder / f"{sha256(chr(10).join(facts).encode()).hexdigest()[:24]}.json"
    try:
        if kept is not None:
            return str(mapping(kept_json(kept))["reason"])
    except (OSError, ValueError, KeyError):
        pass  # tried again
    try:
        reason = _try_in_child(path)
    except (OSError, TypeError, subprocess.TimeoutExpired) as error:  # no finding: tried again next time
        return f"the library {path.name} could not be tried ({error})"
    if kept is not None:
        keep_json(kept, {"reason": reason})
    return reason


def _try_in_child(path: Path) -> str:
    executable = interpreter()
    if executable is None:
        return _try_here(path)
    child = subprocess.run(
        [executable, "-c", _CODE, str(path)],
        capture_output=True,
        text=True,
        timeout=TRY_SECONDS,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if child.returncode == 0 and child.stdout.strip().endswith("sound"):
        return ""
    last = (child.stderr.strip().splitlines() or [f"exit code {child.returncode}"])[-1]
    died = f"signal {-child.returncode}" if child.returncode < 0 else last
    return f"the library {path.name} does not run here ({died}): reinstall edgedecode on this machine"


def _try_here(path: Path) -> str:
    """Try it in this process, for want of another: who froze the application chose the build."""
    from .self_check import run_once

    try:
        library = KernelLibrary(path)
        run_once(library)
        library.choose("auto")  # not the one that was tried last
    except Exception as error:  # the engine's own kinds too
        return f"the library {path.name} does not run here ({error}): reinstall edgedecode on this machine"
    return ""
