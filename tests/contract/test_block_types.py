"""The matrices of GGUF block types have exactly the values that the gguf package reads, in tiles too."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize, quantize

from edgedecode.gguf.contents import BLOCKS
from edgedecode.runtimes.onnx.kernels import trial
from edgedecode.runtimes.onnx.kernels.block_types import READERS, floats_of, matrix_of, scales_of
from edgedecode.runtimes.onnx.kernels.library import BAD_SCALE, WIDE_SCALES, KernelLibrary
from edgedecode.runtimes.onnx.kernels.products import NotServed

COLUMNS, INNER = 40, 512
FLOATS = ("F32", "F16", "BF16")
SIMPLE = (*FLOATS, "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
OTHERS = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4")
HALVES = {"Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0]}
"""Where a block has float16 numbers, which random bytes would make infinite."""


def blocks_of(name: str, shape: tuple[int, int] = (COLUMNS, INNER)) -> npt.NDArray[np.uint8]:
    """Return a matrix of this type and shape: rounded normal numbers, or blocks of random bytes."""
    kind, rng = GGMLQuantizationType[name], np.random.default_rng(1)
    if name in SIMPLE:
        return quantize(rng.standard_normal(shape).astype(np.float32), kind).view(np.uint8)
    size, nbytes = GGML_QUANT_SIZES[kind]
    data = rng.integers(0, 256, (shape[0] * shape[1] // size, nbytes), np.uint8)
    for place in HALVES.get(name, []):
        scales = rng.uniform(-0.01, 0.01, len(data)).astype("<f2")
        data[:, place : place + 2] = scales.view(np.uint8).reshape(-1, 2)
    if name == "MXFP4":
        data[:, 0] = rng.integers(110, 130, len(data))
    return data.reshape(shape[0], -1)


@pytest.mark.parametrize("name", [*SIMPLE, *OTHERS])
def test_tiles_have_the_values_of_the_file(name: str) -> None:
    kind = GGMLQuantizationType[name]
    data = blocks_of(name)
    library, matrix = KernelLibrary(), matrix_of(int(kind), data)
    found = library.inspect(matrix)
    assert not found & BAD_SCALE
    matrix = replace(matrix, wide_scales=bool(found & WIDE_SCALES))
    tiles = np.zeros(library.prepared_nbytes(matrix), np.uint8)
    library.prepare(matrix, tiles)
    values = np.stack([library.unpack(matrix, tiles, column) for column in range(COLUMNS)])
    expected = dequantize(data, kind)
    ulps = np.spacing(np.abs(expected).max())
    tolerance = 0 if matrix.minima is None else 2 * ulps
    np.testing.assert_allclose(values, expected, rtol=0, atol=tolerance)
    np.testing.assert_allclose(floats_of(int(kind), data[3:7]), expected[3:7], rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("inner", [512, 500])
def test_products_with_floats_are_those_of_float32_for_every_number_of_rows(name: str, inner: int) -> None:
    kind, library = GGMLQuantizationType[name], KernelLibrary()
    data = blocks_of(name, (COLUMNS, inner))
    x = np.random.default_rng(2).standard_normal((21, inner)).astype(np.float32)
    wanted, found = x @ dequantize(data, kind).T, {}
    for each in library.instruction_sets:
        library.choose(each)
        rows = [
            trial.multiply(library, matrix_of(int(kind), data), part, planes=2, threads=2) for part in np.split(x, 21)
        ]
        found[each] = trial.multiply(library, matrix_of(int(kind), data), x, planes=2, threads=2)
        np.testing.assert_array_equal(found[each], np.concatenate(rows))
        np.testing.assert_array_equal(found[each], found[library.instruction_sets[0]])
    library.choose("auto")
    np.testing.assert_allclose(wanted, found[library.instruction_sets[0]], rtol=0, atol=inner * 2.0**-24 * 8)


@pytest.mark.parametrize(("name", "place"), [(name, place) for name, places in HALVES.items() for place in places])
@pytest.mark.parametrize("half", [np.inf, -np.inf, np.nan])
def test_a_scale_or_minimum_that_is_not_finite_is_found(name: str, place: int, half: float) -> None:
    kind, data = GGMLQuantizationType[name], blocks_of(name)
    data.reshape(-1, GGML_QUANT_SIZES[kind][1])[-1, place : place + 2] = np.array([half], "<f2").view(np.uint8)
    assert KernelLibrary().inspect(matrix_of(int(kind), data)) & BAD_SCALE


def test_types_without_tiles_are_named() -> None:
    with pytest.raises(NotServed, match="block type IQ2_XXS has no tiles"):
        matrix_of(16, np.zeros((1, BLOCKS[16][1]), np.uint8))
    with pytest.raises(NotServed, match="block type IQ2_XXS has no reader"):
        floats_of(16, np.zeros((1, BLOCKS[16][1]), np.uint8))


@pytest.mark.parametrize("kind", [*READERS, 0, 1, 30])
def test_scales_are_judged_without_the_values(kind: int) -> None:
    """Random bytes hold scales that are not finite; small ones do not."""
    library, rng = KernelLibrary(), np.random.default_rng(kind)
    nbytes = 2 * BLOCKS[kind][1] if kind in READERS else 64
    tried = [rng.integers(0, most, (3, nbytes), dtype=np.uint8) for most in (60, 256) for _ in range(50)]
    found = [library.inspect(scales_of(kind, data)) for data in tried]
    assert found == [library.inspect(matrix_of(kind, data)) for data in tried]
    assert set(found) == ({39: {WIDE_SCALES}}.get(kind, {0, BAD_SCALE | WIDE_SCALES} if kind in READERS else {0}))
