"""Our kernels: a row's bits depend only on the row and its past, and are the same on every instruction set."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

import edgedecode
from edgedecode.arrays import FloatArray
from edgedecode.decoding.model import AdapterModel, AdapterUse, LanguageModel, LowRank
from edgedecode.errors import InputError, RuntimeUnavailable
from edgedecode.runtimes.onnx.kernels import trial
from edgedecode.runtimes.onnx.kernels.library import INSTRUCTION_SETS, KernelLibrary, Matrix
from edgedecode.runtimes.onnx.kernels.prepared import FOLDER
from edgedecode.runtimes.onnx.kernels.trial import VARIABLE, load_kernels, tried
from tests.contract.conftest import Opener
from tests.contract.toy_graph import ToyShape

LIBRARY, REASON = tried()
pytestmark = pytest.mark.skipif(LIBRARY is None, reason=f"no kernels: {REASON}")
SETS = LIBRARY.instruction_sets if LIBRARY is not None else ()
SHAPES = list(product((4, 8), (32, 64, 128)))
ALL = ("q", "k", "v", "o", "gate", "up", "down", "head")
WIDE = {"8 bits": (), "16 bits": ALL, "gate and up differ": ("gate", "o", "head")}
"""Products with 16-bit activations; gate and up are one operator where they agree."""
MODELS = [
    *((*shape, "8 bits") for shape in SHAPES),
    *((*shape, wide) for shape in ((4, 32), (8, 128)) for wide in ("16 bits", "gate and up differ")),
]
LENGTH = 150


@pytest.fixture(autouse=True)
def _best_afterwards() -> None:
    yield  # type: ignore[misc]
    if LIBRARY is not None:
        LIBRARY.choose("auto")


def shape(bits: int, block: int, wide: str = "8 bits") -> ToyShape:
    return ToyShape(hidden=256, head_size=64, mlp=384, rows=512, bits=bits, block=block, wide=WIDE[wide])


def tokens() -> list[int]:
    return [int(token) for token in np.random.default_rng(2).integers(0, 512, LENGTH)]


def read(model: LanguageModel, *, width: int, length: int = LENGTH, adapter: AdapterUse | None = None) -> FloatArray:
    state, found = model.new_state(length), []
    for start in range(0, length, width):
        part = tokens()[:length][start : start + width]
        found.append(model.forward(part, state, rows="all", adapter=adapter).logits.copy())
        state.keep(range(len(part)))
    state.close()
    return np.concatenate(found)


def differing(model: LanguageModel, widths: Sequence[int], *, adapter: AdapterUse | None = None) -> list[int]:
    """Return the pass widths whose rows differ from those of one-row passes."""
    alone = read(model, width=1, adapter=adapter)
    return [width for width in widths if not np.array_equal(read(model, width=width, adapter=adapter), alone)]


@pytest.mark.parametrize(("bits", "block", "wide", "threads"), [*((*each, 2) for each in MODELS), (8, 32, "8 bits", 1)])
def test_kernels_give_bit_identical_rows_at_each_kind_of_width(
    opener: Opener, bits: int, block: int, threads: int, wide: str
) -> None:
    model = opener(shape(bits, block, wide), threads=threads)
    assert model.card.kernels
    assert model.card.row_invariant
    assert differing(model, (2, 3, 5, 9, 16, 17, 33, 150)) == []


@pytest.mark.parametrize("needs", ["kv:int8", "lora"])
def test_kernels_are_row_invariant_on_other_graphs(opener: Opener, needs: str) -> None:
    model = opener(replace(shape(8, 32), graphs=("base", "lora", "kv8")), needs=(needs,))
    adapter = None
    if needs == "lora":
        rng = np.random.default_rng(4)
        adapter = AdapterUse(name="formal", digest="f0")
        assert isinstance(model, AdapterModel)
        down, up = (rng.standard_normal(size, np.float32) / 16 for size in ((8, 256), (256, 8)))
        model.add_adapter("f0", [LowRank(0, "o_proj", down, up)])
    assert model.card.row_invariant
    assert differing(model, (2, 3, 7, 16, 150), adapter=adapter) == []


@pytest.mark.parametrize("window", [0, 24])
def test_kernels_give_a_tree_row_the_bits_of_its_chain(opener: Opener, window: int) -> None:
    model = opener(replace(shape(4, 32), window=window, all_windows=True))
    prompt = tokens()[:40]
    branches = [[7, 8, 9], [7, 11, 12], [300, 301, 302]]
    # Rows of a breadth-first tree: slots are in another order than the positions of any branch but the first.
    rows = [7, 300, 8, 11, 301, 9, 12, 302]
    parents = [-1, -1, 0, 0, 1, 2, 3, 4]
    paths = [[0, 2, 5], [0, 3, 6], [1, 4, 7]]
    state = model.new_state(LENGTH)
    model.forward(prompt, state, rows="none")
    state.keep(range(len(prompt)))
    tree = model.forward(rows, state, parents=parents, rows="all").logits.copy()
    for branch, path in zip(branches, paths, strict=True):
        lone = model.new_state(LENGTH)
        model.forward(prompt, lone, rows="none")
        lone.keep(range(len(prompt)))
        for token, node in zip(branch, path, strict=True):
            assert np.array_equal(model.forward([token], lone).logits[0], tree[node])
            lone.keep((0,))
        lone.close()
    state.keep(paths[1])  # its keys move from scattered slots to the next positions
    after = model.forward([5], state).logits.copy()
    fresh = model.new_state(LENGTH)
    model.forward([*prompt, *branches[1]], fresh, rows="none")
    fresh.keep(range(len(prompt) + 3))
    assert np.array_equal(model.forward([5], fresh).logits, after)


@pytest.mark.parametrize("window", [0, 24])
@pytest.mark.parametrize("needs", [(), ("kv:int8",)], ids=["float", "int8"])
def test_kernels_give_branches_that_grow_for_many_passes_the_bits_of_their_chains(
    opener: Opener, needs: tuple[str, ...], window: int
) -> None:
    """Some branches end, leave others later than at the prompt, or have two rows in a pass."""
    assert LIBRARY is not None
    graphs = ("base", "kv8") if needs else ("base",)
    model = opener(replace(shape(4, 32), window=window, all_windows=True, graphs=graphs), needs=needs)
    prompt, rng = tokens()[:21], np.random.default_rng(5)
    for name, count in zip([*SETS, SETS[0]], (8, 5, 20, 3, 2), strict=False):
        LIBRARY.choose(name)
        state, tips = model.new_state(500), [-1] * count
        model.forward(prompt, state, rows="none")
        state.keep(range(len(prompt)))
        paths, found = list[list[int]](), list[FloatArray]()
        while state.pending < 180:
            start, parents, read = state.pending, list[int](), list[int]()
            for branch in rng.permutation(count) if rng.random() < 0.2 else range(count):
                if rng.random() < 0.04:
                    tips[branch] = int(rng.integers(-1, start))
                for _ in range(0 if rng.random() < 0.04 else 2 if rng.random() < 0.04 else 1):
                    parents.append(tips[branch])
                    read.append(int(rng.integers(0, 512)))
                    paths.append([*(paths[parents[-1]] if parents[-1] >= 0 else []), read[-1]])
                    tips[branch] = len(paths) - 1
            if parents:
                found.extend(model.forward(read, state, parents=parents, rows="all").logits.copy())
        for row in {len(found) - 1, *tips, *map(int, rng.integers(0, len(found), 4))} - {-1}:
            lone = model.new_state(500)
            alone = model.forward([*prompt, *paths[row]], lone).logits[0]
            assert np.array_equal(alone, found[row]), (name, row)
            lone.close()
        state.close()


@pytest.mark.parametrize(("bits", "block", "wide"), MODELS)
def test_kernels_of_every_instruction_set_give_the_same_bits_for_a_model(
    opener: Opener, bits: int, block: int, wide: str
) -> None:
    assert LIBRARY is not None
    model = opener(shape(bits, block, wide))
    found = {}
    for name in SETS:
        LIBRARY.choose(name)
        found[name] = read(model, width=5, length=40)
        assert np.array_equal(read(model, width=1, length=40), found[name])
        assert np.array_equal(read(model, width=9, length=40), found[name])
    first = found[SETS[0]]
    assert [name for name in SETS if not np.array_equal(found[name], first)] == []
    assert np.isfinite(first).all()


def test_kernels_variable_with_an_impossible_value_is_a_one_line_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "avx1024")
    with pytest.raises(InputError, match=r"EDGEDECODE_KERNELS=avx1024: use one of auto, avx512"):
        load_kernels()
    for name in set(INSTRUCTION_SETS) - set(SETS):
        monkeypatch.setenv(VARIABLE, name)
        with pytest.raises(
            InputError, match=f"{VARIABLE}={name}: this processor or build has no {name!r} kernels; it has: "
        ):
            load_kernels()


def test_kernels_variable_may_name_a_lower_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SETS:
        monkeypatch.setenv(VARIABLE, name)
        library = load_kernels()
        assert isinstance(library, KernelLibrary)
        assert library.instruction_set == name
    monkeypatch.setenv(VARIABLE, "engine")
    assert load_kernels() is None


def test_self_check_refuses_kernels_with_wrong_results(monkeypatch: pytest.MonkeyPatch) -> None:
    assert LIBRARY is not None
    trial.run_once(LIBRARY)

    def zeros(self: KernelLibrary, matrix: Matrix, out: np.ndarray) -> None:
        out[:] = 0

    monkeypatch.setattr(KernelLibrary, "prepare", zeros)
    with pytest.raises(RuntimeUnavailable, match=f"the {SETS[0]} kernels compute wrong results"):
        trial.run_once(LIBRARY)


@pytest.mark.parametrize("wide", WIDE)
def test_kernels_variable_may_request_the_engines_kernels(
    opener: Opener, monkeypatch: pytest.MonkeyPatch, wide: str
) -> None:
    ours = read(opener(shape(4, 32, wide)), width=5)
    monkeypatch.setenv(VARIABLE, "engine")
    model = opener(shape(4, 32, wide))
    assert model.card.kernels == ""
    assert not model.card.row_invariant
    assert np.abs(read(model, width=5) - ours).max() < 0.1 * ours.std()


@pytest.mark.parametrize("threads", [1, 2])
def test_kernels_of_float_models_are_our_attention_and_the_engines_products(
    opener: Opener, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = opener(shape(32, 32), threads=threads)
    assert model.card.kernels
    assert not model.card.row_invariant
    found = read(model, width=5)
    monkeypatch.setenv(VARIABLE, "engine")
    expected = read(opener(shape(32, 32), threads=threads), width=5)
    assert np.abs(found - expected).max() < 1e-4 * expected.std()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / FOLDER


def logits() -> FloatArray:
    """Open the bundled pack's draft and run a short text."""
    with edgedecode.load(runtime="onnx") as pair:
        assert pair.draft.card.kernels
        return read(pair.draft, width=5)


def test_prepared_weights_are_built_once_and_mapped(cache: Path) -> None:
    first = logits()
    made = sorted(cache.glob("*.tiles"))[0]
    before = made.stat()
    assert np.array_equal(logits(), first)
    assert (made.stat().st_mtime_ns, made.stat().st_ino) == (before.st_mtime_ns, before.st_ino)


@pytest.mark.parametrize("damage", ["flipped", "cut off", "empty", "record", "no record"])
def test_prepared_weights_that_are_damaged_are_rebuilt(
    cache: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = logits()
    made = min(cache.glob("*.tiles"), key=lambda path: path.stat().st_size)  # the draft's
    record = made.with_suffix(".json")
    data = made.read_bytes()
    if damage == "flipped":
        made.write_bytes(bytes([data[0] ^ 255]) + data[1:])
    elif damage == "record":
        record.write_text(json.dumps({"sha256": 3}), encoding="utf-8")
    elif damage == "no record":
        record.unlink()
    else:
        made.write_bytes(data[: len(data) // 2] if damage == "cut off" else b"")
    with caplog.at_level("INFO", logger="edgedecode.user_notices"):
        again = logits()
    assert np.array_equal(again, first)
    assert made.read_bytes() == data
    assert ("will be rebuilt" in caplog.text) == (damage != "no record")


def test_prepared_weights_that_cannot_be_stored_stay_in_memory(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = logits()
    shutil.rmtree(cache)
    monkeypatch.setattr(
        "edgedecode.runtimes.onnx.kernels.prepared._build", Mock(side_effect=OSError(28, "No space left on device"))
    )
    with caplog.at_level("INFO", logger="edgedecode.user_notices"):
        assert np.array_equal(logits(), first)
    assert "No space left on device" in caplog.text
    assert list(cache.glob("*.tiles")) == []


def test_prepared_weights_outside_a_pack_are_not_cached(opener: Opener, cache: Path) -> None:
    assert opener(shape(4, 32)).card.kernels
    assert list(cache.glob("*")) == []
