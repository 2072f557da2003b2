"""NumpyRowDraw: sampling from a row, against a direct computation and the distribution it samples from."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedecode.arrays import FloatArray
from edgedecode.errors import CapabilityError
from edgedecode.sampling.counter_rng import exponentials, first_arrivals, mixed
from edgedecode.sampling.masses import exponent_scale, masses, unnormalised
from edgedecode.sampling.penalties import Marked
from edgedecode.sampling.row_draw import Leading, NumpyRowDraw, weighted
from edgedecode.sampling.sampler import Noise, Sampler
from edgedecode.sampling.weights import SamplingOptions
from tests.toys import reference_row

VOCABULARY = 12
NUMPY = NumpyRowDraw()
NOTHING = Marked.of()
PROCESSING = [
    SamplingOptions(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=penalty)
    for temperature, top_k, top_p, min_p, penalty in itertools.product(
        (0.7, 1.6), (0, 4), (1.0, 0.8), (0.0, 0.15), (1.0, 1.4)
    )
]


def random_row(size: int = VOCABULARY, *, seed: int, scale: float = 1.5) -> FloatArray:
    return (scale * np.random.default_rng(seed).standard_normal(size)).astype(np.float32)


# -- weights -----------------------------------------------------------------------------------------------------------


def test_weights_are_exponentials() -> None:
    logits = np.concatenate((np.linspace(-88, 0, 20_001), [-1e-30, -0.0, 0.0])).astype(np.float32)
    found = unnormalised(logits, np.float32(0), exponent_scale(1.0))
    expected = np.exp2(logits.astype(np.float64) * math.log2(math.e))
    near = logits > -80
    np.testing.assert_allclose(found[near], expected[near], rtol=2e-5)  # the exponent is a float32
    small = logits > -1
    np.testing.assert_allclose(found[small], expected[small], rtol=2.5e-7)
    assert (found[-3:] == 1).all()
    assert found.max() == 1


def test_weights_far_below_the_top_are_zero_and_never_subnormal() -> None:
    logits = np.array([0, -86.6, -86.7, -1e30, -3.4e38, -np.inf], dtype=np.float32)
    found = unnormalised(logits, np.float32(0), exponent_scale(1.0))
    assert found[1] >= np.finfo(np.float32).tiny
    assert (found[2:] == 0).all()
    assert unnormalised(np.float32([-3e38]), np.float32(3e38), exponent_scale(1e-6)) == 0


def test_masses_are_weights_to_the_nearest_unit() -> None:
    weights = np.float32([1, 0.5, 2.0**-40, 1.5 * 2.0**-40, 2.5 * 2.0**-40, 2.0**-41, 2.0**-60, 0])
    assert masses(weights).tolist() == [2**40, 2**39, 1, 2, 2, 0, 0, 0]


@pytest.mark.parametrize("size", [70, 5000])
@pytest.mark.parametrize("top_p", [0.999, 0.9, 0.5, 0.01, 1e-9])
def test_nucleus_is_the_fewest_most_likely_ids_with_ties(size: int, top_p: float) -> None:
    for seed, scale in itertools.product(range(5), (0.05, 1.0, 8.0)):
        row = np.round(random_row(size, seed=seed, scale=scale), 1 if seed % 2 else 6)
        indices, weights = weighted(row, SamplingOptions(temperature=1.0, top_p=top_p), coin=1.0)
        every = masses(unnormalised(row, row.max(), exponent_scale(1.0)))
        wanted = top_p * float(every.sum())
        least = weights.min()
        inside = unnormalised(row, row.max(), exponent_scale(1.0)) >= least
        indices = np.arange(size) if indices is None else indices
        assert indices.tolist() == np.flatnonzero(inside).tolist()
        assert every[inside].sum() >= math.floor(wanted)
        assert every[indices[weights > least]].sum() < wanted or len(indices) == 1


# -- first arrivals ----------------------------------------------------------------------------------------------------


@given(rates=st.lists(st.floats(1e-30, 1), min_size=1, max_size=200), key=st.integers(0, 2**64 - 1), data=st.data())
def test_first_arrivals_are_those_of_all_exponentials(rates: list[float], key: int, data: st.DataObject) -> None:
    ids = np.cumsum(data.draw(st.lists(st.integers(1, 1000), min_size=len(rates), max_size=len(rates))))
    count = data.draw(st.integers(1, len(rates) + 2))
    times = exponentials(key, ids) / np.array(rates)
    found = first_arrivals(key, ids, np.array(rates), count=count)
    assert found == np.argsort(times, kind="stable")[:count].tolist()


def test_first_arrivals_that_tie_are_in_order_of_index() -> None:
    assert first_arrivals(3, np.array([7, 7, 7]), np.ones(3), count=2) == [0, 1]


def test_exponentials_are_the_negative_logarithms_of_the_hashes() -> None:
    key, step = 5, 0x9E3779B97F4A7C15
    found = exponentials(key, np.arange(20_000))
    uniforms = [((mixed((key + id * step) % 2**64) >> 12) + 0.5) * 2.0**-52 for id in range(20_000)]
    np.testing.assert_array_max_ulp(found, np.array([-math.log(uniform) for uniform in uniforms]), maxulp=1)


# -- draws -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", PROCESSING, ids=str)
def test_weights_are_those_of_the_processed_row(options: SamplingOptions) -> None:
    seen = [2, 5, 5]
    for seed in range(20):
        row = random_row(seed=seed)
        indices, weights = weighted(options.penalised(row, Marked.of(dict.fromkeys(seen, 0))), options, coin=1.0)
        found = np.zeros(VOCABULARY)
        found[slice(None) if indices is None else indices] = weights / weights.sum(dtype=np.float64)
        expected = reference_row(row, vocabulary=VOCABULARY, options=options, seen=seen)
        np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("options", [PROCESSING[0], PROCESSING[13], PROCESSING[-1]], ids=str)
def test_draws_follow_the_processed_row(options: SamplingOptions) -> None:
    row, seen = random_row(seed=1), [2, 5, 5]
    expected = np.array(reference_row(row, vocabulary=VOCABULARY, options=options, seen=seen))
    draws = 1000
    sampler = Sampler(options, vocabulary_size=VOCABULARY)
    sampler.begin(seen)
    noise = Noise(11)
    counts = np.bincount([sampler.draw(row, key=noise.key_at(at)) for at in range(draws)], minlength=VOCABULARY)
    assert counts[expected == 0].sum() == 0
    inside = expected > 0
    statistic = ((counts - draws * expected)[inside] ** 2 / (draws * expected[inside])).sum()
    freedom = int(inside.sum()) - 1
    spread = 2 / (9 * max(freedom, 1))
    assert statistic < freedom * (1 - spread + 3.719 * math.sqrt(spread)) ** 3 + 1e-9  # once in ten thousand


def test_leading_is_the_most_likely_id_with_its_probability() -> None:
    for seed in range(20):
        row = random_row(50, seed=seed)
        p = np.exp(row.astype(np.float64) - row.max())
        p /= p.sum()
        found = NUMPY.leading(row)
        assert found.index == NUMPY.argmax(row) == row.argmax()
        assert found.probability == pytest.approx(p.max(), rel=1e-6)
        assert found.margin == pytest.approx(float(np.diff(np.sort(row)[-2:])[0]), abs=1e-6)
    assert NUMPY.leading(np.float32([4])) == Leading(0, 0.0, math.inf)
    assert NUMPY.leading(np.float32([-200, 4, 4])) == Leading(1, 1.0, 0.0)


BROKEN: list[Sequence[float]] = [[math.nan], [1, math.nan, 3], [math.nan, math.inf]]
INFINITE: list[Sequence[float]] = [[math.inf, 1], [-math.inf, -math.inf]]


@pytest.mark.parametrize("values", [*BROKEN, *INFINITE], ids=str)
def test_draw_refuses_rows_that_are_not_numbers(values: Sequence[float]) -> None:
    row = np.array(values, dtype=np.float32)
    for options in (SamplingOptions(temperature=1.0), SamplingOptions(temperature=1.0, top_k=1, top_p=0.5)):
        with pytest.raises(CapabilityError, match="not numbers"):
            NUMPY.draw(row, options, key=0, seen=NOTHING)
    with pytest.raises(CapabilityError, match="not numbers"):
        NUMPY.leading(row)
    if values in BROKEN:
        with pytest.raises(CapabilityError, match="not numbers"):
            NUMPY.argmax(row)
    else:
        assert NUMPY.argmax(row) == 0


# -- choice of the implementation --------------------------------------------------------------------------------------
