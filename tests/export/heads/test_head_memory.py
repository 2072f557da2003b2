"""A head takes no more memory than its plan says, and little of it: the plan is compared with a child process."""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from edgedecode.engines.interface import ModelRequest
from edgedecode.export.heads.gguf_head import write_gguf_head
from edgedecode.export.heads.head_entry import head_entry
from edgedecode.export.heads.layouts import read_head
from edgedecode.export.heads.target_rows import with_output
from edgedecode.memory.budget import Budget
from edgedecode.pack.manifest import ModelEntry
from edgedecode.runtimes.onnx import OnnxRuntime
from edgedecode.runtimes.onnx.kernels.trial import tried
from tests.contract.conftest import assert_planned
from tests.contract.toy_gguf import GGUF, write_toy_gguf
from tests.contract.toy_graph import ToyShape

from .block_written import TinyBlock
from .written import TinyHead, write_flat

pytestmark = [pytest.mark.export, pytest.mark.skipif(tried() is None, reason="no kernels for this processor")]
SHAPE = ToyShape(hidden=256, rows=4096, layers=8, kv_heads=1, head_size=64, context=1024)
HEAD = TinyHead(256, 256, 4096, 2048, head_size=64, mlp=512)
BLOCK = TinyBlock(
    4096, outputs=(0, 2, 4, 5), target_layers=8, hidden=256, layers=4, head_size=64, mlp=768, block=9, rank=256
)
MEASURE = """
import json, sys
from pathlib import Path
import numpy as np
import edgedecode.open_pack  # as every process has
from edgedecode.engines.interface import ModelRequest
from edgedecode.memory.budget import Budget
from edgedecode.memory.process_memory import resident_nbytes
from edgedecode.pack.manifest import ModelEntry
from edgedecode.runtimes.onnx import OnnxRuntime
root, given = Path(sys.argv[1]), json.loads(sys.argv[2])
target, head = (ModelEntry(**{**given[role], "taps": tuple(given[role]["taps"])}) for role in ("target", "head"))
budget, runtime = Budget(2**40), OnnxRuntime()
def request(entry, name, **more):
    return ModelRequest(entry, root, name, target.rows, budget, threads=1, **more)
model = runtime.open(request(target, "target", taps=head.taps))
state = model.new_state(1024)
def read(count):
    for start in range(0, count, 256):
        model.forward([row % target.rows for row in range(start, start + 256)], state, rows="none")
        state.keep(range(256))
read(1024)
state.crop(0)
before, held = resident_nbytes(), budget.used_nbytes
kept = state.keep_features()
read(512)
opened = runtime.open(request(head, "head", beside=model))
rows = opened.new_state(1024)
for start in range(0, 1024, 64):
    first = kept.oldest + start % 256
    features = kept.rows(first, first + 64)
    if sys.argv[3] == "block":
        opened.draft_block(0, rows, features=features, count=0)
    else:
        output = opened.draft(list(range(start, start + 64)), rows, features=features)
    rows.keep(range(64))
rows.crop(1000)
for token in range(16):
    if sys.argv[3] == "block":
        for row in opened.draft_block(token, rows, features=features[:3], count=opened.longest):
            opened.link(row, token)
        rows.crop(1000)
    else:
        output = opened.draft([token], rows, hidden=output.hidden[None])
        rows.keep([0])
print(json.dumps({"used": resident_nbytes() - before, "planned": budget.used_nbytes - held}))
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Mapping[str, ModelEntry]]:
    """Return a folder with a target and its heads of 4 bits."""
    root, found = tmp_path_factory.mktemp("models"), dict[str, ModelEntry]()
    found["target"] = replace(write_toy_gguf(root, SHAPE, quantization="Q8_0"), graphs={}, weights=GGUF)
    heads = {
        "head": read_head(write_flat(root / "flat", HEAD, max_position_embeddings=8192)),
        "block": with_output(
            read_head(BLOCK.write(root / "published", max_position_embeddings=8192)), found["target"], root
        ),
    }
    for name, head in heads.items():
        taps, file = head.shape.taps, f"{name}.gguf"
        with (root / file).open("wb") as out:
            write_gguf_head(out, head, bits=4, taps=taps)
        found[name] = head_entry(head, file=file, bits=4, taps=taps, source="test")
    return root, found


@pytest.mark.memory
@pytest.mark.parametrize("kind", ["head", "block"])
def test_a_process_keeps_the_plan_of_a_head(kind: str, models: tuple[Path, Mapping[str, ModelEntry]]) -> None:
    root, entries = models
    words = [
        str(root),
        json.dumps({role: asdict(entries[each]) for role, each in (("target", "target"), ("head", kind))}),
        kind,
    ]
    done = subprocess.run([sys.executable, "-c", MEASURE, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    print(figures)
    assert_planned(figures)


def test_a_long_context_of_the_target_does_not_make_a_head_larger(
    models: tuple[Path, Mapping[str, ModelEntry]],
) -> None:
    root, entries = models
    plan = OnnxRuntime().footprint(ModelRequest(entries["head"], root, "head", SHAPE.rows, Budget(), threads=1))
    assert plan.card.context == 1024
    row = 2 * HEAD.kv_heads * HEAD.head_size * 4
    kept = {holder.name: holder.nbytes for holder in plan.state(plan.card.context)}
    assert 1024 * row <= kept["kv:head"] < 1.2 * 1024 * row
