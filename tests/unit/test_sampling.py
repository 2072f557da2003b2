"""The sampler: from a row of logits to a distribution, against transformers and a direct computation."""

import itertools
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedecode.arrays import FloatArray
from edgedecode.errors import InputError
from edgedecode.sampling.counter_rng import exponentials, mixed
from edgedecode.sampling.probs import Probs
from edgedecode.sampling.sampler import Noise, Sampler, answer_seed
from edgedecode.sampling.weights import SamplingOptions
from tests.toys import reference_row

VOCABULARY = 60
ROWS = 64
COMBINATIONS = [
    SamplingOptions(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=penalty)
    for temperature, top_k, top_p, min_p, penalty in itertools.product(
        (0.7, 1.6), (0, 1, 12), (1.0, 0.9, 0.3), (0.0, 0.1), (1.0, 1.3, 0.8)
    )
]


def random_rows(count: int, *, seed: int, scale: float = 2.5) -> FloatArray:
    """Return rows whose padding would win if it were not ignored."""
    rows = (scale * np.random.default_rng(seed).standard_normal((count, ROWS))).astype(np.float32)
    rows[:, VOCABULARY:] = 50.0
    return rows


def dense(probs: Probs, *, size: int = VOCABULARY) -> npt.NDArray[np.float64]:
    p = np.zeros(size)
    p[probs.ids] = probs.p
    return p


def sampler(options: SamplingOptions, *, seen: Sequence[int] = ()) -> Sampler:
    made = Sampler(options, vocabulary_size=VOCABULARY)
    made.begin(seen)
    return made


TYPICAL = [
    SamplingOptions(temperature=t, typical_p=mass, top_k=k, min_p=p)
    for t, mass, k, p in ((0.7, 0.9, 0, 0.0), (1.6, 0.2, 0, 0.0), (1.0, 0.6, 12, 0.05))
]


@pytest.fixture(scope="module")
def transformers() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("torch")
        return pytest.importorskip("transformers")


@pytest.mark.slow
def test_probs_equal_the_logits_processors_of_transformers_in_order(transformers: Any) -> None:
    import torch

    generator = np.random.default_rng(5)
    for index, options in enumerate([*COMBINATIONS, *TYPICAL]):
        chain = transformers.LogitsProcessorList(
            [
                transformers.RepetitionPenaltyLogitsProcessor(options.repetition_penalty),
                transformers.TemperatureLogitsWarper(options.temperature),
            ]
        )
        if options.top_k:
            chain.append(transformers.TopKLogitsWarper(options.top_k))
        if options.top_p < 1:
            chain.append(transformers.TopPLogitsWarper(options.top_p))
        if options.min_p > 0:
            chain.append(transformers.MinPLogitsWarper(options.min_p))
        if options.typical_p < 1:
            chain.append(transformers.TypicalLogitsWarper(options.typical_p))
        for row in random_rows(3, seed=index):
            seen = generator.integers(0, VOCABULARY, size=20).tolist()
            scores = chain(torch.tensor([seen]), torch.tensor(row[None, :VOCABULARY].copy()))
            expected = torch.softmax(scores, dim=-1)[0].double().numpy()
            found = dense(sampler(options, seen=seen).probs(row))
            assert ((found > 0) == (expected > 0)).all(), options
            np.testing.assert_allclose(found, expected, atol=2e-6, err_msg=str(options))


SIGMAS = [SamplingOptions(temperature=t, top_n_sigma=n, top_k=k) for t, n, k in ((0.7, 1.5, 0), (9.0, 0.4, 30))]


@pytest.mark.parametrize("options", [*COMBINATIONS[::7], *SIGMAS], ids=str)
def test_probs_equal_the_direct_computation(options: SamplingOptions) -> None:
    for row in random_rows(4, seed=11):
        seen = [3, 9, 9, 41]
        expected = reference_row(row, vocabulary=VOCABULARY, options=options, seen=seen)
        np.testing.assert_allclose(dense(sampler(options, seen=seen).probs(row)), expected, atol=2e-6)


def test_greedy_takes_the_smallest_id_of_a_tie() -> None:
    assert sampler(SamplingOptions()).probs(np.zeros(ROWS, dtype=np.float32)).argmax() == 0


@given(
    temperature=st.sampled_from([0.0, 1e-6, 0.4, 1.0, 100.0]),
    top_k=st.sampled_from([0, 1, 7, 200]),
    top_p=st.sampled_from([1.0, 0.5, 1e-9]),
    min_p=st.sampled_from([0.0, 0.5, 1.0]),
    seed=st.integers(0, 20),
)
def test_probs_never_include_padding(temperature: float, top_k: int, top_p: float, min_p: float, seed: int) -> None:
    options = SamplingOptions(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    row = random_rows(1, seed=seed)[0]
    probs = sampler(options).probs(row)
    assert probs.ids.max() < VOCABULARY
    assert (np.diff(probs.ids) > 0).all()
    assert (probs.p > 0).all()
    assert probs.p.sum() == pytest.approx(1)
    assert int(row[:VOCABULARY].argmax()) in probs.ids


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 1e-9),
        ("temperature", 101.0),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", float("nan")),
        ("min_p", -0.1),
        ("min_p", 1.5),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", float("inf")),
    ],
)
def test_sampling_options_refuse_values_out_of_range_by_name(name: str, value: float) -> None:
    with pytest.raises(InputError, match=rf"^{name} .* is out of range: "):
        SamplingOptions(**{name: value})


@given(seed=st.integers(0, 2**64 - 1), positions=st.lists(st.integers(0, 5000), min_size=1, max_size=20))
def test_noise_is_a_function_of_seed_stream_and_position(seed: int, positions: list[int]) -> None:
    def at(position: int, *, stream: int = 0) -> float:
        noise = Noise(seed, stream=stream)
        noise.position = position
        return noise.random()

    moving = Noise(seed)
    for position in positions:
        moving.position = position
        uniform = moving.random()
        assert moving.position == position + 1
        assert 0 <= uniform < 1
        assert uniform == at(position)
        assert uniform != at(position, stream=1)
        assert uniform != at(position + 1)


def test_noise_differs_between_seeds_and_is_uniform() -> None:
    draws = []
    for seed in range(40):
        noise = Noise(seed)
        draws.append([noise.random() for _ in range(600)])  # more than two blocks
    values = np.array(draws)
    assert len(np.unique(values)) == values.size
    counts, _ = np.histogram(values, bins=20, range=(0, 1))
    expected = values.size / 20
    assert ((counts - expected) ** 2 / expected).sum() < 43.8  # chi-square, 19 degrees of freedom, 0.1%
    assert abs(np.corrcoef(values[:-1].ravel(), values[1:].ravel())[0, 1]) < 0.03
    assert abs(np.corrcoef(values[:, :-1].ravel(), values[:, 1:].ravel())[0, 1]) < 0.03


# -- noise per id ------------------------------------------------------------------------------------------------------


def uniforms(*, seed: int, position: int, count: int, first: int = 0) -> np.ndarray:
    key = mixed(mixed(mixed(seed)) + position)  # as `Noise` computes it, stream 0
    return np.exp(-exponentials(key, np.arange(first, first + count)))


def chi_square(counts: np.ndarray) -> float:
    expected = counts.sum() / counts.size
    return float(((counts - expected) ** 2 / expected).sum())


def test_mixed_is_splitmix64() -> None:
    """The generator's published outputs for the seed 1234567."""
    outputs = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    step = 0x9E3779B97F4A7C15
    assert [mixed((1234567 + index * step) % 2**64) for index in range(5)] == outputs
    found = np.exp(-exponentials(1234567, np.arange(5)))
    np.testing.assert_allclose(found, [output / 2**64 for output in outputs], rtol=1e-12)


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
def test_noise_per_id_is_uniform_over_ids_positions_and_seeds(seed: int) -> None:
    over_ids = uniforms(seed=seed, position=17, count=200_000)
    over_positions = np.concatenate([uniforms(seed=seed, position=place, count=20) for place in range(2500)])
    over_seeds = np.concatenate([uniforms(seed=(seed + k) % 2**64, position=3, count=20) for k in range(2500)])
    for values in (over_ids, over_positions, over_seeds):
        assert 0 < values.min() <= values.max() < 1
        assert chi_square(np.histogram(values, bins=100, range=(0, 1))[0]) < 161  # 99 degrees of freedom, 0.01%


def test_noise_per_id_is_independent_of_its_neighbours() -> None:
    """Pairs fall evenly into a grid: pairs of near ids, positions and seeds, and of one id at two positions."""
    grid = np.array([uniforms(seed=5, position=place, count=300) for place in range(300)])
    seeds = np.array([uniforms(seed=seed, position=5, count=300) for seed in range(300)])
    pairs = {
        "ids": (grid[:, :-1], grid[:, 1:]),
        "positions": (grid[:-1], grid[1:]),
        "diagonal": (grid[:-1, 1:], grid[1:, :-1]),
        "seeds": (seeds[:-1], seeds[1:]),
    }
    for name, (left, right) in pairs.items():
        counts = np.histogram2d(left.ravel(), right.ravel(), bins=12, range=((0, 1), (0, 1)))[0]
        assert chi_square(counts) < 215, name  # 143 degrees of freedom, 0.01%


@given(seed=st.integers(0, 2**64 - 1), position=st.integers(0, 2**40), data=st.data())
def test_draw_is_a_function_of_seed_stream_position_and_distribution(
    seed: int, position: int, data: st.DataObject
) -> None:
    values = data.draw(st.lists(st.floats(0.01, 1), min_size=2, max_size=30))
    probs = Probs.dense(np.array(values))
    noise = Noise(seed)
    noise.position = position
    token = noise.draw_at(probs, position)
    assert noise.position == position
    assert noise.take() == noise.key_at(position)
    assert noise.position == position + 1
    # An id's noise does not depend on the rest of the support: without the other ids it still wins.
    if len(values) > 2:
        loser = next(id for id in range(len(values)) if id != token)
        left = [0.0 if id == loser else value for id, value in enumerate(values)]
        assert noise.draw_at(Probs.dense(np.array(left)), position) == token


def test_draws_follow_the_distribution_and_streams_differ() -> None:
    probs = Probs(np.array([3, 70, 71, 9000]), np.array([0.05, 0.15, 0.3, 0.5]))
    noise, other = Noise(9), Noise(9, stream=1)
    draws = [noise.draw_at(probs, position) for position in range(2500)]
    counts = np.array([draws.count(token) for token in probs.ids.tolist()])
    assert (((counts - 2500 * probs.p) ** 2) / (2500 * probs.p)).sum() < 21.1  # 3 degrees of freedom, 0.01%
    same = sum(other.draw_at(probs, position) == token for position, token in enumerate(draws)) / 2500
    assert same == pytest.approx(float((probs.p**2).sum()), abs=0.04)


def test_draws_with_the_same_noise_agree_for_similar_distributions() -> None:
    """They agree at least (1 - d) / (1 + d) of the time, far more often than arg-max agrees with the other's draws."""
    rng = np.random.default_rng(1)
    noise, agreed, by_arg_max, bound = Noise(2), 0, 0, 0.0
    for position in range(1500):
        logits = rng.standard_normal(20) * 1.5
        p, q = (np.exp(logits + shift) for shift in (0.0, 0.2 * rng.standard_normal(20)))
        target, draft = Probs.dense(p), Probs.dense(q)
        drawn = noise.draw_at(target, position)
        agreed += drawn == noise.draw_at(draft, position)
        by_arg_max += drawn == draft.argmax()
        distance = 0.5 * np.abs(target.p - draft.p).sum()
        bound += (1 - distance) / (1 + distance)
    assert agreed > bound - 4 * np.sqrt(1500) / 2
    assert agreed > 1.5 * by_arg_max


def test_ranked_at_lists_what_would_be_drawn_without_the_tokens_before() -> None:
    noise = Noise(9)
    rng = np.random.default_rng(4)
    for position in range(50):
        left = rng.dirichlet(np.ones(12))
        ranked = noise.ranked_at(Probs.dense(left), position, count=4)
        for token in ranked:
            assert token == noise.draw_at(Probs.dense(left), position)
            left = left.copy()
            left[token] = 0
        assert len(ranked) == 4
    assert sorted(noise.ranked_at(Probs.dense(np.array([0.2, 0.0, 0.8])), 0, count=4)) == [0, 2]
    assert noise.ranked_at(Probs.point(5), 0, count=4) == [5]


@pytest.mark.parametrize("seed", [None, 0, 2**64 - 1])
def test_answer_seed_survives_json_readers_with_float64(seed: int | None) -> None:
    for number in range(1, 100):
        made = answer_seed(seed, number)
        assert int(float(made)) == made < 2**53
