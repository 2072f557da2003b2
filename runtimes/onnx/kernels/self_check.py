"""Runs the library's operators once through the engine, for the child process that tries it."""

from __future__ import annotations

import numpy as np

from edgedecode.decoding.arrays import FloatArray
from edgedecode.errors import RuntimeUnavailable
from edgedecode.onnx_format.graph_file import GraphFile, ValueInfo

from .library import KernelLibrary, Matrix
from .products import DOMAIN, product_node

__all__ = ["multiply", "run_once"]

ROWS, INNER, COLUMNS = 5, 64, 48
_FLOAT, _UINT8 = 1, 2
TOLERANCE = 0.05
"""Of the largest result: what rounding activations to 8 bits may cost these rows."""


def run_once(library: KernelLibrary) -> None:
    """Multiply a few rows on every instruction set. Raises RuntimeUnavailable for a result that is wrong."""
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
    """Return x [rows, inner] times a matrix, computed by the operator alone, on the instruction set in force."""
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
