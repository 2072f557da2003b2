"""The options of a session."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from edgedecode.decoding.verify import Rule
from edgedecode.errors import InputError
from edgedecode.pack.manifest import Generation
from edgedecode.sampling.weights import SamplingOptions
from edgedecode.text.thinking import OFF

if TYPE_CHECKING:  # loaded by those who use them
    from edgedecode.structured.grammar import Grammar
    from edgedecode.switching.rule import SwitchRule

__all__ = [
    "DEFAULT_CONTEXT",
    "DEFAULT_QUALITY",
    "SessionDetails",
    "SessionOptions",
    "SwitchOptions",
    "WhenFull",
    "answer_limit",
    "planned_context",
    "sampling_defaults",
]

DEFAULT_CONTEXT = 4096
"""Default positions of a session, at most those of the model. More take more KV cache."""
DEFAULT_QUALITY = 0.97
"""Share of the target's accuracy that entropy switching keeps by default."""
DEFAULT_MAX_TOKENS = 512
"""Most tokens of an answer if neither the caller nor the pack sets a limit."""


class WhenFull(StrEnum):
    """How to handle a conversation that no longer fits its context."""

    DROP = "drop"
    """Drop its oldest turns, except system messages, and prefill the rest again, which is exact."""
    STOP = "stop"
    """End the answer when the context is full, and refuse a prompt that does not fit."""


@dataclass(frozen=True, slots=True)
class SwitchOptions:
    """Entropy switching: the draft model writes what it is sure of. Faster or smaller, and answers may be worse.

    quality: the share of the target's accuracy to keep, by the pack's calibrated curve (`edgedecode calibrate`); None:
    DEFAULT_QUALITY. threshold: hand over at this entropy in nats instead, without a curve; rule: any other rule. Raises
    InputError for values out of range.
    """

    quality: float | None = None
    threshold: float | None = None
    rule: "SwitchRule | None" = None

    def __post_init__(self) -> None:
        if self.quality is not None and not 0 < self.quality <= 1:
            raise InputError(f"quality {self.quality} is out of range: above 0, at most 1 (the target's accuracy)")
        if self.threshold is not None and not self.threshold >= 0:
            raise InputError(f"switching threshold {self.threshold} is out of range: 0 or more")
        if sum(each is not None for each in (self.quality, self.threshold, self.rule)) > 1:
            raise InputError("a quality, a threshold and a rule each decide when to switch: give one of them")


@dataclass(frozen=True, slots=True)
class SessionDetails:
    """The rarer options of a session.

    reproducible: the same seed gives the same text, independent of drafts, or opening the session raises
    CapabilityError; it needs our kernels and the match rule.
    """

    adapter_scale: float = 1.0
    """Factor for the adapter's change, in addition to the adapter's own scale."""
    rule: Rule = Rule.MATCH
    reproducible: bool = False
    ignore_eos: bool = False
    when_full: WhenFull = WhenFull.DROP
    switch: SwitchOptions | None = None
    """Entropy switching; None: every token is verified by the target."""
    template_arguments: Mapping[str, object] = field(default_factory=dict)
    """Variables of the chat template, as JSON values, beside the conversation."""
    think: str = ""
    """How much a model thinks before it answers, one of `EFFORTS`; empty and `auto`: as its chat template has it."""
    think_tokens: int | None = None
    """Most tokens of a thought, whose end is then forced; 0: none, -1: no limit. None: as the effort has it."""
    think_message: str = ""
    """The last words of a thought that is cut."""
    samples: int = 1
    """Answers at once to plan for (`Session.samples`): rows of logits, and no drafters."""

    @property
    def template_think(self) -> str:
        """How much to think as the chat template is told."""
        return OFF[0] if self.think_tokens == 0 else self.think


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How a session decodes. None takes the pack's own default.

    drafter: a registered name, "none", or None: in each round the scheduler chooses among those that may be
    profitable. draft_max: a fixed draft length, 0 for plain decoding, or None: the scheduler chooses. context:
    positions to plan for. seed: the first answer's; later answers derive theirs from it and their number. None: a
    random seed for each answer.
    """

    sampling: SamplingOptions | None = None
    adapter: str | None = None
    """The name of one of the pack's adapters of the target; None: no adapter."""
    drafter: str | None = None
    draft_max: int | None = None
    context: int | None = None
    seed: int | None = None
    grammar: "Grammar | None" = None
    """What answers have to follow; None: nothing. Not with entropy switching, trees or `ignore_eos`."""
    details: SessionDetails = SessionDetails()

    @property
    def fixed(self) -> bool:
        """Whether the draft length is fixed instead of chosen from measured costs."""
        return self.draft_max is not None


def sampling_defaults(generation: Generation) -> SamplingOptions:
    """Return the pack's defaults from its `generation_config`; unset options stay greedy or off."""
    given: dict[str, Any] = dict(generation.sampling)
    return SamplingOptions(**given)


def answer_limit(asked: int | None, generation: Generation) -> int:
    """Return the most tokens of an answer. Raises InputError if the caller asks for less than 1."""
    limit = generation.max_tokens or DEFAULT_MAX_TOKENS if asked is None else asked
    if limit < 1:
        raise InputError(f"max_tokens {limit} is out of range: 1 or more")
    return limit


def planned_context(asked: int | None, most: int) -> int:
    """Return the positions to plan for. Raises InputError if more are asked for than the model has, or less than 2."""
    if asked is None:
        return min(most, DEFAULT_CONTEXT)
    if not 2 <= asked <= most:
        raise InputError(f"a context of {asked} tokens is out of range: this model allows 2 to {most}")
    return asked
