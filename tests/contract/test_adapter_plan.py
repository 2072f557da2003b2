"""Memory plans of adapters against actual leases: both engines, the bundled pack with an adapter `odd`."""

import shutil
import tracemalloc
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import edgedecode
from edgedecode import LoadOptions, SessionOptions
from edgedecode.library.names import BUNDLED_PACK
from edgedecode.memory.budget import Lease
from edgedecode.memory.limit import Limit
from tests.contract.conftest import leased
from tests.peft_folders import list_adapter, write_peft
from tests.toys import session_options


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    """Return a copy of the bundled pack with an adapter `odd`."""
    shutil.copytree(BUNDLED_PACK, copy := tmp_path / "pack")
    list_adapter(copy, "odd", write_peft(tmp_path / "odd", seed=1, rank=16))
    return copy


def test_plan_of_an_adapter_covers_what_its_session_leases(engine: str, pack: Path) -> None:
    options = SessionOptions(adapter="odd", context=512, drafter="none")
    planned = {holder.name: holder.nbytes for holder in edgedecode.plan(pack, options, runtime=engine).memory.holders}
    plain = edgedecode.plan(pack, replace(options, adapter=None), runtime=engine).memory
    assert "adapter:odd" not in {holder.name for holder in plain.holders}
    with edgedecode.load(pack, runtime=engine, adapters=True) as pair, pair.session(options) as session:
        session.generate("Hello", max_tokens=4)
        (held,) = [lease.nbytes for lease in pair.budget.leases if lease.name == "adapter:odd"]
    assert held <= planned["adapter:odd"] < held + 2_500_000


@pytest.mark.parametrize(
    ("modules", "scale"),
    [(("q_proj",), 0.3), (("k_proj", "down_proj"), 1.0), (("gate_proj",), 0.3), (None, 1.0)],
    ids=str,
)
def test_adapter_fits_what_is_planned_for_it(
    engine: str, modules: tuple[str, ...] | None, scale: float, tmp_path: Path
) -> None:
    """Including one of few parts of merged products, during loading, and its copy for a scale."""
    pack = tmp_path / "pack"
    shutil.copytree(BUNDLED_PACK, pack)
    list_adapter(pack, "odd", write_peft(tmp_path / "odd", seed=1, rank=16, modules=modules))
    options = session_options(adapter="odd", context=512, drafter="none", adapter_scale=scale)
    planned = dict(edgedecode.plan(pack, options, runtime=engine).memory.holders)
    more = sum(nbytes for name, nbytes in planned.items() if name.startswith("adapter:odd"))
    with (
        edgedecode.load(pack, runtime=engine, adapters=True) as pair,
        pair.session(replace(options, adapter=None)) as session,
    ):
        session.generate("Hello", max_tokens=2)
        pair.budget.limit = Limit(pair.budget.used_nbytes + more)
        session.use_adapter("odd", scale=scale)
        session.generate("Hello", max_tokens=2)
        held = {name: nbytes for name, nbytes in leased(pair).items() if name.startswith("adapter:")}
    assert "adapter:odd" in held
    assert all(nbytes <= planned[name] for name, nbytes in held.items())


@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_loading_an_adapter_takes_no_more_memory_than_is_leased(engine: str, scale: float, pack: Path) -> None:
    """Counted are numpy's arrays and a few Python objects for each tensor."""
    options = SessionOptions(context=512, drafter="none")
    most, resize = 0, Lease.resize
    with edgedecode.load(pack, runtime=engine, adapters=True) as pair, pair.session(options) as session:
        session.use_adapter("odd", scale=scale)
        session.use_adapter(None)
        pair.turn.run(pair.budget.give_back)
        before = pair.budget.used_nbytes

        def watched(lease: Lease, nbytes: int) -> None:
            nonlocal most
            resize(lease, nbytes)
            most = max(most, pair.budget.used_nbytes - before)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Lease, "resize", watched)
            tracemalloc.start()
            session.use_adapter("odd", scale=scale)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        most = max(most, pair.budget.used_nbytes - before)
    assert peak < most + 200_000


@pytest.mark.parametrize("drafter", [None, "tree"])
def test_plan_counts_the_draft_models_adapter(engine: str, drafter: str | None, pack: Path, tmp_path: Path) -> None:
    """Lease by lease, and as the first thing to be given up."""
    list_adapter(pack, "draft:odd", write_peft(tmp_path / "own", seed=1, rank=16, role="draft"))
    options = SessionOptions(adapter="odd", drafter=drafter, draft_max=8 if drafter else None)
    planned = edgedecode.plan(pack, options, runtime=engine).memory
    with edgedecode.load(pack, runtime=engine, adapters=True) as pair, pair.session(options) as session:
        assert session.drafter_name == (drafter or "model+suffix")
        held = leased(pair)
    assert held.keys() == dict(planned.holders).keys() >= {"adapter:odd", "adapter:draft:odd"}
    assert held <= Counter(dict(planned.holders))
    mmap = engine != "llama"  # llama.cpp's mapped weights would be given up before the adapter
    whole = edgedecode.plan(pack, options, runtime=engine, options=LoadOptions(mmap=mmap)).memory
    less = edgedecode.plan(
        pack, options, runtime=engine, memory=whole.nbytes - 1, options=LoadOptions(mmap=mmap)
    ).memory
    assert "adapter:draft:odd" not in dict(less.holders)
    assert "the draft model's adapter" in [cut.what for cut in less.cuts]
    alone = edgedecode.plan(pack, replace(options, drafter="none"), runtime=engine).memory
    assert "adapter:draft:odd" not in dict(alone.holders)


@pytest.mark.parametrize("spare_nbytes", [1_000_000, 9_000_000])
def test_session_with_an_adapter_fits_a_budget_that_is_planned_to_run(
    engine: str, spare_nbytes: int, pack: Path
) -> None:
    options = SessionOptions(adapter="odd")
    least = edgedecode.plan(pack, options, runtime=engine).memory.least_running
    assert least is not None
    memory = least + spare_nbytes
    with edgedecode.load(pack, runtime=engine, adapters=True, memory=memory) as pair, pair.session(options) as session:
        assert session.generate("Hello", max_tokens=4).tokens
        assert pair.budget.used_nbytes <= memory
