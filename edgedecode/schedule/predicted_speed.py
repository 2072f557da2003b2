"""Predicts a session's decoding speed from what was learnt about the pack on this device."""

from collections.abc import Sequence
from typing import NamedTuple

from .acceptance import Acceptance
from .experience import Experience
from .prices import Prices, step_seconds


class PredictedSpeed(NamedTuple):
    """Tokens per second after the prefill, on texts like those decoded here before.

    plain: without drafts. drafted: with the draft model, never below `plain`; None: it is not used, or was never timed
    here. Neither includes drafters without a model, whose speed-up depends on how repetitive a text is.
    """

    plain: float
    drafted: float | None = None


def predicted_speed(
    experience: Experience, drafters: Sequence[str], *, draft_max: int, context_tokens: int, adapter: str = ""
) -> PredictedSpeed | None:
    """Predict from the costs and acceptance rates that the scheduler uses; None if no pass was timed here.

    context_tokens: length of the conversation to predict for. adapter: name of the adapter in use; empty: none.
    """
    costs, chances = experience.costs, Acceptance(experience.history.under(adapter))
    table, seconds = costs.table(context_tokens), step_seconds(costs, context_tokens)
    if table.step is None or seconds is None:
        return None
    prices = Prices(costs, table, table.step)
    gains = [
        prices.best_length(
            chances.curve(name, draft_max),
            draft_max,
            step=prices.step(name),
            host=prices.host(name),
            stops=chances.stops(name),
        )[1]
        for name in drafters
        if name in costs.drafts and draft_max
    ]
    return PredictedSpeed(1 / seconds, max(1.0, *gains) / seconds if gains else None)
