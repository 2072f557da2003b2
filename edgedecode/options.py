"""How a session decodes: the values a caller chooses. Holds no behaviour."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from edgedecode.decoding.verify import Rule
from edgedecode.errors import InputError
from edgedecode.pack.manifest import Generation
from edgedecode.sampling.weights import SamplingOptions
from edgedecode.switching.rule import SwitchRule

__all__ = [
    "BRANCHING",
    "DEFAULT_CONTEXT",
    "DEFAULT_QUALITY",
    "TREE",
    "SessionOptions",
    "SwitchOptions",
    "WhenFull",
    "answer_limit",
    "planned_context",
    "sampling_defaults",
    "wants_trees",
]

DEFAULT_CONTEXT = 4096
"""Positions of a session that says nothing else, where the model has as many."""
DEFAULT_QUALITY = 0.97
"""Share of the target's accuracy that entropy switching keeps by default."""
DEFAULT_MAX_TOKENS = 512
"""Tokens of an answer, where neither the caller nor the pack says how many."""
TREE = "tree"
"""The drafter that proposes nothing but trees."""
BRANCHING = (TREE, "recycle")
"""The drafters that can propose trees."""


class WhenFull(StrEnum):
    """What happens to a conversation that no longer fits its context."""

    DROP = "drop"
    """Its oldest turns are dropped, whole ones, and what is kept is read again, which is exact; the system messages
    stay."""
    STOP = "stop"
    """An answer ends there, and what does not fit is refused."""
    SHIFT = "shift"
    """As DROP, but keys and values of what is kept move down in the cache instead of being computed again: no wait, and
    answers may differ, since they were computed with the dropped turns in sight. Only llama.cpp can."""


@dataclass(frozen=True, slots=True)
class SwitchOptions:
    """Entropy switching: the draft model writes what it is sure of. Faster or smaller, and answers may be worse.

    quality: the share of the target's accuracy to keep, by the pack's calibrated curve (`edgedecode calibrate`); None:
    DEFAULT_QUALITY. threshold: hand over at this entropy in nats instead, without a curve; rule: any other rule. check:
    the target verifies what the draft model wrote when it takes over, before it is shown. Raises InputError for values
    out of range.
    """

    quality: float | None = None
    threshold: float | None = None
    check: bool = False
    rule: SwitchRule | None = None

    def __post_init__(self) -> None:
        if self.quality is not None and not 0 < self.quality <= 1:
            raise InputError(f"quality {self.quality} is out of range: above 0, at most 1 (the target's accuracy)")
        if self.threshold is not None and not self.threshold >= 0:
            raise InputError(f"switching threshold {self.threshold} is out of range: 0 or more")
        if sum(each is not None for each in (self.quality, self.threshold, self.rule)) > 1:
            raise InputError("a quality, a threshold and a rule each decide when to switch: give one of them")


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How a session decodes. None takes the pack's own default.

    drafter: a registered name, "none", or None: the scheduler chooses among all that may pay, round by round.
    draft_max: a fixed draft length, 0 for plain decoding, or None: the scheduler chooses. context: positions to plan
    for. seed: of the first answer; later ones have their own, made of it and their number, or all a fresh one (None).
    reproducible: same seed, same text, whatever drafts did (passes padded to widths that round alike on this
    device, which is measured once; chains, a fixed length, match). trace: a file to write the scheduler's signals and
    plans to (counts and times, no text). remember: keep outputs in the user's cache, on disk, to draft from in later
    runs; nothing else reads them. tree: drafts may branch, where a tree promises more than the best chain; with a
    fixed draft_max each draft is a tree of that many nodes.
    """

    sampling: SamplingOptions | None = None
    adapter: str | None = None
    """The name of one that the pack lists, for the target alone; None: none."""
    adapter_scale: float = 1.0
    """What the adapter's change is multiplied by, beside its own scale."""
    drafter: str | None = None
    draft_max: int | None = None
    context: int | None = None
    seed: int | None = None
    rule: Rule = Rule.MATCH
    reproducible: bool = False
    ignore_eos: bool = False
    trace: Path | None = None
    remember: bool = False
    tree: bool = False
    when_full: WhenFull = WhenFull.DROP
    switch: SwitchOptions | None = None
    """Entropy switching; None: every token is verified by the target."""

    @property
    def fixed(self) -> bool:
        """Whether the draft length is fixed, not chosen by measured costs."""
        return self.draft_max is not None or self.reproducible


def wants_trees(options: SessionOptions) -> bool:
    """Tell whether drafts may branch."""
    return options.tree or options.drafter == TREE


def sampling_defaults(generation: Generation) -> SamplingOptions:
    """Take the defaults of the pack's `generation_config`; what it does not set stays greedy and off."""
    given: dict[str, Any] = dict(generation.sampling)
    return SamplingOptions(**given)


def answer_limit(asked: int | None, generation: Generation) -> int:
    """Return the most tokens of an answer. Raises InputError."""
    limit = generation.max_tokens or DEFAULT_MAX_TOKENS if asked is None else asked
    if limit < 1:
        raise InputError(f"max_tokens {limit} is out of range: 1 or more")
    return limit


def planned_context(asked: int | None, most: int) -> int:
    """Return the positions to plan for. Raises InputError when more are asked for than the model has."""
    if asked is None:
        return min(most, DEFAULT_CONTEXT)
    if not 2 <= asked <= most:
        raise InputError(f"a context of {asked} tokens is out of range: this model allows 2 to {most}")
    return asked
