"""Penalties and biases by their definitions, the counts of a sequence and a path, and what is refused."""

from collections import Counter as Counts
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedecode import InputError, SamplingOptions, SessionOptions
from edgedecode.sampling.penalties import Counter, Marked
from edgedecode.sampling.sampler import Sampler
from tests.toys import ascii_pair, quick_draw, reference_row, session_options

SIZE = 40
TOKENS = st.lists(st.integers(0, SIZE + 3), max_size=30)  # some are padding
OPTIONS = [
    SamplingOptions(temperature=0.9, frequency_penalty=0.7),
    SamplingOptions(temperature=0.9, presence_penalty=-1.2),
    SamplingOptions(temperature=0.9, frequency_penalty=-0.3, presence_penalty=0.5, repetition_penalty=1.4),
    SamplingOptions(temperature=0.9, logit_bias={0: 2.5, 7: -100, 39: -1}),
    SamplingOptions(temperature=0.9, logit_bias={3: 4, 5: -3}, repetition_penalty=1.4, presence_penalty=0.5, top_k=9),
]


def sampler(options: SamplingOptions) -> Sampler:
    return Sampler(options, vocabulary_size=SIZE, row_draw=quick_draw())


def row(seed: int) -> np.ndarray:
    return (2 * np.random.default_rng(seed).standard_normal(SIZE + 4)).astype(np.float32)


def dense(made: Sampler, seed: int, path: list[int]) -> np.ndarray:
    probs = made.probs(row(seed), path)
    found = np.zeros(SIZE)
    found[probs.ids] = probs.p
    return found


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_probabilities_are_those_of_the_direct_computation(options: SamplingOptions) -> None:
    for seed in range(20):
        prompt, answer, path = (
            [int(each) for each in part] for part in np.random.default_rng(seed).integers(0, SIZE, (3, 9))
        )
        made = sampler(options)
        made.begin(prompt)
        made.extend(answer)
        wanted = reference_row(row(seed), vocabulary=SIZE, options=options, seen=prompt, generated=[*answer, *path])
        np.testing.assert_allclose(dense(made, seed, path), wanted, atol=2e-6)


@given(prompt=TOKENS, answer=TOKENS, path=TOKENS)
def test_a_path_counts_like_the_answer_and_a_continued_answer_like_a_new_one(
    prompt: list[int], answer: list[int], path: list[int]
) -> None:
    drafted, emitted = Counter(SIZE), Counter(SIZE)
    for counter in (drafted, emitted):
        counter.add(prompt, generated=False)
        counter.add(answer, generated=True)
    before = dict(zip(*(each.tolist() for each in (drafted.after().ids, drafted.after().numbers)), strict=True))
    found = drafted.after(path)
    emitted.add(path, generated=True)
    wanted = {each: 0 for each in prompt if each < SIZE} | Counts(each for each in [*answer, *path] if each < SIZE)
    for marked in (found, emitted.after()):
        assert len(marked.ids) == len(set(marked.ids.tolist()))
        assert dict(zip(marked.ids.tolist(), marked.numbers.tolist(), strict=True)) == wanted
    assert dict(zip(drafted.after().ids.tolist(), drafted.after().numbers.tolist(), strict=True)) == before
    one, other = sampler(OPTIONS[2]), sampler(OPTIONS[2])
    one.begin(prompt)
    one.extend(answer)
    other.begin([*prompt, *answer], generated=len(answer))
    np.testing.assert_array_equal(dense(one, 1, path), dense(other, 1, path))


@pytest.mark.parametrize("temperature", [0.0, 0.8, 100.0])
def test_a_bias_of_minus_100_bans_and_one_of_100_decides(temperature: float) -> None:
    best = int(row(3)[:SIZE].argmax())
    banned = sampler(SamplingOptions(temperature=temperature, logit_bias={best: -100}))
    assert best not in {banned.draw(row(3), key=key) for key in range(300)}
    assert len({banned.draw(row(3), key=key) for key in range(300)}) > 1 or temperature == 0
    if temperature < 1:
        chosen = sampler(SamplingOptions(temperature=temperature, logit_bias={11: 100, 12: 100}))
        assert {chosen.draw(row(3), key=key) for key in range(300)} <= {11, 12}


def test_marks_are_found_in_a_row_of_some_ids() -> None:
    marks = Marked.of({3: 1.0, 5: 2.0, 90: 3.0}).among(np.array([0, 3, 4, 90]))
    assert (marks.ids.tolist(), marks.numbers.tolist()) == ([1, 3], [1.0, 3.0])
    assert len(Marked.of({9: 1.0}).among(np.array([1, 2])).ids) == 0


@pytest.mark.parametrize(
    ("bias", "message"),
    [
        ({3: 100.5}, "logit_bias 100.5 of id 3 is out of range: -100"),
        ({3: float("nan")}, "logit_bias nan of id 3 is out of range"),
        ({-1: 2}, "logit_bias has the id -1: ids are whole numbers of 0 or more"),
        ({"3": 2}, "logit_bias has the id '3': ids are whole"),
        ({1.5: 2}, "logit_bias has the id 1.5: ids are whole"),
        ({3: "2"}, "logit_bias '2' of id 3 is out of range"),
    ],
)
def test_a_bias_out_of_range_is_refused(bias: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        SamplingOptions(logit_bias=bias)


def test_a_bias_outside_the_vocabulary_is_refused_before_anything_is_opened() -> None:
    with ascii_pair() as pair:
        size = pair.tokenizer.size
        with pytest.raises(
            InputError, match=f"logit_bias has the id {size}, and the vocabulary's ids are 0 to {size - 1}"
        ):
            pair.session(SessionOptions(sampling=SamplingOptions(logit_bias={size: 1, 3: 1})))
        used = pair.budget.used_nbytes
        with pair.session(SessionOptions(sampling=SamplingOptions(logit_bias={size - 1: 1}))) as session:
            assert session.generate("Hello", max_tokens=3).tokens
        assert pair.budget.used_nbytes >= used


@pytest.mark.parametrize("drafter", ["none", "model", "suffix"])
def test_a_prompt_is_not_counted_and_an_answer_that_drops_turns_is(drafter: str) -> None:
    """A ban by presence: no token comes twice, also after the oldest turns were dropped in the middle of the answer."""
    options = session_options(
        sampling=SamplingOptions(presence_penalty=100), context=64, drafter=drafter, ignore_eos=True
    )
    with ascii_pair(seed=3, ending=-50.0) as pair, pair.session(options) as session:
        session.generate("tell me a story", max_tokens=20)
        done = session.generate("and now?", max_tokens=30)
        assert done.stats.dropped_turns > 0
        assert len(done.tokens) == 30
        assert len(set(done.tokens)) == 30
