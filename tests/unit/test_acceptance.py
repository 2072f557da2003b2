"""Chances per position start from a prior, follow what happens, and forget."""

from __future__ import annotations

import pytest

from edgedecode.decoding.policy import Score
from edgedecode.schedule.acceptance import PRIORS, Acceptance, History, match_bucket


def test_acceptance_curves_fall_and_longer_matches_are_trusted_more() -> None:
    acceptance = Acceptance(History())
    first = [next(acceptance.curve("suffix", 8, match)) for match in (1, 2, 3, 6, 12, 40)]
    assert first == sorted(first)
    curve = [*acceptance.curve("suffix", 20, 3)]
    assert curve[-2] > 0.02 > curve[-1], "it ends where hardly any draft gets to"
    assert len([*acceptance.curve("suffix", 20, 40)]) == 20
    assert curve == sorted(curve, reverse=True)


def test_a_wholly_accepted_draft_is_no_failure() -> None:
    acceptance = Acceptance(History())
    for _ in range(30):
        acceptance.add(Score("a", 2, 2))
    assert [*acceptance.curve("a", 8)][-1] > 0.8


def test_positions_learn_apart() -> None:
    acceptance = Acceptance(History())
    for _ in range(30):
        acceptance.add(Score("a", 4, 2))
    curve = [*acceptance.curve("a", 4)]
    assert curve[1] > 0.8
    assert curve[2] < 0.25


def test_a_change_is_noticed_soon_and_drafters_do_not_mix() -> None:
    acceptance = Acceptance(History())
    for _ in range(50):
        acceptance.add(Score("a", 1, 1))
    before = [*acceptance.curve("b", 1)]
    for _ in range(10):
        acceptance.add(Score("a", 1, 0))
    assert next(acceptance.curve("a", 1)) < 0.5
    assert [*acceptance.curve("b", 1)] == before


def test_a_new_generation_believes_old_ones_less() -> None:
    acceptance = Acceptance(History())
    for _ in range(50):
        acceptance.add(Score("a", 1, 0))
    acceptance.begin()
    for _ in range(8):
        acceptance.add(Score("a", 1, 1))
    assert next(acceptance.curve("a", 1)) > 0.5


def test_buckets_cover_every_length() -> None:
    assert [match_bucket(match) for match in PRIORS] == list(range(len(PRIORS)))
    assert [match_bucket(match) for match in (3, 5, 17, 10**6)] == [3, 4, 6, 6]


def test_hope_is_the_larger_the_less_was_seen_and_grows_again_while_nothing_is() -> None:
    acceptance = Acceptance(History())

    def doubt() -> float:
        return next(acceptance.curve("a", 1, hope=1.0)) - next(acceptance.curve("a", 1))

    doubts = [doubt()]
    for count in (2, 8):
        for index in range(count):
            acceptance.add(Score("a", 2, index % 2))
        doubts.append(doubt())
    assert doubts == sorted(doubts, reverse=True)
    acceptance.passed(400)
    assert doubt() > doubts[-1]


def test_a_failure_is_forgotten_with_the_tokens_that_follow() -> None:
    acceptance = Acceptance(History())
    for accepted in [2] * 40 + [0] * 6:
        acceptance.add(Score("a", 2, accepted))
    failed = next(acceptance.curve("a", 1))
    acceptance.passed(200)
    assert next(acceptance.curve("a", 1)) > failed + 0.1


def test_fading_and_ageing_multiply_what_was_counted() -> None:
    history = History()
    for _ in range(3):
        history.of(("a", 0)).add(Score("a", 9, 9), 0.5)
    counts = history.of(("a", 0))
    counts.settle()
    assert counts.tried[0] == counts.accepted[0] == pytest.approx(1.75)
    assert counts.tried[-1] == pytest.approx(2 * 1.75), "the last depth holds all deeper ones"
    for _ in range(200):
        counts.fade(0.5)
    assert max(counts.tried) * counts.scale < 1e-50


def test_acceptance_under_an_adapter_is_learned_apart_and_starts_from_what_is_known() -> None:
    history = History()
    acceptance = Acceptance(history)
    for _ in range(50):
        acceptance.add(Score("a", 1, 1))
    acceptance.begin("formal")
    assert next(acceptance.curve("a", 1)) > PRIORS[0], "the drafts of other answers are evidence"
    for _ in range(20):
        acceptance.add(Score("a", 1, 0))
    assert next(acceptance.curve("a", 1)) < 0.25
    acceptance.begin()
    assert next(acceptance.curve("a", 1)) > 0.8
    acceptance.begin("formal")
    assert next(acceptance.curve("a", 1)) < 0.35
    assert set(history.adapters) == {"formal"}
