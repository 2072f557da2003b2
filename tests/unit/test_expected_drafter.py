"""Drafts from an expected text: where they go on, and that the answer does not depend on the text."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedecode import SamplingOptions
from edgedecode.decoding.drafting import Drafting
from edgedecode.decoding.drafts import Draft
from edgedecode.decoding.policy import FixedLength
from edgedecode.drafters.expected import AFTER_DIFFERENCE, TRUST, ExpectedDrafter
from edgedecode.drafters.source import EXPECTED
from edgedecode.sampling.sampler import Noise
from tests.toys import CallDrafter, ascii_pair, session_options

NOISE = Noise(0)
TEXT = tuple(range(100, 160))
PROMPT = [1, 2, 3]


def drafts(*answers: Sequence[int], text: Sequence[int] = TEXT, limit: int = 4) -> list[Draft]:
    """Return what is drafted after the prompt and each of these answers, of which each begins with the previous one."""
    made = ExpectedDrafter(text, ends=frozenset([0]))
    made.begin(PROMPT)
    return [made.propose([*PROMPT, *answer], limit, NOISE) for answer in answers]


def test_it_begins_with_the_text_and_follows_it() -> None:
    first, second = drafts([], [100, 101])
    assert (first.tokens, first.match, first.source) == (TEXT[:4], TRUST, EXPECTED)
    assert (second.tokens, second.match) == (TEXT[2:6], TRUST + 2)


def test_after_a_replaced_token_it_goes_on_behind_its_place() -> None:
    (draft,) = drafts([100, 101, 7])
    assert (draft.tokens, draft.match) == (TEXT[3:7], AFTER_DIFFERENCE)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param([100, 101, 7, 8, 9, 103, 104], id="one token replaced by three"),
        pytest.param([100, 101, 7, 8, 9, 102, 103, 104], id="inserted"),
        pytest.param([100, 103, 104], id="left out"),
    ],
)
def test_after_a_difference_it_goes_on_where_the_last_tokens_are_found_again(answer: list[int]) -> None:
    for draft in (drafts(answer)[0], drafts(*(answer[:end] for end in range(len(answer) + 1)))[-1]):
        assert draft.tokens == (105, 106, 107, 108)
        assert draft.match >= 2


def test_it_goes_on_at_the_nearest_of_several_places() -> None:
    text = (1, 2, 9, 9, 9, 9, 9, 9, 5, 1, 2, 3, 8, 8, 8, 8, 8, 1, 2, 7)
    (draft,) = drafts([*text[:8], 6, 1, 2], text=text)
    assert draft.tokens == (3, 8, 8, 8)


def test_it_ends_with_the_text_and_before_an_end_token() -> None:
    assert [draft.tokens for draft in drafts(TEXT[:58], TEXT, [*TEXT, 7])] == [TEXT[58:], (), ()]
    assert drafts([], text=(5, 6, 0, 7))[0].tokens == (5, 6)
    assert drafts([], text=())[0].tokens == ()


@given(st.lists(st.integers(1, 4), max_size=30), st.lists(st.integers(1, 4), max_size=30), st.integers(0, 1000))
def test_any_answer_can_follow_any_text(text: list[int], answer: list[int], seed: int) -> None:
    rng, made, end = random.Random(seed), ExpectedDrafter(text), 0
    made.begin(PROMPT)
    while end < len(answer):
        end = min(len(answer), end + rng.randint(1, 5))
        draft = made.propose([*PROMPT, *answer[:end]], 3, NOISE)
        assert not draft.tokens or any(tuple(text[at : at + len(draft)]) == draft.tokens for at in range(len(text)))


def test_a_repetition_is_of_the_answer_alone() -> None:
    made = ExpectedDrafter(TEXT)
    made.begin([7, 100, 101])
    assert not made.repeats([7, 100, 101, 102], 2)
    assert made.repeats([7, 100, 101, 104, 105], 2)
    assert not made.repeats([7, 100, 101, 105, 104], 2)


def test_a_drafter_takes_part_while_it_is_joined() -> None:
    own, other = CallDrafter(lambda *_: Draft()), ExpectedDrafter(TEXT)
    drafting = Drafting([own], FixedLength(2), noise=NOISE, offers=True)
    with drafting.joined(other):
        drafting.begin(PROMPT)
        assert drafting.propose([*PROMPT, 100], room=9).tokens == ()  # the policy names the first
        assert {*drafting.drafters} == {own.name, EXPECTED}
    assert {*drafting.drafters} == {own.name}
    fixed = Drafting([own], FixedLength(2), noise=NOISE)
    with fixed.joined(other):
        assert {*fixed.drafters} == {own.name}


WARM = SamplingOptions(temperature=0.9, top_k=30)


@pytest.mark.parametrize("sampling", [None, WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("changes", [0, 5, 80])
def test_the_answer_is_the_same_with_any_expectation(changes: int, sampling: SamplingOptions | None) -> None:
    with ascii_pair() as pair:
        target: Any = pair.target
        pair.shared.clock = lambda: 0.015 * len(target.passes)  # nothing but the target's passes takes time

        def answer(expected: str | None, **options: object) -> tuple[str, int]:
            with pair.session(session_options(seed=3, sampling=sampling, context=400, **options)) as session:
                done = session.generate("tell", max_tokens=200, expected=expected)
                count = done.stats.drafters.get(EXPECTED)
                assert EXPECTED not in session.drafter_name
                return done.text, 0 if count is None else count.accepted

        text, none = answer(None, drafter="none")
        rng, edited = random.Random(changes), list(text)
        for _ in range(changes):
            edited[rng.randrange(len(edited))] = rng.choice(["", "x", "yz"])
        same, accepted = answer("".join(edited))
        assert same == text == answer("".join(edited), drafter="none")[0]
        assert none == 0
        assert accepted > (0 if changes > 5 else 20)
