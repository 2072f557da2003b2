"""Speeds predicted from experience agree with the scheduler's own estimates."""

import pytest

from edgedecode.decoding.policy import RoundCost, Score
from edgedecode.schedule.experience import Experience
from edgedecode.schedule.predicted_speed import PredictedSpeed, predicted_speed

STEP_S = 0.004


def learned(*, accepted: int, draft_step: float = 0.1, rounds: int = 40) -> Experience:
    """Return experience of a machine on which a pass of 5 tokens costs as much as one of 1.

    accepted: the number of accepted tokens in each draft of 4.
    """
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


def test_predicted_speed_without_timings_is_none() -> None:
    assert speed(Experience(), "model") is None


def test_predicted_speed_without_a_timed_model_is_the_plain_speed() -> None:
    for drafters in ((), ("suffix",), ("trim",)):  # without a model, or with a drafter that was never timed
        assert speed(learned(accepted=4), *drafters) == PredictedSpeed(pytest.approx(1 / STEP_S, rel=1e-3))


def test_predicted_speed_of_accepted_drafts_is_that_of_their_rounds() -> None:
    found = speed(learned(accepted=4), "model", "suffix")
    assert found.drafted is not None
    assert found.drafted == pytest.approx(5 / 1.4 / STEP_S, rel=0.1)  # five tokens per pass and four draft steps
    assert speed(learned(accepted=4), "model", draft_max=0) == found._replace(drafted=None)


def test_predicted_speed_of_rejected_drafts_is_not_below_the_plain_speed() -> None:
    found = speed(learned(accepted=0, draft_step=0.5), "model")
    assert found.drafted == found.plain
