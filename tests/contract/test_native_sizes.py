"""What native code trusts is checked first: sizes, even under `python -O`, and the engine's version."""

import subprocess
import sys

import pytest

from edgedecode.runtimes.onnx.kernels.trial import tried

LIBRARY, REASON = tried()
TILES = """
import numpy as np
from edgedecode.runtimes.onnx.kernels.library import KernelLibrary, Matrix
library = KernelLibrary()
matrix = Matrix(np.zeros((32, 1, 32), np.uint8), np.ones((32, 1), np.float32), 8, 32)
tiles = np.zeros(library.prepared_nbytes(matrix), np.uint8)
attempts = [
    lambda: library.prepare(matrix, tiles[:-1]),
    lambda: library.prepare(matrix, np.zeros(2 * tiles.size, np.uint8)[::2]),
    lambda: library.unpack(matrix, tiles[:-1], 0),
    lambda: library.unpack(matrix, tiles, 32),
    lambda: library.unpack(matrix, tiles, -1),
]
"""
PASS = """
from types import SimpleNamespace
from edgedecode.runtimes.llama.llama_context import Context

def decode(count, outputs):
    context = object.__new__(Context)
    context.plan = SimpleNamespace(rows_per_pass=4, outputs=2)
    context.batch = SimpleNamespace(count=count, outputs=outputs)
    context.decode()

attempts = [lambda: decode(5, 1), lambda: decode(0, 0), lambda: decode(4, 3)]
"""
EACH = """
assert False, "assertions are on"
for attempt in attempts:
    try:
        attempt()
    except ValueError:
        print("refused")
"""


@pytest.mark.parametrize(
    ("code", "attempts"),
    [
        pytest.param(TILES, 5, marks=pytest.mark.skipif(LIBRARY is None, reason=f"no kernels: {REASON}")),
        pytest.param(PASS, 3),
    ],
    ids=["tiles", "pass"],
)
def test_wrong_sizes_are_refused_without_assertions(code: str, attempts: int) -> None:
    done = subprocess.run(
        [sys.executable, "-O", "-c", code + EACH], check=False, capture_output=True, text=True, timeout=120
    )
    assert done.stderr == ""
    assert done.stdout.split() == ["refused"] * attempts


OLDER = """
from ctypes import CFUNCTYPE, Structure, addressof, byref, c_char_p, c_int, c_uint32, c_void_p
from edgedecode.runtimes.onnx.kernels.library import KernelLibrary

said = []
create = CFUNCTYPE(c_void_p, c_int, c_char_p)(lambda code, message: said.append(message.decode()) or 1)
table = (type(create) * 1)(create)  # CreateStatus comes first

class Base(Structure):
    _fields_ = [("api", CFUNCTYPE(c_void_p, c_uint32)), ("version", CFUNCTYPE(c_void_p))]

version = c_char_p(b"1.20.1")
address = c_void_p.from_buffer(version).value
api = Base._fields_[0][1](lambda wanted: None if wanted > 20 else addressof(table))
base = Base(api, Base._fields_[1][1](lambda: address))
register = KernelLibrary().handle.RegisterCustomOps
register.argtypes, register.restype = [c_void_p, c_void_p], c_void_p
assert register(None, byref(base)) == 1
print(said[0])
"""


@pytest.mark.skipif(LIBRARY is None, reason=f"no kernels: {REASON}")
def test_an_engine_older_than_its_interface_is_refused_in_words() -> None:
    done = subprocess.run([sys.executable, "-c", OLDER], check=False, capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    assert done.stdout == "it needs ONNX Runtime 1.22 or newer, and this is 1.20.1: upgrade onnxruntime\n"
