"""A trimmed head on the full head's states: the same passes, the logits of the kept ids."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from edgedecode.arrays import FloatArray
from edgedecode.decoding.model import Head, State
from edgedecode.pack.manifest import ModelEntry
from edgedecode.runtimes.onnx.onnx_model import OnnxModel
from tests.contract.reference import TOLERANCE, assert_moved
from tests.contract.toy_graph import ToyShape
from tests.contract.toy_heads import KEPT, open_headed, write_headed

SHAPES = {
    "float": ToyShape(),
    "int8": ToyShape(bits=8),
    "int4": ToyShape(bits=4),
    "int4 block 16": ToyShape(bits=4, block=16),
}
TOKENS = [int(token) for token in np.random.default_rng(9).integers(0, 128, 400)]
PARENTS = [-1, 0, 0, 1, 2, -1, 5, 3, 3, 4]


@pytest.fixture(scope="module", params=SHAPES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("headed") / request.param


@pytest.fixture(scope="module")
def entry(folder: Path) -> ModelEntry:
    return write_headed(folder, SHAPES[folder.name])


@pytest.fixture(scope="module")
def model(entry: ModelEntry, folder: Path) -> Iterator[OnnxModel]:
    opened = open_headed(entry, folder)
    yield opened
    opened.close()


def trimmed_of(model: OnnxModel) -> Head:
    head = model.trimmed
    assert head is not None
    return head


def assert_slice(found: FloatArray, full: FloatArray) -> None:
    """Assert that logits are the kept columns of the full head's."""
    assert found.shape == (len(full), len(KEPT))
    np.testing.assert_allclose(found, full[:, KEPT], rtol=0, atol=TOLERANCE)


def fresh(model: OnnxModel, count: int) -> State:
    state = model.new_state(400)
    if count:
        model.forward(TOKENS[:count], state, rows="none")
        state.keep(range(count))
    return state


def test_trimmed_head_stores_the_kept_rows_bit_for_bit(entry: ModelEntry, folder: Path) -> None:
    base = {tensor.name: tensor for tensor in onnx.load(folder / "base.onnx").graph.initializer}
    heads = {tensor.name: tensor for tensor in onnx.load(folder / "heads.onnx").graph.initializer}
    assert {name for name in heads if name not in base} == (
        {"/trim/values"} | ({"/trim/scales"} if entry.bits < 16 else set())
    )
    named = {"/trim/values": "head.packed", "/trim/scales": "head.scales"}
    for name, source in named.items() if entry.bits < 16 else [("/trim/values", "head.weight")]:
        full, cut = (numpy_helper.to_array(tensor) for tensor in (base[source], heads[name]))
        kept = full[KEPT] if entry.bits < 16 else full[:, KEPT]
        assert cut.dtype == full.dtype
        assert cut.tobytes() == kept.tobytes()


def test_token_ids_belong_to_the_trimmed_head(model: OnnxModel) -> None:
    assert np.array_equal(trimmed_of(model).token_ids, KEPT)
    assert model.card.token_ids is None
    assert model.card.rows == 128


@pytest.mark.parametrize("width", [1, 2, 3, 7, 60])
def test_trimmed_head_on_chains(model: OnnxModel, width: int) -> None:
    full, trimmed = fresh(model, 20), fresh(model, 20)
    for start in range(20, 80, width):
        tokens = TOKENS[start : start + width]
        expected = model.forward(tokens, full, rows="all").logits.copy()
        assert_slice(trimmed_of(model).forward(tokens, trimmed, rows="all").logits, expected)
    full.close()
    trimmed.close()


@pytest.mark.parametrize("rows", ["last", [3, 255, 256, 399], [399, 0, 300], [5]], ids=str)
def test_trimmed_head_on_long_prompts(model: OnnxModel, rows: str | list[int]) -> None:
    full, trimmed = fresh(model, 0), fresh(model, 0)
    expected = model.forward(TOKENS, full, rows=rows).logits.copy()  # type: ignore[arg-type]
    assert_slice(trimmed_of(model).forward(TOKENS, trimmed, rows=rows).logits, expected)  # type: ignore[arg-type]
    full.close()
    trimmed.close()


def test_trimmed_head_on_growing_trees(model: OnnxModel) -> None:
    full, trimmed = fresh(model, 20), fresh(model, 20)
    for start, stop in ((0, 1), (1, 4), (4, 10)):
        tokens, parents = TOKENS[50 + start : 50 + stop], PARENTS[start:stop]
        expected = model.forward(tokens, full, parents=parents, rows="all").logits.copy()
        found = trimmed_of(model).forward(tokens, trimmed, parents=parents, rows="all").logits
        assert_slice(found, expected)
    assert_moved(expected[0], expected[1])
    trimmed.keep([0, 2, 4])
    full.keep([0, 2, 4])
    expected = model.forward(TOKENS[70:72], full, rows="all").logits.copy()
    assert_slice(trimmed_of(model).forward(TOKENS[70:72], trimmed, rows="all").logits, expected)
    full.close()
    trimmed.close()


def test_heads_interleaved_on_one_state(model: OnnxModel) -> None:
    head, state, alone = trimmed_of(model), fresh(model, 20), fresh(model, 20)
    expected = model.forward(TOKENS[20:60], alone, rows="all").logits.copy()
    assert_slice(head.forward(TOKENS[20:24], state, rows="all").logits, expected[:4])
    np.testing.assert_allclose(model.forward(TOKENS[24:28], state, rows="all").logits, expected[4:8], atol=TOLERANCE)
    assert head.forward(TOKENS[28:30], state, rows="none").logits.shape == (0, len(KEPT))
    assert_slice(head.forward(TOKENS[30:33], state, rows=[2, 0]).logits, expected[[12, 10]])
    state.keep(range(5))
    state.crop(25)
    assert_slice(head.forward(TOKENS[25:28], state, rows="all").logits, expected[5:8])
    state.keep(range(3))
    np.testing.assert_allclose(model.forward(TOKENS[28:30], state, rows="all").logits, expected[8:10], atol=TOLERANCE)
    state.close()
    alone.close()


def test_heads_on_two_states_share_no_binding(model: OnnxModel) -> None:
    head, states = trimmed_of(model), [fresh(model, 20), fresh(model, 20)]
    alone = fresh(model, 20)
    expected = model.forward(TOKENS[20:40], alone, rows="all").logits.copy()
    for start in range(0, 20, 2):
        tokens = TOKENS[20 + start : 22 + start]
        full = model.forward(tokens, states[0], rows="all").logits.copy()
        assert_slice(head.forward(tokens, states[1], rows="all").logits, expected[start : start + 2])
        np.testing.assert_allclose(full, expected[start : start + 2], rtol=0, atol=TOLERANCE)
    for state in (*states, alone):
        state.close()


@pytest.mark.parametrize(("bits", "block"), [(4, 32), (4, 128), (8, 32), (8, 128), (32, 32)])
def test_trimmed_head_with_full_tiles_is_bit_identical(tmp_path: Path, bits: int, block: int) -> None:
    """Kernels process columns in tiles and may round the rest differently, so sizes are multiples of a tile."""
    shape = ToyShape(hidden=256, head_size=64, mlp=384, rows=512, bits=bits, block=block)
    ids = np.sort(np.random.default_rng(4).permutation(512)[:96])
    model = open_headed(write_headed(tmp_path, shape, ids=ids), tmp_path)
    for width in (1, 2, 3, 5, 16, 33, 64):
        full, trimmed = model.new_state(width), model.new_state(width)
        expected = model.forward(TOKENS[:width], full, rows="all").logits[:, ids].copy()
        assert np.array_equal(trimmed_of(model).forward(TOKENS[:width], trimmed, rows="all").logits, expected)
    model.close()


@pytest.mark.parametrize("threads", [1, 2])
def test_trimmed_head_on_one_row_passes_of_wide_kernels(tmp_path: Path, threads: int) -> None:
    shape = ToyShape(hidden=256, head_size=64, mlp=384, rows=1024, bits=4)
    ids = np.arange(3, 1024, 7)
    model = open_headed(write_headed(tmp_path, shape, ids=ids), tmp_path, threads=threads)
    full, trimmed = model.new_state(60), model.new_state(60)
    for token in TOKENS[:40]:
        expected = model.forward([token], full).logits[:, ids].copy()
        np.testing.assert_allclose(trimmed_of(model).forward([token], trimmed).logits, expected, atol=TOLERANCE)
    model.close()
