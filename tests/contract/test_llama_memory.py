"""llama.cpp's memory: leased before allocation, resized to the engine's report, never below the measured use."""

import gc
import json
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedecode.decoding.model import ModelCard
from edgedecode.engines.interface import NO_MMAP, NO_REPACK, ModelRequest
from edgedecode.errors import BudgetExceeded
from edgedecode.gguf.header import read_header
from edgedecode.memory.budget import Budget, Lease
from edgedecode.memory.limit import Limit
from edgedecode.runtimes.llama.llama_engine import Loading
from edgedecode.runtimes.llama.llama_footprint import ENGINE_NBYTES, VOCABULARY_NBYTES, session_nbytes, weights_nbytes
from edgedecode.runtimes.llama.llama_log import ROUNDING_NBYTES
from edgedecode.user_notices import NOTICES
from tests.contract.conftest import GgufOpener, assert_planned, measured, open_gguf, sum_of
from tests.contract.gguf_pack import write_pack
from tests.contract.sparse_gguf import SparseShape, write_sparse
from tests.contract.toy_graph import ToyShape

MIB = 2**20
LARGE = ToyShape(layers=2, hidden=512, heads=8, kv_heads=4, head_size=64, mlp=2048, rows=8192, context=2048)


@dataclass(frozen=True, slots=True)
class Made:
    """A state's bytes: requested before creation, leased, and the engine's reported buffers."""

    planned: int
    nbytes: int
    reported: dict[str, int]


def make_state(model: Any, budget: Budget, *, capacity: int, rows: int) -> Made:
    """Make a state and record the bytes reserved for it before the engine allocates."""
    asked: list[int] = []
    reserve = budget.reserve

    def listen(name: str, nbytes: int, **options: Any) -> Lease:
        asked.append(nbytes)
        return reserve(name, nbytes, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(budget, "reserve", listen)
        state = model.new_state(capacity, rows=rows)
    return Made(asked[0], state.nbytes, model._weights.engine.log.sizes())


def test_state_is_leased_completely_at_creation(gguf_opener: GgufOpener) -> None:
    budget = Budget()
    model = gguf_opener(budget=budget)
    before = budget.used_nbytes
    state = model.new_state(100)
    assert state.nbytes == sum_of(budget, "kv:")
    assert budget.used_nbytes - before == state.nbytes + sum_of(budget, "work:")
    assert sum_of(budget, "work:") > 0
    assert state.nbytes >= 2 * 2 * 2 * 16 * 4 * 256
    model.forward(list(range(90)), state, rows="none")
    assert state.nbytes == sum_of(budget, "kv:")
    state.close()
    assert sum_of(budget, "kv:") == sum_of(budget, "work:") == 0


@pytest.mark.parametrize("needs", [("kv:float32",), ("kv:float16",), ("kv:int8",)], ids=str)
@pytest.mark.parametrize(("capacity", "rows"), [(256, 1), (2048, 17)])
def test_state_reserves_what_the_engine_reports(
    gguf_opener: GgufOpener, needs: tuple[str, ...], capacity: int, rows: int
) -> None:
    budget = Budget()
    model: Any = gguf_opener(LARGE, budget=budget, needs=needs)
    made = make_state(model, budget, capacity=capacity, rows=rows)
    reported = made.reported
    assert set(reported) == {"output", "KV", "compute"}
    cells = 2 * 2 * 4 * 64 * capacity * {"kv:float32": 4, "kv:float16": 2, "kv:int8": 34 / 32}[needs[0]]
    assert reported["KV"] == pytest.approx(cells, abs=20_000)
    assert reported["output"] == pytest.approx(max(8, rows) * 4 * 8192, abs=20_000)
    assert sum(reported.values()) == made.nbytes <= made.planned <= 1.05 * made.nbytes + MIB // 4
    assert sum_of(budget, "work:") <= 4 * MIB + 48 * capacity * max(8, rows), "memory that the engine does not report"


BUNDLED = SparseShape(layers=10, hidden=256, heads=4, kv_heads=2, mlp=768, rows=8192)
HALF_BILLION = SparseShape(layers=24, hidden=896, heads=14, kv_heads=2, mlp=4864, rows=151_936)
WIDE = replace(HALF_BILLION, layers=2, hidden=3584, heads=28, kv_heads=4, mlp=18_944)
INFLATED = replace(BUNDLED, rows=151_936, mlp=61_824)


@pytest.mark.parametrize(("capacity", "rows", "kv_type"), [(1024, 1, "float16"), (4096, 9, "int8")])
@pytest.mark.parametrize("shape", [BUNDLED, HALF_BILLION, WIDE, INFLATED], ids=["bundled", "0.5B", "wide", "inflated"])
def test_state_plan_is_within_5_percent(
    tmp_path: Path, shape: SparseShape, capacity: int, rows: int, kv_type: str
) -> None:
    budget = Budget()
    entry = write_sparse(tmp_path, shape)
    model: Any = open_gguf(entry, tmp_path, budget=budget, needs=(f"kv:{kv_type}",))
    made = make_state(model, budget, capacity=capacity, rows=rows)
    assert sum(made.reported.values()) == made.nbytes <= made.planned <= 1.05 * made.nbytes


@pytest.mark.parametrize("shape", [HALF_BILLION, WIDE, INFLATED], ids=["0.5B", "wide", "inflated"])
def test_state_for_eight_rows_of_a_large_vocabulary_takes_little(tmp_path: Path, shape: SparseShape) -> None:
    budget = Budget()
    model: Any = open_gguf(write_sparse(tmp_path, shape), tmp_path, budget=budget)
    made = make_state(model, budget, capacity=1024, rows=8)
    assert model.card.rows == 151_936
    assert made.reported["compute"] <= 40 * MIB, "the engine's own default takes 300"


def test_engine_log_is_shared_by_all_runtimes(gguf_opener: GgufOpener) -> None:
    first = gguf_opener()
    alone = first.new_state(256).nbytes
    second = gguf_opener()
    assert first.new_state(256).nbytes == second.new_state(256).nbytes == alone


def test_model_that_is_dropped_is_freed_after_its_states(gguf_opener: GgufOpener) -> None:
    budget = Budget()
    model: Any = gguf_opener(budget=budget)
    state = model.new_state(100)
    model.itself, state.model = model, model  # a cycle: everything is freed in one collection, in any order
    del model, state
    gc.collect()
    assert sum_of(budget, "kv:") == 0


def test_model_that_does_not_fit_is_refused_before_loading(
    gguf_opener: GgufOpener, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgedecode.runtimes.llama.llama_engine import Engine

    gguf_opener.entry(LARGE)
    monkeypatch.setattr(Engine, "load", None)
    for limit in (10 * MIB, 20 * MIB):
        budget = Budget(limit)
        with pytest.raises(BudgetExceeded, match="the target's weights"):
            gguf_opener(LARGE, budget=budget)
        assert budget.leases == ()


def test_weights_that_are_read_or_not_repacked_are_in_memory_once(gguf_opener: GgufOpener) -> None:
    """Weights that are read use the same kernels; those in the file's layout use others, which may round otherwise."""
    entry, root = gguf_opener.entry(LARGE, quantization="Q4_0"), gguf_opener.root(LARGE, "qwen2", "Q4_0")
    once = (root / entry.gguf).stat().st_size + VOCABULARY_NBYTES * entry.rows + 2**16
    taken, rows = {}, {}
    for needs in ((), (NO_MMAP,), (NO_REPACK,)):
        budget = Budget()
        model = open_gguf(entry, root, budget=budget, needs=needs)
        taken[needs] = sum_of(budget, "weights:")
        rows[needs] = model.forward(range(20), model.new_state(32), rows="all").logits.copy()
        assert model.card.kernels == ("unrepacked" if NO_REPACK in needs else "")
        model.close()
    assert taken[(NO_MMAP,)] <= once <= taken[()] + 2**16
    assert taken[(NO_REPACK,)] <= once
    assert np.array_equal(rows[(NO_MMAP,)], rows[()])
    assert np.abs(rows[(NO_REPACK,)] - rows[()]).max() < 0.1 * rows[()].std()


def test_weights_that_were_loaded_before_are_planned_as_they_were(
    gguf_opener: GgufOpener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before that every quantized byte counts twice. A record that is not a number, or of another file, is ignored."""
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path))
    pytest.importorskip("llama_cpp")
    from edgedecode.runtimes.llama import LlamaRuntime

    runtime = LlamaRuntime()
    entry, root = gguf_opener.entry(LARGE, quantization="Q8_0"), gguf_opener.root(LARGE, "qwen2", "Q8_0")

    def planned() -> int:
        request = ModelRequest(entry, root, "target", entry.rows, Budget())
        return dict(runtime.footprint(request).loaded)["weights:target"]

    bound = planned()
    budget = Budget()
    model = open_gguf(entry, root, budget=budget)
    leased = sum_of(budget, "weights:")
    model.close()
    assert planned() == leased <= bound
    (kept,) = (tmp_path / "copies").iterdir()
    for damage in ("", "[]", '{"nbytes": -1}', '{"nbytes": "many"}', "{}"):
        kept.write_text(damage)
        assert planned() == bound


def test_budget_without_room_for_weights_twice_has_them_read(
    gguf_opener: GgufOpener, caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A usual session fits then; with a larger budget they are mapped without a notice."""
    entry, root = gguf_opener.entry(LARGE, quantization="Q4_0"), gguf_opener.root(LARGE, "qwen2", "Q4_0")
    header, file_nbytes = read_header(root / entry.gguf), (root / entry.gguf).stat().st_size
    card = ModelCard(name="target", rows=entry.rows, vocabulary_size=entry.rows, context=entry.context, threads=1)
    card = replace(card, kv_type="float16")
    twice = weights_nbytes(entry, header, file_nbytes=file_nbytes, loading=Loading())
    room = ENGINE_NBYTES + twice + session_nbytes(entry, header, card=card)
    for limit, read in ((room, False), (room - MIB, True)):
        monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path / str(limit)))  # a cache in which they were never loaded
        caplog.clear()
        with caplog.at_level("INFO", logger=NOTICES):
            budget = Budget(limit)
            model = open_gguf(entry, root, budget=budget)
            model.new_state(entry.context).close()
            model.close()
        notices = [record.getMessage() for record in caplog.records if record.name == NOTICES]
        assert len(notices) == read
        assert all(
            "the target's weights are read instead of mapped to fit the budget" in line and "--no-mmap" in line
            for line in notices
        )


def test_state_that_does_not_fit_is_refused_before_creation(
    gguf_opener: GgufOpener, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgedecode.runtimes.llama.llama_engine import Engine

    budget = Budget()
    model = gguf_opener(LARGE, budget=budget)
    budget.limit = Limit(budget.used_nbytes + 2 * MIB)
    leases = budget.leases
    monkeypatch.setattr(Engine, "context", None)
    with pytest.raises(BudgetExceeded, match="the target's keys and values"):
        model.new_state(2048)
    assert budget.leases == leases
    budget.limit = None


def test_state_that_reports_more_than_planned_is_refused(
    gguf_opener: GgufOpener, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgedecode.runtimes.llama.llama_log import Log

    budget = Budget()
    model = gguf_opener(budget=budget)
    leases = budget.leases
    budget.limit = Limit(budget.used_nbytes + 20 * MIB)
    monkeypatch.setattr(Log, "sizes", lambda log: {"compute": 21 * MIB})
    with pytest.raises(BudgetExceeded, match="the target's keys and values"):
        model.new_state(100)
    assert budget.leases == leases


def test_rows_of_several_passes_are_leased_at_creation(gguf_opener: GgufOpener) -> None:
    """Not at the first wide draft in the middle of an answer."""
    budget = Budget()
    model = gguf_opener(budget=budget)
    state = model.new_state(300, rows=200)
    opened = {lease.name: lease.nbytes for lease in budget.leases}
    model.forward([1] * 200, state, rows="all")
    assert {lease.name: lease.nbytes for lease in budget.leases} == opened
    used = budget.used_nbytes
    budget.limit = Limit(used)
    with pytest.raises(BudgetExceeded):
        model.new_state(300, rows=250)
    assert budget.used_nbytes == used, "a refused state must keep no lease"


def test_rows_beyond_the_plan_are_leased_before_they_are_gathered(gguf_opener: GgufOpener) -> None:
    budget = Budget()
    model = gguf_opener(budget=budget)
    state = model.new_state(300)
    model.forward([1], state)
    budget.limit = Limit(budget.used_nbytes)
    with pytest.raises(BudgetExceeded, match="the target's logits"):
        model.forward([1] * 200, state, rows="all")
    assert state.pending == 1
    assert model.forward([2], state).logits.shape == (1, 128)
    budget.limit = None
    model.forward([1] * 200, state, rows="all")
    assert sum_of(budget, "logits:") == 200 * 128 * 4


@pytest.mark.parametrize(("architecture", "layers"), [("mamba", 0), ("lfm2", 1)])
@pytest.mark.parametrize(("capacity", "rows"), [(256, 1), (2048, 17)])
def test_plan_bounds_recurrent_states(
    gguf_opener: GgufOpener, architecture: str, layers: int, capacity: int, rows: int
) -> None:
    """Only layers with attention have keys and values."""
    budget = Budget()
    model: Any = gguf_opener(LARGE, architecture=architecture, budget=budget)
    assert model.card.rollback
    made = make_state(model, budget, capacity=capacity, rows=rows)
    assert made.reported["RS"] > 0
    assert model.card.kv_nbytes == layers * 2 * 4 * 64 * 4
    assert 0 <= made.reported.get("KV", 0) - capacity * model.card.kv_nbytes < 2 * ROUNDING_NBYTES
    assert sum(made.reported.values()) <= made.nbytes <= made.planned


RESIDENT = """
import json, sys
import edgedecode
from edgedecode.memory.process_memory import peak_nbytes

with edgedecode.load(sys.argv[1], runtime="llama") as pair, pair.session() as session:
    before = next(lease.nbytes for lease in pair.budget.leases if lease.name.startswith("process"))
    session.generate("hello there", max_tokens=60)
    print(json.dumps({"used": peak_nbytes() - before, "planned": pair.budget.used_nbytes - before}))
"""


@pytest.mark.memory
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="measures with /proc/self/smaps_rollup")
def test_plan_covers_the_memory_of_a_pack_in_a_process(gguf_opener: GgufOpener, tmp_path: Path) -> None:
    gguf_opener().close()  # skips where the engine is missing
    root = write_pack(tmp_path / "pack", gguf_opener)
    done = subprocess.run(
        [sys.executable, "-c", RESIDENT, str(root)], capture_output=True, text=True, check=True, timeout=120
    )
    figures = json.loads(done.stdout)
    print({name: round(value / MIB, 1) for name, value in figures.items()})
    assert_planned(figures)


@pytest.mark.memory
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="measures with /proc/self/smaps_rollup")
@pytest.mark.parametrize(
    ("kv_type", "quantization", "loading"),
    [
        ("float32", "", ()),
        ("int8", "", ()),
        ("float16", "Q4_0", ()),
        ("float16", "Q8_0", ()),
        ("float16", "Q4_0", (NO_MMAP,)),
        ("float16", "Q4_0", (NO_REPACK,)),
        ("float16", "Q4_0", (NO_MMAP, NO_REPACK)),
    ],
)
def test_plan_bounds_measured_memory(
    gguf_opener: GgufOpener, kv_type: str, quantization: str, loading: tuple[str, ...]
) -> None:
    gguf_opener().close()  # skips where the engine is missing
    entry, root = gguf_opener.entry(LARGE, quantization=quantization), gguf_opener.root(LARGE, "qwen2", quantization)
    entry = replace(entry, graphs={})
    assert_planned(measured("llama", root, entry, f"kv:{kv_type}", *loading, rows=16))
