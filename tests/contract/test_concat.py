"""Graphs that concatenate their KV cache themselves: tests in addition to the suite for every model."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from edgedecode.errors import BudgetExceeded, CapabilityError, InputError, ManifestError
from edgedecode.memory.budget import Budget
from edgedecode.memory.limit import Limit
from edgedecode.pack.manifest import ModelEntry
from tests.contract.concat_graph import write_concat
from tests.contract.conftest import assert_planned, open_entry
from tests.contract.test_onnx_memory import MEASURE

TOKENS = list(range(20, 60))


@pytest.fixture
def entry(tmp_path: Path) -> ModelEntry:
    return write_concat(tmp_path)


def test_concat_refuses_a_tree_and_changes_nothing(entry: ModelEntry, tmp_path: Path) -> None:
    model = open_entry(entry, tmp_path, budget=Budget())
    state = model.new_state(40)
    model.forward(TOKENS[:5], state, parents=[-1, 0, 1, 2, 3])
    with pytest.raises(CapabilityError, match="target has no tree attention: its graph reads chains only"):
        model.forward(TOKENS[:2], state, parents=[4, 4])
    with pytest.raises(InputError, match="parents come before their children"):
        model.forward(TOKENS[:2], state, parents=[7, 4])
    assert state.pending == 5
    model.close()


def test_concat_takes_several_passes_for_long_prompts(entry: ModelEntry, tmp_path: Path) -> None:
    model = open_entry(entry, tmp_path, budget=Budget())
    text = [3 + (7 * index) % 300 for index in range(400)]
    state = model.new_state(400)
    whole = model.forward(text, state, rows="all").logits.copy()
    other = model.new_state(400)
    picked = model.forward(text, other, rows=(399, 5, 300)).logits.copy()
    assert np.abs(picked - whole[[399, 5, 300]]).max() < 1e-4
    model.close()


def test_concat_state_is_leased_for_past_and_present(entry: ModelEntry, tmp_path: Path) -> None:
    budget = Budget()
    model = open_entry(entry, tmp_path, budget=budget)
    state = model.new_state(100)
    assert state.nbytes == 2 * 100 * 2 * entry.layers * entry.kv_heads * entry.head_size * 4
    used = budget.used_nbytes
    state.close()
    assert budget.used_nbytes < used
    model.close()
    assert {lease.name for lease in budget.leases} <= {"engine code"}


def test_concat_logits_shrink_to_the_need_of_the_open_states(entry: ModelEntry, tmp_path: Path) -> None:
    budget = Budget()
    model = open_entry(entry, tmp_path, budget=budget)
    first = model.new_state(100, rows=4)
    model.forward(TOKENS[:3], first)
    leases = {lease.name: lease.nbytes for lease in budget.leases}
    expected = model.forward(TOKENS[3:4], first).logits.copy()
    first.crop(0)
    wide = model.new_state(100, rows=90)
    model.forward(TOKENS, wide, rows="all")
    assert {lease.name: lease.nbytes for lease in budget.leases} != leases
    wide.close()
    assert {lease.name: lease.nbytes for lease in budget.leases} == leases
    model.forward(TOKENS[:3], first)
    assert np.array_equal(model.forward(TOKENS[3:4], first).logits, expected)
    budget.limit = Limit(budget.used_nbytes + 100_000)
    with pytest.raises(BudgetExceeded, match="logits:target"):
        model.new_state(10, rows=100_000)
    assert {lease.name: lease.nbytes for lease in budget.leases} == leases
    model.close()


def test_concat_model_that_is_refused_leaves_no_lease(entry: ModelEntry, tmp_path: Path) -> None:
    whole = Budget()
    open_entry(entry, tmp_path, budget=whole)
    small = Budget(whole.used_nbytes - 1)
    with pytest.raises(BudgetExceeded):
        open_entry(entry, tmp_path, budget=small)
    assert small.used_nbytes == 0


def test_concat_entry_with_another_graph_is_refused(entry: ModelEntry, tmp_path: Path) -> None:
    wrong = write_concat(tmp_path, kv_heads=1)
    with pytest.raises(ManifestError, match="1 KV heads of size 6, the manifest says 352, 2 and 6"):
        open_entry(entry, tmp_path, budget=Budget())
    open_entry(wrong, tmp_path, budget=Budget()).close()


@pytest.mark.memory
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_concat_plan_bounds_the_memory_of_a_process(tmp_path: Path) -> None:
    sizes = {"layers": 2, "hidden": 512, "heads": 8, "kv_heads": 4, "head_size": 64, "mlp": 1024, "rows": 8192}
    entry = write_concat(tmp_path, context=1024, **sizes)
    code = MEASURE.replace(", parents=[-1, -1, 0]", "")
    child = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), json.dumps(asdict(entry))],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    measured = json.loads(child.stdout)
    print(measured)
    assert_planned(measured)
