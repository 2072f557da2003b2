"""The plan of GGUF files on our kernels bounds the measured memory of a child process."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.contract.conftest import GgufOpener
from tests.contract.toy_graph import ToyShape

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
budget, runtime = Budget(2**40), OnnxRuntime()
before, peak, states = resident_nbytes(), 0, []
for name, root, fields in json.loads(sys.argv[1]):
    entry = typed(fields, ModelEntry, "entry")
    model = runtime.open(ModelRequest(entry, Path(root), name, entry.rows, budget, threads=1, needs=()))
    states.append((model, entry.rows, model.new_state(1024)))
def step(model, state, tokens, **how):
    global peak
    model.forward(tokens, state, **how)
    peak = max(peak, resident_nbytes())
for model, rows, state in states:
    for start in range(0, 1024, 256):
        step(model, state, [token % rows for token in range(start, start + 256)])
    state.crop(0)
    for start in range(0, rows, 256):  # every page of the embedding: it holds two rows or more
        step(model, state, [token % rows for token in range(start, start + 256, 2)], rows="none")
        state.crop(0)
    step(model, state, [1, 2, 3], parents=[-1, -1, 0], rows="all")
weights = sum(lease.nbytes for lease in budget.leases if lease.name.startswith("weights:"))
print(json.dumps({"used": peak - before, "planned": budget.used_nbytes, "weights": weights}))
"""
TARGET = ToyShape(hidden=512, heads=8, kv_heads=4, head_size=64, mlp=2048, rows=8192, context=2048)
DRAFT = replace(TARGET, hidden=256, heads=4, kv_heads=2, mlp=1024, layers=1)


@pytest.mark.memory
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="measures with /proc/self/smaps_rollup")
@pytest.mark.parametrize("shapes", [(TARGET,), (TARGET, DRAFT)], ids=["target", "with a draft"])
@pytest.mark.parametrize("quantization", ["Q4_0", "Q8_0"])
def test_plan_bounds_the_measured_memory(
    gguf_opener: GgufOpener, shapes: tuple[ToyShape, ...], quantization: str
) -> None:
    """Of tiles, and of at most 8 MB a model that the plan has in reserve."""
    figures = measured(gguf_opener, shapes, quantization)
    assert 0 < figures["used"] <= figures["planned"] <= figures["used"] + 8_000_000 * len(shapes)
    assert figures["weights"] <= 1.1 * figures["file"] + 4_000_000 * len(shapes)


@pytest.mark.memory
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="measures with /proc/self/smaps_rollup")
def test_plan_bounds_the_measured_memory_of_float_tensors(gguf_opener: GgufOpener) -> None:
    """They are part of the graph, and held more than once."""
    figures = measured(gguf_opener, (TARGET,), "")
    assert 2 * figures["file"] < figures["used"] <= figures["planned"] <= 1.2 * figures["used"]


def measured(opener: GgufOpener, shapes: tuple[ToyShape, ...], quantization: str) -> dict[str, int]:
    """Return the bytes of the GGUF files, and those that a child process planned and used for them."""
    given, file_nbytes = [], 0
    for name, shape in zip(("target", "draft"), shapes, strict=False):
        entry = opener.entry(shape, "qwen2", quantization)
        entry = replace(entry, graphs={}, weights=entry.gguf)
        root = opener.root(shape, "qwen2", quantization)
        given.append((name, str(root), asdict(entry)))
        file_nbytes += (root / entry.gguf).stat().st_size
    command = [sys.executable, "-c", MEASURE, json.dumps(given)]
    figures: dict[str, int] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    figures["file"] = file_nbytes
    print(quantization, {name: round(value / MIB, 1) for name, value in figures.items()})
    return figures
