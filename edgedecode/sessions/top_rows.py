"""What a session may ask of a target that gives the likeliest tokens of a row only, as one on a server does."""

from edgedecode.decoding.model import ModelCard
from edgedecode.errors import CapabilityError
from edgedecode.sampling.weights import SamplingOptions

_TOLD = {"temperature", "top_p", "top_k", "min_p"}
"""Options that servers draw with, by these names."""


def top_needed(sampling: SamplingOptions, card: ModelCard, *, restricted: bool) -> int:
    """Return how many of the likeliest tokens decide a draw. Raises CapabilityError for options that need all.

    restricted: whether a constraint excludes tokens.
    """
    if restricted:
        check_whole_rows(card, "a grammar or a thinking budget")
    if sampling.changes_logits:
        check_whole_rows(card, "a penalty or a bias")
    if card.draws and (others := sampling.active.keys() - _TOLD):
        raise CapabilityError(f"{', '.join(sorted(others))}: {card.name} is not told of it: leave it out")
    if sampling.greedy or card.draws:
        return 1
    if sampling.top_n_sigma or not 0 < sampling.top_k <= card.top_rows:
        check_whole_rows(card, f"sampling without top-k of 1 to {card.top_rows}, or with top-n-sigma,")
    return sampling.top_k


def check_whole_rows(card: ModelCard, what: str) -> None:
    """Raise CapabilityError if the target has not the logits of all tokens, which this needs."""
    if card.top_rows:
        raise CapabilityError(f"{what} needs the whole distribution, and {card.name} tells its likeliest tokens only")
