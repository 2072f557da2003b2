"""Our quantized products: within their rounding bound on every instruction set, and never hiding NaN."""

import platform
import sys
from collections.abc import Callable
from ctypes import CDLL, create_string_buffer
from ctypes.util import find_library
from dataclasses import replace
from itertools import product

import numpy as np
import onnxruntime
import pytest

from edgedecode.arrays import FloatArray
from edgedecode.onnx_format.graph_file import GraphFile, ValueInfo
from edgedecode.onnx_format.node import Node
from edgedecode.runtimes.onnx.kernels import trial
from edgedecode.runtimes.onnx.kernels.library import Matrix
from edgedecode.runtimes.onnx.kernels.products import DOMAIN, matrix_attributes, product_node
from edgedecode.runtimes.onnx.kernels.trial import tried

LIBRARY, REASON = tried()
pytestmark = pytest.mark.skipif(LIBRARY is None, reason=f"no kernels: {REASON}")
SETS = LIBRARY.instruction_sets if LIBRARY is not None else ()
TABLES = {1: (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), 2: (0, 1, 2, 3, 4, 6, 8, 12)}
FORMS: dict[int, list[dict[str, int]]] = {
    1: [{"bits": bits, "block": block} for bits, block in product((4, 8), (32, 64, 128))],
    2: [
        *({"bits": 4, "block": block, "minima": minima} for block, minima in product((32, 64, 128), (0, 1))),
        *({"bits": 5, "block": block, "minima": minima} for block, minima in product((32, 128), (0, 1))),
        *({"bits": 8, "block": block} for block in (32, 64, 128)),
        *({"bits": bits, "block": 256, "minima": 1, "parts": 1} for bits in (4, 5)),
        *({"bits": bits, "block": 256, "parts": 2} for bits in (4, 6)),
        {"bits": 4, "block": 256, "minima": 1, "parts": 2},
        *({"bits": 4, "block": 32, "table": table} for table in TABLES),
        *({"bits": 4, "block": 256, "parts": 1, "table": table} for table in TABLES),
    ],
}
"""What there are kernels for, by planes: see `Matrix`."""
Session = Callable[..., FloatArray]
TILES = ValueInfo("w", 2, ["T"])


@pytest.fixture(autouse=True)
def _best_afterwards() -> None:
    yield  # type: ignore[misc]
    if LIBRARY is not None:
        LIBRARY.choose("auto")


def session_of(node: Node, inputs: list[ValueInfo]) -> Session:
    """Open a graph of one node with a matrix y as its output."""
    file = GraphFile(
        nodes=[node],
        inputs=inputs,
        outputs=[ValueInfo("y", 1, ["R", "C"])],
        opset={"": 21, DOMAIN: 1},
        model_rest=[(1, b"\x08\x0a")],
    )
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(LIBRARY.path))
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(file.serialize(), options, providers=["CPUExecutionProvider"])
    return lambda **values: session.run(None, values)[0]


def multiply(matrix: Matrix, x: FloatArray, *, planes: int = 1) -> FloatArray:
    assert LIBRARY is not None
    return trial.multiply(LIBRARY, matrix, x, planes=planes, threads=2)


def random_matrix(
    rng: np.random.Generator,
    *,
    bits: int,
    block: int,
    columns: int,
    inner: int,
    half: bool,
    minima: int = 0,
    parts: int = 0,
    table: int = 0,
) -> Matrix:
    blocks = -(-inner // block)
    wide = bits in (5, 6)
    shape = (columns, blocks, block if wide else block * bits // 8)
    packed = rng.integers(0, 2**bits if wide else 256, shape, np.uint8)
    scales = rng.uniform(2.0**-12, 2.0**-6, (columns, blocks)).astype(np.float32)
    if half:
        scales = scales.astype(np.float16).astype(np.float32)
    lowest = -scales * 2 ** (bits - 1) if minima else None  # a power of two: as exact in half precision
    levels = (
        rng.integers(-128, 128, (2, columns, blocks, block // 32 * parts)).astype(np.int8) if parts else (None, None)
    )
    given = {"minima": lowest, "levels": levels[0], "minimum_levels": levels[1] if minima else None}
    matrix = Matrix(packed, scales, bits, block, **given, table=table)
    found = LIBRARY.inspect(matrix)
    return replace(matrix, wide_scales=bool(found & 1))


def dense(matrix: Matrix, inner: int) -> np.ndarray:
    """Return the matrix in float64, [columns, inner]."""
    packed = matrix.packed.reshape(matrix.columns, -1)
    if matrix.bits == 4:
        packed = np.stack((packed & 15, packed >> 4), axis=-1).reshape(matrix.columns, -1)
    values = packed.astype(np.float64) - (0 if matrix.minima is not None else 2.0 ** (matrix.bits - 1))
    if matrix.table:
        values = np.array(TABLES[matrix.table], np.float64)[packed % len(TABLES[matrix.table])]
        values[(packed > 7) & (matrix.table == 2)] *= -1
    scales = _leveled(matrix.scales, matrix.levels)
    values = values.reshape(*scales.shape, -1) * scales[..., None]
    if matrix.minima is not None:
        values += _leveled(matrix.minima, matrix.minimum_levels)[..., None]
    return values.reshape(matrix.columns, -1)[:, :inner]


def _leveled(scales: FloatArray, levels: np.ndarray | None) -> np.ndarray:
    """Return the scale of each part of each block, [columns, parts]."""
    return scales if levels is None else (scales[..., None] * levels.astype(np.float32)).reshape(len(scales), -1)


@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("form", FORMS[2], ids=str)
def test_unpack_gives_the_weights_bit_for_bit(form: dict[str, int], half: bool) -> None:
    matrix = random_matrix(np.random.default_rng(2), **form, columns=70, inner=3 * form["block"], half=half)
    tiles = np.empty(LIBRARY.prepared_nbytes(matrix), np.uint8)
    LIBRARY.prepare(matrix, tiles)
    wanted = dense(matrix, 3 * form["block"]).astype(np.float32)
    for column in range(70):
        np.testing.assert_array_equal(LIBRARY.unpack(matrix, tiles, column), wanted[column])


@pytest.mark.parametrize("planes", [1, 2])
@pytest.mark.parametrize("name", SETS)
def test_products_of_random_shapes_are_within_the_bound_of_rounding(name: str, planes: int) -> None:
    """A rounded activation is off by half a step, 1/254 of its block's largest, plus the rounding of float32 sums.

    With two planes a step is 1/256 of that.
    """
    assert LIBRARY is not None
    rng = np.random.default_rng(5)
    for form in FORMS[planes] * 2:
        columns, inner, rows = int(rng.integers(1, 70)), int(rng.integers(1, 300)), int(rng.integers(1, 20))
        matrix = random_matrix(rng, **form, columns=columns, inner=inner, half=bool(rng.integers(0, 2)))
        x = (rng.standard_normal((rows, inner)) * 10.0 ** rng.integers(-6, 6)).astype(np.float32)
        weights = dense(matrix, inner)
        LIBRARY.choose(name)
        found = multiply(matrix, x, planes=planes)
        padded = np.zeros((rows, -(-inner // 32) * 32))
        padded[:, :inner] = np.abs(x)
        steps = np.repeat(padded.reshape(rows, -1, 32).max(axis=2), 32, axis=1)[:, :inner] / (254 * 256 ** (planes - 1))
        largest = np.abs(weights) if matrix.minima is None else np.abs(weights) + 2 * np.abs(weights).max()
        bound = 1.001 * (steps @ np.abs(weights).T) + 1e-6 * (np.abs(x) @ largest.T)
        assert (np.abs(found - x.astype(np.float64) @ weights.T) <= bound).all()


@pytest.mark.parametrize(("planes", "form"), [(planes, form) for planes in (1, 2) for form in FORMS[planes]], ids=str)
def test_products_have_the_same_bits_on_every_instruction_set_and_in_passes_of_any_width(
    planes: int, form: dict[str, int]
) -> None:
    assert LIBRARY is not None
    rng = np.random.default_rng(9)
    matrix = random_matrix(rng, **form, columns=70, inner=2 * form["block"], half=True)
    x = rng.standard_normal((19, 2 * form["block"])).astype(np.float32)
    wanted = multiply(matrix, x, planes=planes)
    for name in SETS:
        LIBRARY.choose(name)
        for rows in (1, 2, 3, 8, 19):
            np.testing.assert_array_equal(multiply(matrix, x[:rows], planes=planes), wanted[:rows])


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("planes", [1, 2])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_products_propagate_values_that_are_not_finite(name: str, bad: float, planes: int) -> None:
    rng = np.random.default_rng(6)
    matrix = random_matrix(rng, bits=4, block=32, columns=40, inner=96, half=True)
    x = rng.standard_normal((3, 96)).astype(np.float32)
    x[1, 50] = bad
    LIBRARY.choose(name)
    found = multiply(matrix, x, planes=planes)
    assert np.isnan(found[1]).all()
    assert np.isfinite(found[[0, 2]]).all()


@pytest.mark.parametrize("name", SETS)
def test_products_of_zeros_and_denormals_are_zero(name: str) -> None:
    matrix = random_matrix(np.random.default_rng(7), bits=8, block=32, columns=20, inner=64, half=True)
    LIBRARY.choose(name)
    x = np.zeros((2, 64), np.float32)
    x[1] = 1e-42
    assert (multiply(matrix, x) == 0).all()
    assert (multiply(matrix, x, planes=2) == 0).all()


@pytest.mark.parametrize("name", SETS)
def test_products_with_16_bits_err_less_than_float16_for_any_outlier(name: str) -> None:
    """Half a step of each of a sub-block's inputs is at most sqrt(32) / 65024 of their norm; float16 keeps 1 / 2048."""
    rng = np.random.default_rng(8)
    matrix = random_matrix(rng, bits=8, block=32, columns=64, inner=32, half=True)
    x = rng.standard_normal((40, 32)).astype(np.float32)
    x[:, 7] *= 10.0 ** rng.uniform(0, 4, 40)
    LIBRARY.choose(name)
    weights = dense(matrix, 32)
    wrong = np.abs(multiply(matrix, x, planes=2) - x.astype(np.float64) @ weights.T)
    norms = np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(weights, axis=1)
    assert (wrong <= 1.01 * 32**0.5 / 65024 * norms).all()


@pytest.mark.skipif(platform.machine() != "x86_64" or sys.platform != "linux", reason="sets the mode in glibc's layout")
@pytest.mark.parametrize("columns", [48, 4096])
@pytest.mark.parametrize("engines_pool", [0, 1])
def test_products_do_not_depend_on_the_threads_floating_point_mode(columns: int, engines_pool: int) -> None:
    """Another library may have set this thread to flush denormals to zero or to round upwards."""
    assert LIBRARY is not None
    node = Node("FloatProduct", DOMAIN, "", ["x", "w"], ["y"], {"threads": 2, "engines_pool": engines_pool})
    run = session_of(node, [ValueInfo("x", 1, ["R", 64]), ValueInfo("w", 1, [64, columns])])
    rng = np.random.default_rng(3)
    x, w = rng.random((3, 64), np.float32), rng.random((64, columns), np.float32)
    x[0] *= 1e-40
    expected = run(x=x, w=w)
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
        found = run(x=x, w=w)
    finally:
        mathematics.fesetenv(before)
    assert np.array_equal(found.view(np.uint32), expected.view(np.uint32))


def as_bytes(matrix: np.ndarray, *, tiled: bool = False) -> np.ndarray:
    """Return [.., .., bytes of an element]; tiled: in memory by tiles of 32 columns."""
    if tiled:
        rank, columns = matrix.shape
        matrix = matrix.reshape(rank, columns // 32, 32).transpose(1, 0, 2).reshape(rank, columns)
    return np.ascontiguousarray(matrix).view(np.uint8).reshape(*matrix.shape, matrix.itemsize)


def adapted_session(matrix: Matrix, *, inner: int, gate: int, adapter: str, starts: tuple[int, ...] = ()) -> Session:
    """Open a product with inputs x, w and the matrices named by `adapter`; starts: of the second and third part."""
    node = product_node(
        ["x", "w", "", "w" if gate else "", *adapter], "y", matrix=matrix, inner=inner, threads=2, gate=gate, planes=2
    )
    node.attributes.update(zip(("second_part", "third_part"), starts, strict=False))
    given = [ValueInfo(name, 2, [f"{name}{i}" for i in range(3)]) for name in adapter]
    return session_of(node, [ValueInfo("x", 1, ["R", inner]), TILES, *given])


@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("gate", [0, 1])
@pytest.mark.parametrize(
    ("inner", "columns", "starts"), [(96, 96, ()), (9000, 32, ()), (64, 128, (64, 96)), (64, 64, (32,))]
)
def test_products_with_an_adapter_add_its_delta_the_same_in_passes_of_any_width(
    inner: int, columns: int, starts: tuple[int, ...], gate: int, half: bool
) -> None:
    """9,000 inputs are more than the operator sums in one piece. Matrices of rank 0 change no bit."""
    rng = np.random.default_rng(11)
    matrix = random_matrix(rng, bits=8, block=32, columns=columns, inner=inner, half=True)
    tiles = np.empty(LIBRARY.prepared_nbytes(matrix), np.uint8)
    LIBRARY.prepare(matrix, tiles)
    adapted = adapted_session(matrix, inner=inner, gate=gate, adapter="abcd" if gate else "ab", starts=starts)
    plain = adapted_session(matrix, inner=inner, gate=gate, adapter="")
    x = rng.standard_normal((7, inner)).astype(np.float32)
    parts = len(starts) + 1
    shapes = {"a": (inner, parts * 5), "b": (5, columns)} | ({"c": (inner, 16), "d": (16, columns)} if gate else {})
    kind = np.float16 if half else np.float32
    values = {name: (rng.standard_normal(shape) / inner**0.5).astype(kind) for name, shape in shapes.items()}
    given = {name: as_bytes(value, tiled=name in "bd") for name, value in values.items()}
    none = {name: value[:, :0] if name in "ac" else value[:0] for name, value in given.items()}
    bits = set()
    for name in SETS:
        LIBRARY.choose(name)
        found = adapted(x=x, w=tiles, **given)
        bits.add(found.tobytes())
        for row in range(7):
            assert adapted(x=x[row : row + 1], w=tiles, **given).tobytes() == found[row : row + 1].tobytes()
        assert adapted(x=x, w=tiles, **none).tobytes() == plain(x=x, w=tiles).tobytes()
    assert len(bits) == 1
    product = x.astype(np.float64) @ dense(matrix, inner).T
    exact = {name: value.astype(np.float64) for name, value in values.items()}
    ends = [0, *starts, columns]
    delta = np.concatenate(
        [
            x @ exact["a"][:, part * 5 : part * 5 + 5] @ exact["b"][:, ends[part] : ends[part + 1]]
            for part in range(parts)
        ],
        axis=1,
    )
    wanted = product + delta
    if gate:
        wanted = wanted / (1 + np.exp(-wanted)) * (product + x @ exact["c"] @ exact["d"])
    np.testing.assert_allclose(found, wanted, atol=2e-3 * np.abs(wanted).max())


def test_products_refuse_an_adapter_of_another_shape() -> None:
    matrix = random_matrix(np.random.default_rng(12), bits=8, block=32, columns=64, inner=64, half=True)
    tiles = np.empty(LIBRARY.prepared_nbytes(matrix), np.uint8)
    adapted = adapted_session(matrix, inner=64, gate=0, adapter="ab")
    x = np.zeros((1, 64), np.float32)
    wrong = [((63, 4, 4), (4, 64, 4)), ((64, 4, 4), (3, 64, 4)), ((64, 4, 4), (4, 32, 4)), ((64, 4, 4), (4, 64, 3))]
    for first, second in [*wrong, ((64, 4, 8), (4, 64, 4)), ((64, 4, 4), (0, 64, 4))]:
        with pytest.raises(Exception, match="an adapter's matrices do not fit the product"):
            adapted(x=x, w=tiles, a=np.zeros(first, np.uint8), b=np.zeros(second, np.uint8))


def two_levels() -> tuple[Matrix, np.ndarray]:
    """Return a matrix of 512 inputs whose halves of sub-blocks have a scale each, and its tiles."""
    matrix = random_matrix(
        np.random.default_rng(13), bits=4, block=256, parts=2, columns=70, inner=512, half=True, minima=1
    )
    tiles = np.empty(LIBRARY.prepared_nbytes(matrix), np.uint8)
    LIBRARY.prepare(matrix, tiles)
    return matrix, tiles


WRONG = (
    *({"bits": bits} for bits in (0, 5, 7, 8, 16)),
    *({"table": table} for table in (-1, 1, 3)),
    *({"scale_every": count} for count in (-1, 0, 3, 16)),
    *({"levels": count} for count in (-1, 3, 1 << 31)),
    *({"inner": size} for size in (-1, 0, 1 << 30, 1 << 62)),
    *({"columns": size} for size in (0, 1 << 30)),
    {"threads": 0},
)


@pytest.mark.parametrize("wrong", [*WRONG, {"planes": 1}, {"planes": 3}, {"gate": 3}, {"third_part": 71}], ids=str)
def test_products_refuse_attributes_that_no_matrix_has(wrong: dict[str, int]) -> None:
    matrix, tiles = two_levels()
    node = product_node(["x", "w"], "y", matrix=matrix, inner=512, threads=1, planes=2)
    node.attributes.update(wrong)
    run = session_of(node, [ValueInfo("x", 1, ["R", "K"]), TILES])
    with pytest.raises(Exception, match="RowsProduct: attributes that no matrix has"):
        run(x=np.zeros((1, 512), np.float32), w=tiles)


def rows_session(matrix: Matrix, **changed: int) -> Session:
    attributes = {"inner": 512, **matrix_attributes(matrix), "threads": 2, **changed}
    return session_of(
        Node("TileRows", DOMAIN, "", ["ids", "w"], ["y"], attributes), [ValueInfo("ids", 7, ["R"]), TILES]
    )


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_rows_of_tiles_refuse_attributes_that_no_matrix_has(wrong: dict[str, int]) -> None:
    matrix, tiles = two_levels()
    with pytest.raises(Exception, match="TileRows: attributes that no matrix has"):
        rows_session(matrix, **wrong)(ids=np.zeros(1, np.int64), w=tiles)


def test_rows_of_tiles_are_columns_of_the_matrix_and_nothing_beside_it_is_read() -> None:
    matrix, tiles = two_levels()
    run = rows_session(matrix)
    np.testing.assert_array_equal(run(ids=np.array([69, 0, 33]), w=tiles), dense(matrix, 512)[[69, 0, 33]].astype("f4"))
    for ids, given in (([70], tiles), ([-1], tiles), ([0], tiles[:-1])):
        with pytest.raises(Exception, match=r"an id is outside the matrix|a shape does not fit"):
            run(ids=np.array(ids), w=given)
