"""Every byte is leased before it is allocated, and the plan bounds the measured memory of a child process."""

import json
import subprocess
import sys
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedecode.errors import BudgetExceeded
from edgedecode.memory.budget import Budget
from edgedecode.memory.limit import Limit
from edgedecode.pack.manifest import ModelEntry
from edgedecode.runtimes.onnx.gguf.opening import with_gguf_graph
from edgedecode.runtimes.onnx.graph_session import open_session
from edgedecode.runtimes.onnx.kernels.block_types import matrix_of
from edgedecode.runtimes.onnx.kernels.library import KernelLibrary
from edgedecode.runtimes.onnx.kernels.serving import serve
from edgedecode.runtimes.onnx.kernels.trial import tried
from edgedecode.runtimes.onnx.onnx_footprint import Footprint
from edgedecode.runtimes.onnx.providers.cpu import CpuProvider
from tests.contract.conftest import GgufOpener, Opener, assert_planned, measured, open_entry, sum_of
from tests.contract.toy_graph import ToyShape, write_toy

MIB = 2**20


class NoRoom:
    """Numpy that cannot allocate arrays."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def empty(self, *shape: Any) -> Any:
        raise MemoryError

    zeros = full = arange = empty


def no_room(*given: Any, **how: Any) -> Any:
    raise MemoryError


@pytest.mark.usefixtures("engine_kernels")
@pytest.mark.parametrize(
    ("place", "what"),
    [
        ("buffers.np", NoRoom()),
        ("onnx_model._biases", no_room),
        ("onnx_model.Outputs", no_room),
        ("onnx_model._adapters", no_room),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_open_that_runs_out_of_memory_leaves_no_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, what: object
) -> None:
    entry = write_toy(tmp_path, ToyShape())
    monkeypatch.setattr(f"edgedecode.runtimes.onnx.{place}", what)
    budget = Budget()
    with pytest.raises(MemoryError):
        open_entry(entry, tmp_path, budget=budget)
    assert budget.leases == ()


def test_state_is_leased_completely_at_creation(opener: Opener) -> None:
    budget = Budget()
    model = opener(budget=budget)
    held = model.new_state(1)
    before = budget.used_nbytes
    state = model.new_state(100)
    assert state.nbytes == budget.used_nbytes - before == sum_of(budget, "kv:") - held.nbytes
    assert state.nbytes >= 2 * 2 * 2 * 16 * 4 * 100
    model.forward(list(range(90)), state, rows="none")
    assert state.nbytes == sum_of(budget, "kv:") - held.nbytes
    state.close()
    held.close()
    assert sum_of(budget, "kv:") == 0


@pytest.mark.usefixtures("engine_kernels")
def test_state_for_trees_needs_no_memory_during_an_answer(opener: Opener) -> None:
    budget = Budget()
    model = opener(budget=budget)
    chains = model.new_state(100)
    before = sum_of(budget, "buffers:")
    state = model.new_state(100, rows=3, tree=True)
    assert sum_of(budget, "buffers:") > before
    budget.limit = Limit(budget.used_nbytes)
    model.forward([1], state)
    assert model.forward([1, 2, 3], state, parents=[-1, -1, 0], rows="all").logits.shape == (3, 128)
    chains.close()


@pytest.mark.usefixtures("engine_kernels")
def test_buffers_shrink_to_the_need_of_the_open_states(opener: Opener) -> None:
    budget = Budget()
    model = opener(budget=budget)
    first = model.new_state(100, rows=4)
    model.forward([1, 2, 3], first)
    leases = {lease.name: lease.nbytes for lease in budget.leases}
    expected = model.forward([4], first).logits.copy()
    first.crop(3 if first.length else 0)
    wide = model.new_state(100, rows=90, tree=True)
    model.forward([1, 2], wide, parents=[-1, -1], rows="all")
    assert sum_of(budget, "logits:") == 92 * 128 * 4
    wide.close()
    assert {lease.name: lease.nbytes for lease in budget.leases} == leases
    model.forward([1, 2, 3], first)
    assert np.array_equal(model.forward([4], first).logits, expected)
    budget.limit = Limit(budget.used_nbytes + 100_000)
    with pytest.raises(BudgetExceeded, match="the target's logits"):
        model.new_state(10, rows=100_000)
    with pytest.raises(BudgetExceeded, match="the target's buffers"):
        model.new_state(10, rows=90, tree=True)
    assert {lease.name: lease.nbytes for lease in budget.leases} == leases


@pytest.mark.usefixtures("engine_kernels")
def test_buffers_grow_under_their_leases(opener: Opener) -> None:
    budget = Budget()
    model = opener(budget=budget)
    state = model.new_state(100)
    model.forward([1, 2, 3], state, rows="all")
    assert sum_of(budget, "logits:") == 3 * 128 * 4
    chains = sum_of(budget, "buffers:")
    model.forward([1, 2], state, parents=[-1, -1])
    assert sum_of(budget, "buffers:") > chains


def test_model_that_does_not_fit_is_refused_before_loading(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    import edgedecode.runtimes.onnx.onnx_runtime as runtime

    opened: list[Any] = []
    monkeypatch.setattr(runtime, "open_session", lambda *given, **options: opened.append(given))
    budget = Budget(10 * MIB)
    with pytest.raises(BudgetExceeded, match="the target's weights"):
        opener(budget=budget)
    assert opened == []
    assert budget.leases == ()


def test_state_that_does_not_fit_is_refused_before_allocation(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    budget = Budget()
    model = opener(ToyShape(context=100_000), budget=budget)
    budget.limit = Limit(budget.used_nbytes + 10 * MIB)
    leases = budget.leases
    monkeypatch.setattr(np, "zeros", None)  # an allocation would raise another error
    with pytest.raises(BudgetExceeded, match="the target's keys and values"):
        model.new_state(100_000)
    assert budget.leases == leases
    monkeypatch.undo()
    budget.limit = None


@pytest.mark.usefixtures("engine_kernels")
def test_rows_that_do_not_fit_are_refused_and_the_state_is_kept(opener: Opener) -> None:
    budget = Budget()
    model = opener(budget=budget)
    state = model.new_state(300)
    model.forward([1], state)
    budget.limit = Limit(budget.used_nbytes)
    with pytest.raises(BudgetExceeded, match="the target's logits"):
        model.forward([1] * 200, state, rows="all")
    with pytest.raises(BudgetExceeded, match="the target's buffers"):
        model.forward([1, 2], state, parents=[-1, -1])
    assert state.pending == 1
    assert model.forward([2], state).logits.shape == (1, 128)


@pytest.mark.memory
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="measures with /proc/self/smaps_rollup")
@pytest.mark.parametrize(
    ("bits", "block", "needs"), [(8, 32, ""), (4, 128, ""), (32, 32, ""), (8, 32, "lora"), (8, 32, "kv:int8")]
)
def test_plan_bounds_measured_memory(opener: Opener, bits: int, block: int, needs: str) -> None:
    shape = replace(MEASURED, bits=bits, block=block)
    assert_planned(measured("onnx", opener.root(shape), opener.entry(shape), *needs.split()))


@pytest.mark.memory
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="measures with /proc/self/smaps_rollup")
@pytest.mark.parametrize(
    ("architecture", "quantization", "needs"),
    [
        *(("qwen2", "", ""), ("qwen2", "Q8_0", ""), ("qwen2", "Q4_K_M", ""), ("qwen2", "Q4_K_M", "squares")),
        *(("lfm2", "", ""), ("lfm2", "Q8_0", "lora")),
    ],
)
def test_plan_bounds_the_measured_memory_of_a_gguf_file(
    gguf_opener: GgufOpener, architecture: str, quantization: str, needs: str
) -> None:
    root, entry = gguf_alone(gguf_opener, quantization, architecture)
    assert_planned(measured("onnx", root, entry, *needs.split()))


def test_planned_weights_of_several_block_types_are_the_tiles(gguf_opener: GgufOpener) -> None:
    """Q4_K and Q6_K; each matrix begins a page, and what is above the tiles is the session's."""
    root, entry = gguf_alone(gguf_opener, "Q4_K_M")
    reader, library = pytest.importorskip("gguf").GGUFReader(root / entry.gguf), KernelLibrary()
    matrices = [tensor for tensor in reader.tensors if tensor.data.ndim == 2]
    assert {tensor.tensor_type.name for tensor in matrices} == {"Q4_K", "Q6_K"}
    tiles = sum(library.prepared_nbytes(matrix_of(int(each.tensor_type), each.data)) for each in matrices)
    served = serve(entry, with_gguf_graph(entry, root).graphs["base"], root=root, threads=1, rows=256)
    assert 0 <= served.nbytes - tiles < 4096 * len(matrices)
    budget = Budget()
    with closing(open_entry(entry, root, budget=budget)):
        assert 0 < sum_of(budget, "weights:") - served.nbytes < 5 * MIB


def gguf_alone(gguf_opener: GgufOpener, quantization: str, architecture: str = "qwen2") -> tuple[Path, ModelEntry]:
    """Return the folder and the entry of a measured model that has a GGUF file and no graph."""
    shape = replace(MEASURED, rows=1024, graphs=("base",))
    entry = gguf_opener.entry(shape, architecture, quantization)
    if tried() is None:
        pytest.skip("no kernels of ours here")
    return gguf_opener.root(shape, architecture, quantization), replace(entry, graphs={}, weights=entry.gguf)


@pytest.mark.memory
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="measures with /proc/self/smaps_rollup")
def test_plan_includes_a_matrix_that_the_engine_unpacks(opener: Opener, engine_kernels: None) -> None:
    """An 8-bit head with unrounded activations is unpacked to floats in each pass, 16 MB here."""
    shape = replace(MEASURED, bits=8, wide=("head",))
    figures = measured("onnx", opener.root(shape), opener.entry(shape))
    assert 0 < figures["used"] <= figures["planned"]


MEASURED = ToyShape(
    layers=2,
    hidden=512,
    heads=8,
    kv_heads=4,
    head_size=64,
    mlp=2048,
    rows=8192,
    context=2048,
    graphs=("base", "lora", "kv8"),
)


def test_pass_that_needs_more_than_was_planned_is_refused_in_one_line(
    opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine's allocator has a limit from the plan; a model with room for it continues to decode."""
    shape = ToyShape(mlp=8192)
    fitting = opener(shape, budget=Budget(2**40))
    monkeypatch.setattr(Footprint, "arena_nbytes", lambda self, **sizes: 2 * MIB + self.packed_nbytes)
    model = opener(shape, budget=Budget(2**40))
    tokens = [token % 128 for token in range(250)]
    with pytest.raises(BudgetExceeded, match="rows of the target needs more memory than was planned"):
        model.forward(tokens, model.new_state(256))
    assert fitting.forward(tokens, fitting.new_state(256)).logits.shape == (1, 128)


THREADED = """
import json, sys
from pathlib import Path
from threading import Barrier, Lock, Thread
from edgedecode.pack.manifest import Graph, ModelEntry
from edgedecode.memory.budget import Budget
from edgedecode.memory.process_memory import resident_nbytes
from edgedecode.engines.interface import ModelRequest
from edgedecode.runtimes.onnx import OnnxRuntime
fields = json.loads(sys.argv[2])
fields["graphs"] = {name: Graph(**graph) for name, graph in fields["graphs"].items()}
entry = ModelEntry(**fields)
request = ModelRequest(entry, Path(sys.argv[1]), "target", entry.rows, Budget(), threads=1)
model = OnnxRuntime().open(request)
state, used, here, alone = model.new_state(256), [], Barrier(25), Lock()

def one():
    with alone:  # as in a pair, whose threads take turns
        model.forward([token % entry.rows for token in range(128)], state, rows="none")
        state.crop(0)

def turn():
    here.wait()
    here.wait()

for count in (0, 24):  # threads that stay alive, each after a pass
    threads = [Thread(target=lambda: (one(), turn())) for _ in range(count)]
    for thread in threads:
        thread.start()
    if threads:
        here.wait()
    one()
    used.append(resident_nbytes())
    if threads:
        here.wait()
    for thread in threads:
        thread.join()
print(json.dumps({"kernels": model.card.kernels, "more": used[1] - used[0]}))
"""


@pytest.mark.memory
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="measures with /proc/self/smaps_rollup")
def test_passes_from_many_threads_take_no_more_than_from_one(opener: Opener) -> None:
    """The operators' scratch memory is planned once for any number of threads; 128 rows of 8,192 values take 1.3 MB."""
    shape = ToyShape(bits=8, mlp=8192)
    entry = json.dumps(asdict(opener.entry(shape)))
    words = [sys.executable, "-c", THREADED, str(opener.root(shape)), entry]
    child = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert child.returncode == 0, child.stderr
    found = json.loads(child.stdout)
    if not found["kernels"]:
        pytest.skip("no kernels of ours here")
    assert found["more"] < 24 * 0.5e6


def test_engine_session_stays_within_its_limit_for_any_graph(tmp_path: Path) -> None:
    onnx, helper = pytest.importorskip("onnx"), pytest.importorskip("onnx.helper")
    values = [helper.make_tensor_value_info(name, kind, [1]) for name, kind in (("size", 7), ("one", 1))]
    nodes = [
        helper.make_node("Expand", ["one", "size"], ["many"]),
        helper.make_node("ReduceMax", ["many"], ["largest"]),
    ]
    graph = helper.make_graph(nodes, "g", values, [helper.make_tensor_value_info("largest", 1, [1])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, tmp_path / "base.onnx")
    (tmp_path / "weights.bin").touch()
    opened = {
        limit: open_session(
            tmp_path / "base.onnx",
            weights=tmp_path / "weights.bin",
            provider=CpuProvider(),
            threads=1,
            limit_nbytes=limit,
        )
        for limit in (64 * MIB, 16 * MIB, None)
    }

    def largest(limit: int | None, floats: int) -> float:
        feeds = {"one": np.ones(1, np.float32), "size": np.array([floats], np.int64)}
        return float(opened[limit].run(None, feeds)[0][0])

    assert [largest(limit, MIB) for limit in opened] == [1, 1, 1]
    assert largest(64 * MIB, 8 * MIB) == largest(None, 32 * MIB) == 1
    for limit, floats in ((16 * MIB, 8 * MIB), (64 * MIB, 32 * MIB)):
        with pytest.raises(Exception, match="smaller than requested"):  # the engine's exceptions share no base class
            largest(limit, floats)
