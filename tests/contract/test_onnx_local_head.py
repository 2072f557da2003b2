"""A local head: the logits of ids chosen from pass to pass, over the whole head's states."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from weakref import ref

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import numpy_helper

from edgedecode.decoding.arrays import FloatArray, IntArray
from edgedecode.decoding.model import LocalHead, State
from edgedecode.errors import BudgetExceeded, CapabilityError, InputError
from edgedecode.head_table import HeadTable
from edgedecode.memory import Budget
from edgedecode.pack.manifest import ModelEntry
from edgedecode.runtimes.onnx.onnx_model import OnnxModel
from tests.contract.conftest import open_entry
from tests.contract.test_onnx_passes import spy_on
from tests.contract.toy_graph import ToyShape
from tests.contract.toy_heads import KEPT, open_headed, write_headed

SHAPES = {bits: ToyShape(bits=bits, graphs=("base", "hidden")) for bits in (32, 8, 4)}
DoubleArray: TypeAlias = npt.NDArray[np.float64]
TOKENS = [int(token) for token in np.random.default_rng(3).integers(0, 128, 400)]
CHOICES: list[IntArray] = [np.array([5]), np.arange(128), KEPT, np.array([0, 7, 127])]
FLOAT_STEP = 2.0**-24
"""A float32 operation's relative error at most."""


@pytest.fixture(scope="module", params=SHAPES)
def bits(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def folder(bits: int, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("local") / str(bits)


@pytest.fixture(scope="module")
def entry(bits: int, folder: Path) -> ModelEntry:
    return write_headed(folder, SHAPES[bits])


@pytest.fixture(scope="module")
def model(entry: ModelEntry, folder: Path) -> Iterator[OnnxModel]:
    opened = open_headed(entry, folder)
    yield opened
    opened.close()


@dataclass(frozen=True, slots=True)
class Expected:
    """The logits of every id after some rows, in float64 from their hidden states, and how far others may be off."""

    logits: DoubleArray
    local: DoubleArray
    """Bound for a head in float32: a sum of n products of n weights made of two factors, whatever its order."""
    quantized: DoubleArray
    """Bound for a quantized head. Such kernels read 8-bit states, in blocks or rows with a scale of their own: each
    value is off by one step at most, 1/127 of the row's largest."""

    @classmethod
    def after(cls, states: FloatArray, weights: FloatArray) -> Expected:
        exact, sizes = states.astype(np.float64), np.abs(weights.astype(np.float64))
        steps = (states.shape[1] + 2) * FLOAT_STEP
        local = steps / (1 - steps) * np.abs(exact) @ sizes.T
        largest = np.abs(exact).max(axis=1, keepdims=True)
        return cls(exact @ weights.T.astype(np.float64), local, local + largest / 127 * sizes.sum(axis=1))

    def check(self, found: FloatArray, rows: Sequence[int] | int, ids: IntArray | slice = slice(None)) -> None:
        """Check a local head's logits of these ids."""
        assert (np.abs(found - self.logits[rows][..., ids]) <= self.local[rows][..., ids]).all()

    def check_quantized(
        self, found: FloatArray, rows: Sequence[int] | int, ids: IntArray | slice = slice(None)
    ) -> None:
        """Check the logits of a head with the pack's own weights."""
        assert (np.abs(found - self.logits[rows][..., ids]) <= self.quantized[rows][..., ids]).all()


Read = Callable[..., Expected]


@pytest.fixture(scope="module")
def read(entry: ModelEntry, folder: Path) -> Iterator[Read]:
    """Read the tokens in passes of these widths, as the test does: kernels of other widths may round the states
    otherwise, which says nothing about the head. `parents`: those of the last pass, whose tokens may be others too."""
    hidden = open_entry(entry, folder, budget=Budget(), needs=("hidden",))
    weights = weights_of(folder, entry.bits)

    def passes(*widths: int, tokens: Sequence[int] = TOKENS, parents: Sequence[int] | None = None) -> Expected:
        state, start, found = hidden.new_state(400), 0, []
        for place, width in enumerate(widths, 1):
            above = parents if place == len(widths) else None
            output = hidden.forward(tokens[start : start + width], state, parents=above, rows="all")
            assert output.hidden is not None
            found.append(output.hidden.copy())
            start += width
            if above is None:
                state.keep(range(width))
        state.close()
        return Expected.after(np.concatenate(found), weights)

    yield passes
    hidden.close()


def weights_of(folder: Path, bits: int) -> FloatArray:
    """Return the toy's head, [ids, hidden size], as numbers."""
    stored = {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in onnx.load(folder / "base.onnx").graph.initializer
        if tensor.name.startswith("head.")
    }
    if bits == 32:
        return np.asarray(stored["head.weight"].T, np.float32)
    packed = stored["head.packed"]
    if bits == 4:
        packed = np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:2], -1)
    blocks = (packed.astype(np.float32) - 2 ** (bits - 1)) * stored["head.scales"][:, :, None]
    return np.asarray(blocks.reshape(len(packed), -1), np.float32)


def local_of(model: OnnxModel) -> LocalHead:
    head = model.local
    assert head is not None
    return head


def fresh(model: OnnxModel, count: int) -> State:
    state = model.new_state(400)
    if count:
        model.forward(TOKENS[:count], state, rows="none")
        state.keep(range(count))
    return state


def test_ids_change_between_passes(model: OnnxModel, read: Read) -> None:
    head, state, expected = local_of(model), fresh(model, 20), read(20, *[1] * 40)
    for step in range(40):
        ids, row = CHOICES[step % len(CHOICES)], 20 + step
        head.choose(ids)
        assert head.token_ids is ids
        found = head.forward([TOKENS[row]], state).logits
        assert found.shape == (1, len(ids))
        expected.check(found[0], row, ids)
    state.close()


def test_choices_that_change_a_little(model: OnnxModel, read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many new rows are read in several pieces."""
    monkeypatch.setattr("edgedecode.runtimes.onnx.heads.local_rows.ROWS_AT_ONCE", 8)
    head, state, draw = local_of(model), fresh(model, 20), np.random.default_rng(8)
    held, expected = set(range(30)), read(20, *[1] * 100)
    for row in range(20, 120):
        held -= set(draw.choice(sorted(held), min(len(held) - 1, int(draw.integers(0, 6))), replace=False).tolist())
        held |= set(draw.integers(0, 128, int(draw.integers(0, 9))).tolist())
        if row % 20 == 0:
            held = set(draw.integers(0, 128, 5).tolist())
        ids = np.array(sorted(held))
        head.choose(ids)
        found = head.forward([TOKENS[row]], state).logits
        expected.check(found[0], row, ids)
    state.close()


def test_one_choice_serves_many_passes(model: OnnxModel, read: Read) -> None:
    head, state, expected = local_of(model), fresh(model, 20), read(20, 1, 3, 56, 1, 4, 2)
    head.choose(KEPT)
    for start, stop in ((20, 21), (21, 24), (24, 80), (80, 81)):
        found = head.forward(TOKENS[start:stop], state, rows="all").logits
        expected.check(found, range(start, stop), KEPT)
    found = head.forward(TOKENS[81:85], state, rows=[3, 1]).logits
    expected.check(found, [84, 82], KEPT)
    assert head.forward(TOKENS[85:87], state, rows="none").logits.shape == (0, len(KEPT))
    state.close()


def test_a_long_prompt(model: OnnxModel, read: Read) -> None:
    head, state = local_of(model), fresh(model, 0)
    head.choose(CHOICES[3])
    found = head.forward(TOKENS, state, rows=[399, 3, 300]).logits
    read(400).check(found, [399, 3, 300], CHOICES[3])
    state.close()


def test_trees_and_other_heads_in_turns(model: OnnxModel, read: Read) -> None:
    head, trimmed, state = local_of(model), model.trimmed, fresh(model, 20)
    assert trimmed is not None
    head.choose(CHOICES[3])
    branches = [*TOKENS[:20], TOKENS[20], 9, TOKENS[21]]
    found = head.forward(branches[20:], state, parents=[-1, -1, 0], rows="all").logits
    read(20, 3, tokens=branches, parents=[-1, -1, 0]).check(found, [20, 21, 22], CHOICES[3])
    state.crop(20)
    expected = read(20, 2, 2, 2)
    whole = model.forward(TOKENS[20:22], state, rows="all").logits.copy()
    cut = trimmed.forward(TOKENS[22:24], state, rows="all").logits.copy()
    found = head.forward(TOKENS[24:26], state, rows="all").logits
    expected.check_quantized(whole, [20, 21])
    expected.check_quantized(cut, [22, 23], KEPT)
    expected.check(found, [24, 25], CHOICES[3])
    state.close()


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([], "1 to 128 ids, not 0"),
        (range(129), "1 to 128 ids, not 129"),
        ([3, 2], "must ascend"),
        ([3, 3], "must ascend"),
        ([-1, 3], "must ascend, from 0 to below 128"),
        ([3, 128], "must ascend, from 0 to below 128"),
    ],
    ids=str,
)
def test_a_bad_choice_leaves_the_last_one(model: OnnxModel, read: Read, ids: list[int], words: str) -> None:
    head, state = local_of(model), fresh(model, 20)
    head.choose(KEPT)
    with pytest.raises(InputError, match=words):
        head.choose(np.array(ids, np.int64))
    assert head.token_ids is KEPT
    read(20, 2).check(head.forward(TOKENS[20:22], state).logits[0], 21, KEPT)
    state.close()


def test_an_interrupted_choice_is_no_choice(
    entry: ModelEntry, folder: Path, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = open_headed(entry, folder)
    head, state = local_of(model), fresh(model, 20)
    head.choose(KEPT)
    whole = HeadTable.read

    def interrupted(self: HeadTable, ids: IntArray, out: FloatArray) -> None:
        whole(self, ids, out)
        raise KeyboardInterrupt

    monkeypatch.setattr(HeadTable, "read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        head.choose(np.arange(60))
    monkeypatch.undo()
    with pytest.raises(InputError, match="choose some before"):
        head.forward([TOKENS[20]], state)
    expected = read(20, 1, 1)
    for row, ids in enumerate([KEPT, np.arange(60)], 20):
        head.choose(ids)
        found = head.forward([TOKENS[row]], state).logits
        expected.check(found[0], row, ids)
    model.close()


def test_ids_that_change_before_the_pass_are_refused(model: OnnxModel, read: Read) -> None:
    """As by another thread, between the look at the choice and the model's lock."""
    head, state = local_of(model), fresh(model, 20)
    passes = head._passes  # type: ignore[attr-defined]

    def crossed(*given: Any, **how: Any) -> Any:
        local_of(model).choose(np.arange(50, 70))
        return passes(*given, **how)

    head.choose(np.arange(20))
    head._passes = crossed  # type: ignore[attr-defined]
    with pytest.raises(InputError, match=r"local head of target got other ids .*: choose its ids again") as caught:
        head.forward([TOKENS[20]], state)
    assert "\n" not in str(caught.value)
    assert (state.length, state.pending) == (20, 0)
    head._passes = passes  # type: ignore[attr-defined]
    found = head.forward([TOKENS[20]], state).logits
    read(20, 1).check(found[0], 20, np.arange(50, 70))
    state.close()


def test_an_interrupted_pass_leaves_the_heads_usable(entry: ModelEntry, folder: Path, read: Read) -> None:
    model: Any = open_headed(entry, folder)
    head, state, session = local_of(model), fresh(model, 20), model._session
    head.choose(KEPT)
    spy_on(model, fail_at=1, error=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        head.forward(TOKENS[20:22], state)
    model._session = session
    assert state.pending == 0
    head.choose(CHOICES[3])
    found = head.forward(TOKENS[20:22], state, rows="all").logits
    read(20, 2).check(found, [20, 21], CHOICES[3])
    model.close()


def test_the_head_of_a_closed_model(entry: ModelEntry, folder: Path) -> None:
    model = open_headed(entry, folder)
    head, trimmed, state = local_of(model), model.trimmed, model.new_state(8)
    assert trimmed is not None
    with pytest.raises(InputError, match="choose some before"):
        head.forward([1], state)
    assert state.pending == 0
    head.choose(KEPT)
    head.forward([1], state)
    model.close()
    for call in (lambda: head.choose(KEPT), lambda: head.forward([1], state), lambda: trimmed.forward([1], state)):
        with pytest.raises(CapabilityError, match="closed"):
            call()


def test_a_closed_state_lets_go_of_the_rows(entry: ModelEntry, folder: Path) -> None:
    """Whoever forgets to drop it holds no memory that the budget thinks is free."""
    model: Any = open_headed(entry, folder)
    head, state = local_of(model), model.new_state(8)
    head.choose(KEPT)
    head.forward([1], state)
    rows = ref(model._opened.local._rows)
    assert rows() is not None
    model.close()
    gc.collect()
    assert state.closed
    assert rows() is None


def test_its_memory_is_leased_when_it_is_asked_for(entry: ModelEntry, folder: Path) -> None:
    budget = Budget()
    model = open_headed(entry, folder, needs=("trim",), budget=budget)
    assert model.local is None
    assert [lease.name for lease in budget.leases if lease.name.startswith("local:")] == []
    model.close()
    budget = Budget()
    model = open_headed(entry, folder, budget=budget)
    (lease,) = [lease for lease in budget.leases if lease.name == "local:target"]
    nbytes = lease.nbytes
    assert nbytes >= 128 * 64 * 4
    used = budget.used_nbytes
    local_of(model).choose(np.arange(128))
    assert budget.used_nbytes == used
    model.close()
    assert [lease.name for lease in budget.leases] == ["engine code"]
    tight = Budget(used - nbytes // 2)
    with pytest.raises(BudgetExceeded, match="local:target"):
        open_headed(entry, folder, budget=tight)
    assert tight.leases == ()
