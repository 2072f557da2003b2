"""Properties of the importance-weighted scale search."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from edgedecode.arrays import FloatArray
from edgedecode.export.graph.scale_search import largest_scales, levels_of, search_scales

SIZES = [32, 128]
VALUES = st.floats(-8, 8, width=32, allow_subnormal=False)
IMPORTANCE = st.floats(2.0**-10, 2.0**10, width=32)


def scales_of(weights: FloatArray, size: int, importance: FloatArray) -> FloatArray:
    """Return the searched scales of blocks of a size."""
    return search_scales(weights.reshape(len(weights), -1, size), importance=importance.reshape(-1, size))


def error(weights: FloatArray, size: int, importance: FloatArray, *, searched: bool) -> FloatArray:
    """Return each block's squared error, weighted by `importance`."""
    blocks = weights.reshape(len(weights), -1, size)
    scales = scales_of(weights, size, importance) if searched else largest_scales(blocks)
    restored = levels_of(blocks, scales).astype(np.float64) * scales[..., None]
    return ((restored - blocks) ** 2 * importance.reshape(-1, size)).sum(axis=-1)


@pytest.mark.parametrize("size", SIZES)
@given(weights=arrays(np.float32, (3, 256), elements=VALUES), importance=arrays(np.float32, 256, elements=IMPORTANCE))
def test_scale_search_never_increases_the_error(size: int, weights: FloatArray, importance: FloatArray) -> None:
    plain, searched = (error(weights, size, importance, searched=way) for way in (False, True))
    assert (searched <= plain * (1 + 1e-5) + 1e-5 * float(importance.mean())).all()


@pytest.mark.parametrize("size", SIZES)
def test_scale_search_reduces_the_error_of_ordinary_weights(size: int) -> None:
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((64, 512)).astype(np.float32)
    importance = np.exp(2 * rng.standard_normal(512)).astype(np.float32)
    plain, searched = (error(weights, size, importance, searched=way).sum() for way in (False, True))
    assert searched < 0.85 * plain


@pytest.mark.parametrize("size", SIZES)
@given(weights=arrays(np.float32, (2, 256), elements=st.floats(-1e6, 1e6, width=32)))
def test_scale_search_finds_float16_scales(size: int, weights: FloatArray) -> None:
    found = scales_of(weights, size, np.linspace(0.01, 1, 256, dtype=np.float32))
    assert np.array_equal(found, found.astype(np.float16).astype(np.float32))


def test_scale_search_uses_only_the_ratio_of_importances() -> None:
    weights = np.random.default_rng(1).standard_normal((8, 256)).astype(np.float32)
    ones = np.ones(256, np.float32)
    found = [scales_of(weights, 32, np.float32(scale) * ones) for scale in (1, 1024)]
    assert np.array_equal(found[0], found[1])
