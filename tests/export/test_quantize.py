"""Properties of the block quantizer, and its agreement with llama.cpp's quantizer."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from edgedecode.arrays import FloatArray
from edgedecode.export.graph.quantize import Scheme, dequantize, quantize

SCHEMES = [Scheme(4, 32), Scheme(8, 32), Scheme(4, 128), Scheme(8, 128)]
VALUES = st.floats(-8, 8, width=32, allow_subnormal=False)


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
@given(weights=arrays(np.float32, (3, 256), elements=VALUES))
def test_quantize_error_stays_within_half_a_level(scheme: Scheme, weights: FloatArray) -> None:
    blocks = quantize(weights, scheme)
    error = np.abs(dequantize(blocks, scheme) - weights).reshape(*blocks.scales.shape, -1)
    # 4 bits have no +8: a value opposite in sign to the largest may be a full level off. Tiny scales are subnormal.
    scales = blocks.scales[..., None]
    clipped = (weights.reshape(error.shape) * np.sign(scales) > 7.5 * np.abs(scales)) & (scheme.bits == 4)
    bound = np.abs(scales) * np.where(clipped, 1.08, 0.58) + 2.0**-17
    assert (error <= bound).all()


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
@given(weights=arrays(np.float32, (2, 256), elements=st.floats(-1e6, 1e6, width=32)))
def test_quantize_scales_are_float16_numbers(scheme: Scheme, weights: FloatArray) -> None:
    scales = quantize(weights, scheme).scales
    assert scales.dtype == np.float32
    assert np.array_equal(scales, scales.astype(np.float16).astype(np.float32))


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_quantize_zero_blocks_are_exact(scheme: Scheme) -> None:
    weights = np.random.default_rng(0).standard_normal((4, 256)).astype(np.float32)
    weights[:, 128:] = 0
    assert not dequantize(quantize(weights, scheme), scheme)[:, 128:].any()


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_quantize_is_idempotent(scheme: Scheme) -> None:
    weights = np.random.default_rng(1).standard_normal((8, 512)).astype(np.float32)
    once = dequantize(quantize(weights, scheme), scheme)
    assert np.array_equal(dequantize(quantize(once, scheme), scheme), once)


def test_quantize_scale_uses_the_first_of_equal_maxima() -> None:
    weights = np.zeros((2, 32), np.float32)
    weights[0, [3, 9]], weights[1, [3, 9]] = (-1, 1), (1, -1)
    assert quantize(weights, Scheme(4, 32)).scales[:, 0].tolist() == [0.125, -0.125]


def test_packing_puts_the_even_column_in_the_low_bits() -> None:
    weights = np.zeros((1, 32), np.float32)
    weights[0, :2] = (-8, 7)
    assert quantize(weights, Scheme(4, 32)).packed[0, 0, :2].tolist() == [0xF0, 0x88]


@pytest.mark.parametrize(("bits", "kind"), [(4, "Q4_0"), (8, "Q8_0")])
def test_quantize_blocks_match_llama_cpp(bits: int, kind: str) -> None:
    gguf = pytest.importorskip("gguf")
    weights = np.random.default_rng(2).standard_normal((64, 256)).astype(np.float32)
    theirs = gguf.quantize(weights, gguf.GGMLQuantizationType[kind])
    blocks = theirs.reshape(64, 8, -1)
    scales = blocks[..., :2].copy().view(np.float16)[..., 0].astype(np.float32)
    ours = quantize(weights, Scheme(bits, 32))
    assert np.array_equal(ours.scales, scales)
    restored = gguf.dequantize(theirs, gguf.GGMLQuantizationType[kind])
    assert (dequantize(ours, Scheme(bits, 32)) == restored).mean() > 0.99
