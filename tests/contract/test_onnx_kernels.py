"""Our kernels: a row's bits depend on the row and its past alone, and they are the same on every instruction set."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import sys
from collections.abc import Sequence
from ctypes import CDLL, create_string_buffer
from ctypes.util import find_library
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import edgedecode
from edgedecode.decoding.arrays import FloatArray
from edgedecode.decoding.model import AdapterModel, AdapterUse, LanguageModel, LowRank
from edgedecode.errors import InputError, ManifestError, RuntimeUnavailable
from edgedecode.onnx_format.graph_file import GraphFile, Node, RawAttribute, ValueInfo
from edgedecode.pack.hub import BUNDLED_PACK
from edgedecode.runtimes.onnx.kernels import self_check
from edgedecode.runtimes.onnx.kernels.library import INSTRUCTION_SETS, KernelLibrary, Matrix
from edgedecode.runtimes.onnx.kernels.prepared import FOLDER
from edgedecode.runtimes.onnx.kernels.products import DOMAIN, WeightsFile
from edgedecode.runtimes.onnx.kernels.rewriting import Rewritten, rewrite
from edgedecode.runtimes.onnx.kernels.trial import VARIABLE, load_kernels, tried
from tests.contract.conftest import Opener
from tests.contract.toy_graph import ToyShape

LIBRARY, REASON = tried()
pytestmark = pytest.mark.skipif(LIBRARY is None, reason=f"no kernels: {REASON}")
SETS = LIBRARY.instruction_sets if LIBRARY is not None else ()
SHAPES = list(product((4, 8), (32, 64, 128)))
ALL = ("q", "k", "v", "o", "gate", "up", "down", "head")
WIDE = {"8 bits": (), "16 bits": ALL, "gate and up differ": ("gate", "o", "head")}
"""Which products have 16-bit activations; gate and up are one operator where they agree."""
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
    """Return the widths of passes whose rows are not those of passes of one row."""
    alone = read(model, width=1, adapter=adapter)
    return [width for width in widths if not np.array_equal(read(model, width=width, adapter=adapter), alone)]


@pytest.mark.parametrize(("wide", "threads"), [*((wide, 2) for wide in WIDE), ("8 bits", 1)])
@pytest.mark.parametrize(("bits", "block"), SHAPES)
def test_rows_of_every_width_are_bit_identical_from_one_on(
    opener: Opener, bits: int, block: int, threads: int, wide: str
) -> None:
    model = opener(shape(bits, block, wide), threads=threads)
    assert model.card.kernels
    assert model.card.row_invariant
    alone = read(model, width=1)
    assert [
        width for width in (*range(2, 18), 33, 64, 150) if not np.array_equal(read(model, width=width), alone)
    ] == []


@pytest.mark.parametrize("needs", ["kv:int8", "lora", "hidden"])
def test_other_graphs_are_row_invariant_too(opener: Opener, needs: str) -> None:
    model = opener(replace(shape(8, 32), graphs=("base", "lora", "kv8", "hidden")), needs=(needs,))
    adapter = None
    if needs == "lora":
        rng = np.random.default_rng(4)
        adapter = AdapterUse(name="formal", digest="f0")
        assert isinstance(model, AdapterModel)
        down, up = (rng.standard_normal(size, np.float32) / 16 for size in ((8, 256), (256, 8)))
        model.add_adapter("f0", [LowRank(0, "o_proj", down, up)])
    assert model.card.row_invariant
    alone = read(model, width=1, adapter=adapter)
    assert [
        width for width in (2, 3, 7, 16, 150) if not np.array_equal(read(model, width=width, adapter=adapter), alone)
    ] == []


@pytest.mark.parametrize("window", [0, 24])
def test_a_row_of_a_tree_has_the_bits_of_the_chain_on_its_path(opener: Opener, window: int) -> None:
    model = opener(replace(shape(4, 32), window=window, all_windows=True))
    prompt = tokens()[:40]
    branches = [[7, 8, 9], [7, 11, 12], [300, 301, 302]]
    # The rows of a breadth-first tree: its slots are in another order than the positions of any branch but the first.
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
    model.close()


@pytest.mark.parametrize("wide", WIDE)
@pytest.mark.parametrize(("bits", "block"), SHAPES)
def test_every_instruction_set_gives_the_same_bits_for_a_whole_model(
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


def multiply(matrix: Matrix, x: FloatArray, *, planes: int = 1) -> FloatArray:
    assert LIBRARY is not None
    return self_check.multiply(LIBRARY, matrix, x, planes=planes, threads=2)


def random_matrix(rng: np.random.Generator, *, bits: int, block: int, columns: int, inner: int, half: bool) -> Matrix:
    blocks = -(-inner // block)
    packed = rng.integers(0, 256, (columns, blocks, block * bits // 8), np.uint8)
    scales = rng.uniform(2.0**-12, 2.0**-6, (columns, blocks)).astype(np.float32)
    if half:
        scales = scales.astype(np.float16).astype(np.float32)
    assert LIBRARY is not None
    matrix = Matrix(packed, scales, bits, block)
    found = LIBRARY.inspect(matrix)
    return replace(matrix, wide_scales=bool(found & 1))


def dense(matrix: Matrix, inner: int) -> np.ndarray:
    """Return the matrix in float64, [columns, inner]."""
    packed = matrix.packed.reshape(matrix.columns, -1)
    if matrix.bits == 4:
        packed = np.stack((packed & 15, packed >> 4), axis=-1).reshape(matrix.columns, -1)
    values = packed.astype(np.float64) - (8 if matrix.bits == 4 else 128)
    return (values.reshape(matrix.columns, -1, matrix.block) * matrix.scales[..., None]).reshape(matrix.columns, -1)[
        :, :inner
    ]


@pytest.mark.parametrize("planes", [1, 2])
@pytest.mark.parametrize("name", SETS)
def test_products_of_random_shapes_are_within_the_bound_of_rounding(name: str, planes: int) -> None:
    """A rounded activation is off by half a step, 1/254 of its block's largest, beside the rounding of float32 sums.

    With two planes a step is 1/256 of that.
    """
    assert LIBRARY is not None
    rng = np.random.default_rng(5)
    for _ in range(25):
        bits, block = SHAPES[rng.integers(len(SHAPES))]
        columns, inner, rows = int(rng.integers(1, 70)), int(rng.integers(1, 300)), int(rng.integers(1, 20))
        matrix = random_matrix(rng, bits=bits, block=block, columns=columns, inner=inner, half=bool(rng.integers(2)))
        x = (rng.standard_normal((rows, inner)) * 10.0 ** rng.integers(-6, 6)).astype(np.float32)
        weights = dense(matrix, inner)
        LIBRARY.choose(name)
        found = multiply(matrix, x, planes=planes)
        padded = np.zeros((rows, -(-inner // 32) * 32))
        padded[:, :inner] = np.abs(x)
        steps = np.repeat(padded.reshape(rows, -1, 32).max(axis=2), 32, axis=1)[:, :inner] / (254 * 256 ** (planes - 1))
        bound = 1.001 * (steps @ np.abs(weights).T) + 1e-6 * (np.abs(x) @ np.abs(weights).T)
        assert (np.abs(found - x.astype(np.float64) @ weights.T) <= bound).all()


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("planes", [1, 2])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_never_silent(name: str, bad: float, planes: int) -> None:
    assert LIBRARY is not None
    rng = np.random.default_rng(6)
    matrix = random_matrix(rng, bits=4, block=32, columns=40, inner=96, half=True)
    x = rng.standard_normal((3, 96)).astype(np.float32)
    x[1, 50] = bad
    LIBRARY.choose(name)
    found = multiply(matrix, x, planes=planes)
    assert np.isnan(found[1]).all()
    assert np.isfinite(found[[0, 2]]).all()


@pytest.mark.parametrize("name", SETS)
def test_zeros_and_denormals_give_zeros(name: str) -> None:
    assert LIBRARY is not None
    matrix = random_matrix(np.random.default_rng(7), bits=8, block=32, columns=20, inner=64, half=True)
    LIBRARY.choose(name)
    x = np.zeros((2, 64), np.float32)
    x[1] = 1e-42
    assert (multiply(matrix, x) == 0).all()
    assert (multiply(matrix, x, planes=2) == 0).all()


@pytest.mark.parametrize("name", SETS)
def test_16_bits_err_less_than_float16_would_however_large_one_input_is(name: str) -> None:
    """Half a step of each of a sub-block's inputs is at most sqrt(32) / 65024 of their norm; float16 keeps 1 / 2048."""
    assert LIBRARY is not None
    rng = np.random.default_rng(8)
    matrix = random_matrix(rng, bits=8, block=32, columns=64, inner=32, half=True)
    x = rng.standard_normal((40, 32)).astype(np.float32)
    x[:, 7] *= 10.0 ** rng.uniform(0, 4, 40)
    LIBRARY.choose(name)
    weights = dense(matrix, 32)
    wrong = np.abs(multiply(matrix, x, planes=2) - x.astype(np.float64) @ weights.T)
    norms = np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(weights, axis=1)
    assert (wrong <= 1.01 * 32**0.5 / 65024 * norms).all()


@pytest.mark.skipif(platform.machine() != "x86_64" or sys.platform != "linux", reason="sets the mode as glibc keeps it")
@pytest.mark.parametrize("columns", [48, 4096])
@pytest.mark.parametrize("engines_pool", [0, 1])
def test_results_do_not_depend_on_the_threads_floating_point_mode(columns: int, engines_pool: int) -> None:
    """Another library may have told this thread to take denormals for zeros, or to round upwards."""
    assert LIBRARY is not None
    attributes = {"threads": 2, "engines_pool": engines_pool}
    file = GraphFile(
        nodes=[Node("FloatProduct", DOMAIN, "", ["x", "w"], ["y"], dict(attributes))],
        inputs=[ValueInfo("x", 1, ["R", 64]), ValueInfo("w", 1, [64, columns])],
        outputs=[ValueInfo("y", 1, ["R", columns])],
        opset={"": 21, DOMAIN: 1},
        model_rest=[(1, b"\x08\x0a")],
    )
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(LIBRARY.path))
    session = onnxruntime.InferenceSession(file.serialize(), options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(3)
    x, w = rng.random((3, 64), np.float32), rng.random((64, columns), np.float32)
    x[0] *= 1e-40
    (expected,) = session.run(None, {"x": x, "w": w})
    assert expected[0].all()
    mathematics = CDLL(find_library("m"))
    before, other = create_string_buffer(64), create_string_buffer(64)
    mathematics.fegetenv(before)
    mathematics.fegetenv(other)
    mode = int.from_bytes(other[28:32], "little")  # the last field of an x86-64 fenv_t
    assert mode & 0x1F80 == 0x1F80
    other[28:32] = (mode | 0xC040).to_bytes(4, "little")
    mathematics.fesetenv(other)
    try:
        (found,) = session.run(None, {"x": x, "w": w})
    finally:
        mathematics.fesetenv(before)
    assert np.array_equal(found.view(np.uint32), expected.view(np.uint32))


def test_an_unknown_or_impossible_choice_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "avx1024")
    with pytest.raises(InputError, match=r"EDGEDECODE_KERNELS=avx1024: give one of auto, avx512"):
        load_kernels()
    for name in set(INSTRUCTION_SETS) - set(SETS):
        monkeypatch.setenv(VARIABLE, name)
        with pytest.raises(
            InputError, match=f"{VARIABLE}={name}: this processor or build has no kernels {name!r}; it has: "
        ):
            load_kernels()


def test_a_choice_below_what_the_processor_has_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SETS:
        monkeypatch.setenv(VARIABLE, name)
        library = load_kernels()
        assert isinstance(library, KernelLibrary)
        assert library.instruction_set == name
    monkeypatch.setenv(VARIABLE, "engine")
    assert load_kernels() is None


def test_the_self_check_refuses_kernels_that_compute_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    assert LIBRARY is not None
    self_check.run_once(LIBRARY)

    def zeros(self: KernelLibrary, matrix: Matrix, out: np.ndarray) -> None:
        out[:] = 0

    monkeypatch.setattr(KernelLibrary, "prepare", zeros)
    with pytest.raises(RuntimeUnavailable, match=f"the {SETS[0]} kernels compute wrong results"):
        self_check.run_once(LIBRARY)


@pytest.mark.parametrize("wide", WIDE)
def test_the_engines_kernels_serve_where_they_are_asked_for(
    opener: Opener, monkeypatch: pytest.MonkeyPatch, wide: str
) -> None:
    ours = read(opener(shape(4, 32, wide)), width=5)
    monkeypatch.setenv(VARIABLE, "engine")
    model = opener(shape(4, 32, wide))
    assert model.card.kernels == ""
    assert not model.card.row_invariant
    assert np.abs(read(model, width=5) - ours).max() < 0.1 * ours.std()


@pytest.mark.parametrize("threads", [1, 2])
def test_float_models_have_our_attention_and_the_engines_products(
    opener: Opener, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = opener(shape(32, 32), threads=threads)
    assert model.card.kernels
    assert not model.card.row_invariant
    found = read(model, width=5)
    monkeypatch.setenv(VARIABLE, "engine")
    expected = read(opener(shape(32, 32), threads=threads), width=5)
    assert np.abs(found - expected).max() < 1e-4 * expected.std()


@pytest.mark.parametrize("mixed", [False, True])
def test_our_operators_share_the_engines_threads_where_it_has_products(mixed: bool) -> None:
    file = draft_graph()
    if mixed:
        first = next(node for node in file.nodes if node.op_type == "MatMulNBits")
        first.attributes["accuracy_level"] = 1
    found = rewritten(file)
    assert found is not None
    nodes = [node for node in GraphFile.parse(found.data).nodes if node.domain == DOMAIN]
    assert {node.op_type for node in nodes} >= {"RowsProduct", "TreeAttention"}
    assert {node.attributes.get("engines_pool", 0) for node in nodes} == {int(mixed)}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / FOLDER


def logits() -> FloatArray:
    """Open the bundled pack's draft and read a little."""
    with edgedecode.load(runtime="onnx") as pair:
        assert pair.draft is not None
        assert pair.draft.card.kernels
        return read(pair.draft, width=5)


def test_prepared_weights_are_made_once_and_mapped(cache: Path) -> None:
    first = logits()
    made = sorted(cache.glob("*.tiles"))[0]
    before = made.stat()
    assert np.array_equal(logits(), first)
    assert (made.stat().st_mtime_ns, made.stat().st_ino) == (before.st_mtime_ns, before.st_ino)


@pytest.mark.parametrize("damage", ["flipped", "cut off", "empty", "record", "no record"])
def test_damaged_prepared_weights_are_made_again(cache: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
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
    assert ("made again" in caplog.text) == (damage != "no record")


def test_weights_that_cannot_be_kept_are_prepared_in_memory(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = logits()
    shutil.rmtree(cache)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("edgedecode.runtimes.onnx.kernels.prepared._make", full)
    with caplog.at_level("INFO", logger="edgedecode.user_notices"):
        assert np.array_equal(logits(), first)
    assert "No space left on device" in caplog.text
    assert list(cache.glob("*.tiles")) == []


def test_weights_of_no_pack_leave_nothing_in_the_cache(opener: Opener, cache: Path) -> None:
    assert opener(shape(4, 32)).card.kernels
    assert list(cache.glob("*")) == []


def test_a_pack_whose_graph_names_our_operators_is_refused(tmp_path: Path) -> None:
    pack = tmp_path / "pack"
    shutil.copytree(BUNDLED_PACK, pack)
    manifest = json.loads((pack / "edgedecode.json").read_text(encoding="utf-8"))
    for role in ("target", "draft"):
        for path in (pack / role).glob("*.onnx"):
            file = GraphFile.parse(path.read_bytes())
            product = next(node for node in file.nodes if node.op_type == "MatMulNBits")
            product.op_type, product.domain = "RowsProduct", DOMAIN
            file.opset[DOMAIN] = 1
            path.write_bytes(file.serialize())
            entry = manifest["files"][f"{role}/{path.name}"]
            entry["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
            entry["nbytes"] = path.stat().st_size
    (pack / "edgedecode.json").write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(ManifestError, match="'RowsProduct' is of the unknown domain 'edgedecode'"):
        edgedecode.load(pack, runtime="onnx")


def draft_graph() -> GraphFile:
    return GraphFile.parse((BUNDLED_PACK / "draft" / "base.onnx").read_bytes())


def rewritten(file: GraphFile) -> Rewritten | None:
    assert LIBRARY is not None
    return rewrite(file, LIBRARY, WeightsFile(BUNDLED_PACK / "draft" / "weights.bin"), window=0, threads=1)


def test_one_array_with_two_sets_of_scales_is_two_matrices() -> None:
    file = draft_graph()
    first, second = [node for node in file.nodes if "gate_proj" in node.name and node.op_type == "MatMulNBits"]
    second.inputs[1] = first.inputs[1]
    found, plain = rewritten(file), rewritten(draft_graph())
    assert found is not None
    assert plain is not None
    assert len(found.stored) == len(plain.stored)


def test_weights_of_another_file_stay_with_the_engine() -> None:
    file = draft_graph()
    name = next(node.inputs[1] for node in file.nodes if node.op_type == "MatMulNBits")
    tensor = file.initializers[name]
    assert tensor.external is not None
    file.initializers[name] = replace(tensor, external=replace(tensor.external, location="other.bin"))
    found = rewritten(file)
    assert found is not None
    assert not found.row_invariant
    assert found.unserved == {"weights of another size than the node's": 1}


@pytest.mark.parametrize("where", ["opset", "node", "inner graph", "function"])
def test_a_graph_that_names_our_operators_anywhere_is_left_alone(where: str) -> None:
    file = draft_graph()
    if where == "opset":
        file.opset[DOMAIN] = 1
    elif where == "node":
        file.nodes[0].domain = DOMAIN
    elif where == "inner graph":
        file.nodes[0].attributes["then_branch"] = RawAttribute(b"then_branch edgedecode")
    else:
        file.model_rest.append((25, b""))
    assert rewritten(file) is None


@pytest.mark.parametrize("attribute", ["local_window_size", "smooth_softmax"])
def test_attention_of_another_meaning_stays_with_the_engine(attribute: str) -> None:
    file = draft_graph()
    for node in file.nodes:
        if node.op_type == "GroupQueryAttention":
            node.attributes[attribute] = 4
    assert rewritten(file) is None


def with_levels(*levels: int | None) -> GraphFile:
    """Return the draft's graph whose products have these accuracy levels in turn; None: the attribute is not there."""
    file = draft_graph()
    products = [node for node in file.nodes if node.op_type == "MatMulNBits"]
    for index, node in enumerate(products):
        level = levels[index % len(levels)]
        node.attributes.pop("accuracy_level")
        if level is not None:
            node.attributes["accuracy_level"] = level
    return file


@pytest.mark.parametrize("level", [None, 0, 2, 3])
def test_products_that_do_not_allow_8_bits_get_16_from_the_same_tiles(level: int | None) -> None:
    found, plain = rewritten(with_levels(level)), rewritten(draft_graph())
    assert found is not None
    assert plain is not None
    assert found.row_invariant
    assert found.stored.keys() == plain.stored.keys()
    planes = [node.attributes["planes"] for node in GraphFile.parse(found.data).nodes if node.op_type == "RowsProduct"]
    before = [node.attributes["planes"] for node in GraphFile.parse(plain.data).nodes if node.op_type == "RowsProduct"]
    assert (set(planes), set(before)) == ({2}, {1})
    assert len(planes) == len(before)


def test_one_matrix_that_is_read_at_two_widths_is_one_set_of_tiles() -> None:
    file = with_levels(2, 4)
    first, second = [node for node in file.nodes if "gate_proj" in node.name and node.op_type == "MatMulNBits"]
    second.inputs[1:3] = first.inputs[1:3]
    first.attributes["accuracy_level"], second.attributes["accuracy_level"] = 2, 4
    found, plain = rewritten(file), rewritten(draft_graph())
    assert found is not None
    assert plain is not None
    assert len(found.stored) == len(plain.stored) - 1


def test_products_that_ask_for_float32_stay_with_the_engine() -> None:
    found = rewritten(with_levels(1))
    assert found is not None
    assert found.left.keys() == {"MatMulNBits"}
    assert not found.unserved
