"""The matrices of GGUF block types have exactly the values that the gguf package reads."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from edgedecode.runtimes.onnx.kernels.block_types import matrix_of, minima_of
from edgedecode.runtimes.onnx.kernels.products import NotServed

MIDDLES = {4: 8, 8: 128}


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q8_0"])
def test_values_are_those_of_the_file(name: str) -> None:
    kind = GGMLQuantizationType[name]
    data = quantize(np.random.default_rng(1).standard_normal((48, 96)).astype(np.float32), kind)
    matrix, minima = matrix_of(int(kind), data), minima_of(int(kind), data)
    packed = matrix.packed
    if matrix.bits == 4:
        packed = np.stack((packed & 15, packed >> 4), axis=-1).reshape(48, 3, 32)
    values = (packed.astype(np.float32) - MIDDLES[matrix.bits]) * matrix.scales[..., None]
    values += 0 if minima is None else minima[..., None]
    expected = dequantize(data, kind)
    assert (minima is not None) == (name == "Q4_1")
    np.testing.assert_allclose(values.reshape(48, 96), expected, rtol=0, atol=1e-6)


def test_types_without_tiles_are_named() -> None:
    with pytest.raises(NotServed, match="block type 14 has no tiles"):
        matrix_of(14, np.zeros((1, 210), np.uint8))
