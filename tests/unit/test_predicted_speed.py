"""Speeds predicted from what was learnt, and that they are those the scheduler counts with."""

from __future__ import annotations

import pytest

from edgedecode.decoding.policy import RoundCost, Score
from edgedecode.schedule.experience import Experience
from edgedecode.schedule.predicted_speed import PredictedSpeed, predicted_speed

STEP_S = 0.004


def learnt(*, accepted: int, draft_step: float = 0.1, rounds: int = 40) -> Experience:
    """What a machine shows where four drafted tokens in a pass cost as much as one, and so many of them are right."""
    experience = Experience()
    for _ in range(rounds):
        experience.costs.observe(
            RoundCost(1, STEP_S, host_seconds=0.0, drafter="none", drafted=0, accepted=0), context_tokens=100
        )
        cost = RoundCost(
            5,
            STEP_S,
            host_seconds=0.0,
            drafter="model",
            drafted=4,
            accepted=accepted,
            draft_seconds=4 * draft_step * STEP_S,
        )
        experience.costs.observe(cost, context_tokens=100)
        experience.history.of(("model", 0)).add(Score("model", 4, accepted), 0.99)
    return experience


def speed(experience: Experience, *drafters: str, draft_max: int = 4) -> PredictedSpeed | None:
    return predicted_speed(experience, drafters, draft_max=draft_max, context_tokens=100)


def test_nothing_is_predicted_where_nothing_was_timed() -> None:
    assert speed(Experience(), "model") is None


def test_plain_speed_is_that_of_plain_passes() -> None:
    for drafters in ((), ("suffix",), ("trim",)):  # without a model, or never timed
        assert speed(learnt(accepted=4), *drafters) == PredictedSpeed(pytest.approx(1 / STEP_S, rel=1e-3))


def test_drafts_that_are_accepted_are_as_fast_as_their_rounds() -> None:
    found = speed(learnt(accepted=4), "model", "suffix")
    assert found is not None
    assert found.drafted is not None
    assert found.drafted == pytest.approx(5 / 1.4 / STEP_S, rel=0.1)  # five tokens for a pass and four draft steps
    assert speed(learnt(accepted=4), "model", draft_max=0) == found._replace(drafted=None)


def test_drafts_that_fail_are_never_slower_than_none() -> None:
    found = speed(learnt(accepted=0, draft_step=0.5), "model")
    assert found is not None
    assert found.drafted == found.plain
