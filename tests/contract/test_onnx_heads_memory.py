"""The plan bounds the memory of a graph of several heads in a child process."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from tests.contract.conftest import assert_planned
from tests.contract.toy_graph import ToyShape
from tests.contract.toy_heads import write_headed

MIB = 2**20
MEASURE = """
import json, sys
from pathlib import Path
import edgedecode.open_pack  # as every process has
from edgedecode.typed_json import typed
from edgedecode.pack.manifest import ModelEntry
from edgedecode.memory.budget import Budget
from edgedecode.memory.process_memory import resident_nbytes
from edgedecode.engines.interface import ModelRequest
from edgedecode.runtimes.onnx import OnnxRuntime
entry, budget, runtime = typed(json.loads(sys.argv[2]), ModelEntry, "entry"), Budget(2**40), OnnxRuntime()
before, peak = resident_nbytes(), 0
request = ModelRequest(entry, Path(sys.argv[1]), "draft", entry.rows, budget, threads=1, needs=("trim",))
model = runtime.open(request)
state = model.new_state(1024)
def step(head, tokens, **how):
    global peak
    head.forward(tokens, state, **how)
    peak = max(peak, resident_nbytes())
for start in range(0, 1024, 256):
    step(model, [token % entry.rows for token in range(start, start + 256)])
state.crop(0)
for start in range(0, entry.rows, 256):  # every page of the embedding: it holds two rows or more
    step(model, [token % entry.rows for token in range(start, start + 256, 2)], rows="none")
    state.crop(0)
step(model.trimmed, [1, 2, 3], parents=[-1, -1, 0], rows="all")
print(json.dumps({"used": peak - before, "planned": budget.used_nbytes}))
"""


@pytest.mark.memory
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="measures with /proc/self/smaps_rollup")
@pytest.mark.parametrize("bits", [4, 8])
def test_plan_bounds_the_measured_memory_of_heads(tmp_path: Path, bits: int) -> None:
    shape = ToyShape(
        hidden=512, heads=8, kv_heads=4, head_size=64, mlp=2048, rows=8192, context=2048, bits=bits, block=32
    )
    entry = write_headed(tmp_path, shape, ids=np.arange(0, 8192, 2))
    given = [sys.executable, "-c", MEASURE, str(tmp_path), json.dumps(asdict(entry))]
    figures = json.loads(subprocess.run(given, capture_output=True, text=True, check=True).stdout)
    print(bits, {name: round(value / MIB, 1) for name, value in figures.items()})
    assert_planned(figures)
