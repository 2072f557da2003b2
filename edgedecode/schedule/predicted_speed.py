"""How fast a session will decode, by what was learnt of the pack on this device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .acceptance import Acceptance
from .cost import Prices
from .experience import Experience

__all__ = ["PredictedSpeed", "predicted_speed"]


class PredictedSpeed(NamedTuple):
    """Tokens a second once the prompt is read, on texts like those that were decoded here before.

    plain: without drafts. drafted: with those of the draft model, which is never less; None: it is not used, or was
    never timed here. What drafters without a model add depends on how much a text repeats, and is in neither.
    """

    plain: float
    drafted: float | None = None


def predicted_speed(
    experience: Experience, drafters: Sequence[str], *, draft_max: int, context_tokens: int, adapter: str = ""
) -> PredictedSpeed | None:
    """Predict by the costs and chances that the scheduler chooses by; None where no pass was timed here.

    context_tokens: the length of the conversation that passes are priced at. adapter: the name of
    the adapter that answers; empty: none.
    """
    costs, chances = experience.costs, Acceptance(experience.history.under(adapter))
    table, seconds = costs.table(context_tokens), costs.step_seconds(context_tokens)
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
