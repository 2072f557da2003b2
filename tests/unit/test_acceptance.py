"""Acceptance per draft position starts from a prior, follows the observed rounds, and forgets."""

import pytest

from edgedecode.decoding.policy import Score
from edgedecode.schedule.acceptance import PRIORS, Acceptance, History


def test_acceptance_falls_with_depth_and_rises_with_match_length() -> None:
    acceptance = Acceptance(History())
    first = [next(acceptance.curve("suffix", 8, match)) for match in (1, 2, 3, 6, 12, 40)]
    assert first == sorted(first)
    curve = [*acceptance.curve("suffix", 20, 3)]
    assert curve[-2] > 0.02 > curve[-1], "the curve ends at depths that hardly any draft reaches"
    assert len([*acceptance.curve("suffix", 20, 40)]) == 20
    assert curve == sorted(curve, reverse=True)


def test_acceptance_learns_each_draft_position_separately() -> None:
    acceptance = Acceptance(History())
    for _ in range(30):
        acceptance.add(Score("a", 4, 2))
    curve = [*acceptance.curve("a", 4)]
    assert curve[1] > 0.8
    assert curve[2] < 0.25


def test_acceptance_follows_a_change_quickly_and_keeps_drafters_separate() -> None:
    acceptance = Acceptance(History())
    for _ in range(50):
        acceptance.add(Score("a", 1, 1))
    before = [*acceptance.curve("b", 1)]
    for _ in range(10):
        acceptance.add(Score("a", 1, 0))
    assert next(acceptance.curve("a", 1)) < 0.5
    assert [*acceptance.curve("b", 1)] == before


def test_acceptance_weights_earlier_generations_less() -> None:
    acceptance = Acceptance(History())
    for _ in range(50):
        acceptance.add(Score("a", 1, 0))
    acceptance.begin()
    for _ in range(8):
        acceptance.add(Score("a", 1, 1))
    assert next(acceptance.curve("a", 1)) > 0.5


def test_acceptance_optimism_falls_with_observations_and_grows_again_without_them() -> None:
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


def test_acceptance_forgets_a_failure_as_tokens_pass() -> None:
    acceptance = Acceptance(History())
    for accepted in [2] * 40 + [0] * 6:
        acceptance.add(Score("a", 2, accepted))
    failed = next(acceptance.curve("a", 1))
    acceptance.passed(200)
    assert next(acceptance.curve("a", 1)) > failed + 0.1


def test_history_multiplies_counts_by_fading_and_ageing() -> None:
    history = History()
    for _ in range(3):
        history.of(("a", 0)).add(Score("a", 9, 9), 0.5)
    counts = history.of(("a", 0))
    counts.settle()
    assert counts.tried[0] == counts.accepted[0] == pytest.approx(1.75)
    assert counts.tried[-1] == pytest.approx(2 * 1.75), "the last depth also counts all deeper ones"
    for _ in range(200):
        counts.fade(0.5)
    assert max(counts.tried) * counts.scale < 1e-50


def test_acceptance_of_an_adapter_is_learned_separately_and_starts_from_the_general_history() -> None:
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
    assert set(history.kinds) == {"formal"}
