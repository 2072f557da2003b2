"""Choose the kernels by `EDGEDECODE_KERNELS`, and test the library in a child process before it is loaded.

The variable is auto (the best for this processor), the name of an instruction set, or engine. The test runs once per
build and processor, so that native code that crashes does not end a chat.
"""

from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edgedecode.arrays import FloatArray
from edgedecode.cache import cache_folder, facts_key, keep_json, kept_json
from edgedecode.engines.hardware import processor_facts
from edgedecode.engines.kernel_choice import KERNELS, wanted_kernels
from edgedecode.errors import InputError, RuntimeUnavailable
from edgedecode.onnx_format.graph_file import GraphFile, ValueInfo
from edgedecode.user_notices import notice

from .library import INSTRUCTION_SETS, LIBRARY, KernelLibrary, Matrix
from .products import DOMAIN, product_node

if TYPE_CHECKING:
    from edgedecode.engines.child import ChildReply

ROWS, INNER, COLUMNS = 5, 64, 48
_FLOAT, _UINT8 = 1, 2
TOLERANCE = 0.05
"""Allowed error from rounding activations to 8 bits, as a share of the largest result."""


def run_once(library: KernelLibrary) -> None:
    """Multiply a few rows on every instruction set. Raises RuntimeUnavailable if a result is wrong."""
    rng = np.random.default_rng(0)
    packed = rng.integers(1, 256, (COLUMNS, INNER // 32, 32), np.uint8)
    matrix = Matrix(packed, np.full((COLUMNS, INNER // 32), 2.0**-7, np.float32), 8, 32)
    x = rng.standard_normal((ROWS, INNER), np.float32)
    expected = x @ ((packed.reshape(COLUMNS, INNER).astype(np.float32) - 128) * 2.0**-7).T
    for name in library.instruction_sets:
        library.choose(name)
        found = multiply(library, matrix, x)
        if not np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max():
            raise RuntimeUnavailable(f"the {name} kernels compute wrong results")


def multiply(library: KernelLibrary, matrix: Matrix, x: FloatArray, *, planes: int = 1, threads: int = 1) -> FloatArray:
    """Return x [rows, inner] times a matrix, computed by our operator on the current instruction set."""
    import onnxruntime

    tiles = np.empty(library.prepared_nbytes(matrix), np.uint8)
    library.prepare(matrix, tiles)
    inner = x.shape[1]
    file = GraphFile(
        nodes=[product_node(["x", "w"], "y", matrix=matrix, inner=inner, threads=threads, planes=planes)],
        inputs=[ValueInfo("x", _FLOAT, ["R", inner]), ValueInfo("w", _UINT8, [tiles.size])],
        outputs=[ValueInfo("y", _FLOAT, ["R", matrix.columns])],
        opset={"": 21, DOMAIN: 1},
        model_rest=[(1, b"\x08\x0a")],  # the format's version, 10
    )
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(library.path))
    session = onnxruntime.InferenceSession(file.serialize(), options, providers=["CPUExecutionProvider"])
    found: FloatArray = session.run(None, {"x": x, "w": tiles})[0]
    return found


VARIABLE = KERNELS
CHOICES = ("auto", *INSTRUCTION_SETS, "engine")
FOLDER = "kernels"
TRY_SECONDS = 60


def load_kernels() -> KernelLibrary | None:
    """Return the library with the kernels of `EDGEDECODE_KERNELS`; None: the engine's kernels are used.

    Raises InputError for an unknown choice, or one that this processor does not support.
    """
    choice = wanted_kernels()
    if choice not in CHOICES:
        raise InputError(f"{VARIABLE}={choice}: use one of {', '.join(CHOICES)}")
    if choice == "engine":
        return None
    library, reason = tried()
    if library is None:
        if choice != "auto":
            raise InputError(f"{VARIABLE}={choice}: {reason}")
        _notice_once(f"using ONNX Runtime's own kernels: {reason}")
        return None
    try:
        library.choose(choice)
    except InputError as error:
        raise InputError(f"{VARIABLE}={choice}: {error}") from None
    return library


def kernels_line() -> str:
    """Describe for users which kernels are used and why."""
    choice = wanted_kernels()
    if choice == "engine":
        return f"ONNX Runtime's own kernels: {VARIABLE}=engine"
    library, reason = tried()
    if library is None:
        return f"ONNX Runtime's own kernels: {reason}"
    if choice != "auto" and choice not in library.instruction_sets:
        return (
            f"{VARIABLE}={choice} is not available: this processor or build has {', '.join(library.instruction_sets)}"
        )
    if choice == "auto" and library.instruction_sets == INSTRUCTION_SETS[-1:]:
        faster = ", ".join(INSTRUCTION_SETS[:-1])
        return f"edgedecode's kernels: generic, because this processor or build has none of {faster}"
    name = library.instruction_sets[0] if choice == "auto" else choice
    return f"edgedecode's kernels: {name} (of {', '.join(library.instruction_sets)})"


@lru_cache(maxsize=1)
def tried() -> tuple[KernelLibrary | None, str]:
    """Return the library after it ran in a child process without crashing, or None and the reason."""
    if not LIBRARY.is_file():
        return None, (
            "edgedecode was installed without its kernels (no C++ compiler, or EDGEDECODE_BUILD_KERNELS=0): "
            "install a compiler and reinstall"
        )
    try:
        reason = _failure(LIBRARY, engine=_engine())
        return (None, reason) if reason else (KernelLibrary(LIBRARY), "")
    except RuntimeUnavailable as error:
        return None, str(error)


def _engine() -> str:
    """Return the engine's file and its time as a version, since several distributions install it."""
    found = find_spec("onnxruntime")
    return "" if found is None or found.origin is None else f"{found.origin} {Path(found.origin).stat().st_mtime_ns}"


@lru_cache(maxsize=8)
def _notice_once(text: str) -> None:
    notice(text)


def _failure(path: Path, *, engine: str) -> str:
    """Return why this build cannot run on this processor with this engine; empty if it can. Cached for the user."""
    stamp = path.stat()
    facts = [str(path), str(stamp.st_size), str(stamp.st_mtime_ns), engine, *processor_facts()]
    folder = cache_folder(FOLDER)
    kept = None if folder is None else folder / f"{facts_key(*facts)}.json"
    try:
        if kept is not None:
            return kept_json(kept, dict[str, str])["reason"]
    except (OSError, ValueError, KeyError):
        pass  # test it again
    reply = _try(path)
    if not reply.ended:
        return f"the library {path.name} could not be tested: {reply.failure}"
    reason = reply.failure
    if reason:
        reason = f"the library {path.name} does not run here ({reason}): reinstall edgedecode on this machine"
    if kept is not None:
        keep_json(kept, {"reason": reason})
    return reason


def try_library(path: str) -> None:
    """Run the library's product operator on every instruction set, in the child process. Raises if anything fails."""
    library = KernelLibrary(Path(path))
    run_once(library)
    library.choose("auto")  # rather than the last one tested


def _try(path: Path) -> "ChildReply":
    from edgedecode.engines.child import ChildReply, ask_child, child_command

    command = child_command(f"{__name__}:{try_library.__name__}")
    if command is not None:
        return ask_child(command, str(path), seconds=TRY_SECONDS)
    try:  # no child in a frozen application: test in this process, as its packager chose the build
        try_library(str(path))
    except Exception as error:  # including the engine's own exceptions
        return ChildReply(failure=str(error))
    return ChildReply()
