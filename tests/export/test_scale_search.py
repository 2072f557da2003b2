"""Properties of the importance-weighted scale search."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from edgedecode.arrays import FloatArray
from edgedecode.export.graph.quantize import Scheme, dequantize, quantize

SCHEMES = [Scheme(4, 32), Scheme(4, 128)]
VALUES = st.floats(-8, 8, width=32, allow_subnormal=False)
IMPORTANCE = st.floats(0, 2.0**10, width=32, allow_subnormal=False)


def error(weights: FloatArray, scheme: Scheme, importance: FloatArray, *, searched: bool) -> FloatArray:
    """Return each block's squared error, weighted by `importance`."""
    restored = dequantize(quantize(weights, scheme, importance=importance if searched else None), scheme)
    squares = (restored.astype(np.float64) - weights) ** 2 * importance
    return squares.reshape(len(weights), -1, scheme.block_size).sum(axis=-1)


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
@given(weights=arrays(np.float32, (3, 256), elements=VALUES), importance=arrays(np.float32, 256, elements=IMPORTANCE))
def test_scale_search_never_increases_the_error(scheme: Scheme, weights: FloatArray, importance: FloatArray) -> None:
    plain, searched = (error(weights, scheme, importance, searched=way) for way in (False, True))
    # a column without importance still has a small weight, so that it is not lost entirely
    spare = 1e-5 * float(importance.mean()) * 256 * 64
    assert (searched <= plain * (1 + 1e-5) + spare).all()


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_scale_search_reduces_the_error_of_ordinary_weights(scheme: Scheme) -> None:
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((64, 512)).astype(np.float32)
    importance = np.exp(2 * rng.standard_normal(512)).astype(np.float32)
    plain, searched = (error(weights, scheme, importance, searched=way).sum() for way in (False, True))
    assert searched < 0.85 * plain


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
@given(weights=arrays(np.float32, (2, 256), elements=st.floats(-1e6, 1e6, width=32)))
def test_scale_search_finds_float16_scales(scheme: Scheme, weights: FloatArray) -> None:
    importance = np.linspace(0, 1, 256, dtype=np.float32)
    blocks = quantize(weights, scheme, importance=importance)
    assert np.array_equal(blocks.scales, blocks.scales.astype(np.float16).astype(np.float32))
    assert blocks.packed.shape == quantize(weights, scheme).packed.shape


def test_scale_search_uses_only_the_ratio_of_importances() -> None:
    weights = np.random.default_rng(1).standard_normal((8, 256)).astype(np.float32)
    ones = np.ones(256, np.float32)
    found = [quantize(weights, Scheme(4, 32), importance=scale * ones) for scale in (np.float32(1), np.float32(1024))]
    assert np.array_equal(found[0].packed, found[1].packed)
    unweighted = quantize(weights, Scheme(4, 32), importance=0 * ones)
    assert np.array_equal(unweighted.packed, found[0].packed)


def test_scale_search_treats_rows_independently() -> None:
    """A weight may therefore be quantized in chunks, and stacked with others of the same input."""
    rng = np.random.default_rng(2)
    weights, importance = rng.standard_normal((8, 128)).astype(np.float32), rng.random(128).astype(np.float32)
    whole = quantize(weights, Scheme(4, 32), importance=importance)
    parts = [quantize(part, Scheme(4, 32), importance=importance) for part in (weights[:3], weights[3:])]
    assert np.array_equal(whole.packed, np.concatenate([part.packed for part in parts]))
    assert np.array_equal(whole.scales, np.concatenate([part.scales for part in parts]))


def test_scale_search_skips_8_bits() -> None:
    weights = np.random.default_rng(3).standard_normal((4, 64)).astype(np.float32)
    plain = quantize(weights, Scheme(8, 32))
    searched = quantize(weights, Scheme(8, 32), importance=np.arange(64, dtype=np.float32))
    assert np.array_equal(plain.packed, searched.packed)


def test_scale_search_blocks_fit_q4_0() -> None:
    gguf = pytest.importorskip("gguf")
    weights = np.random.default_rng(4).standard_normal((16, 128)).astype(np.float32)
    blocks = quantize(weights, Scheme(4, 32), importance=np.linspace(0, 3, 128, dtype=np.float32))
    values = np.stack((blocks.packed & 15, blocks.packed >> 4), axis=-1).reshape(16, 4, 32)
    nibbles = values[..., :16] | (values[..., 16:] << 4)  # Q4_0: first half low, second half high
    scales = blocks.scales.astype(np.float16)[..., None].view(np.uint8)
    raw = np.concatenate((scales, nibbles), axis=-1).reshape(16, -1)
    restored = gguf.dequantize(raw, gguf.GGMLQuantizationType.Q4_0)
    assert np.array_equal(restored, dequantize(blocks, Scheme(4, 32)))
