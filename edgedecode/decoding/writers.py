"""Who writes a round: the draft model alone, a constraint that leaves no choice, or the target with a draft.

The loop has one `Writers`, which knows neither the target nor its state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from edgedecode.sampling.sampler import Sampler

from .drafting import Drafting
from .drafts import EMPTY_DRAFT, Draft
from .stats import TimeSplit
from .verify import Verdict, unverified

if TYPE_CHECKING:  # few answers have one
    from .constraint import Constraint


class Switching(Protocol):
    """Entropy switching: decides which model writes next, and generates the draft model's tokens."""

    def begin(self, tokens: Sequence[int], *, generated: int = 0) -> None:
        """Start a generation after `tokens`, of which the last `generated` are an answer's; the draft model begins."""
        ...

    def write(self, tokens: Sequence[int], limit: int) -> list[int]:
        """Generate at most `limit` tokens after `tokens` with the draft model; empty: the target writes next.

        Always empty once it is closed, which may happen in the middle of an answer.

        Stops after an end-of-sequence token, when the draft model is unsure of the next token, or after a few tokens,
        so that they can be shown; in the last case, call it again.
        """
        ...

    def resume(self) -> None:
        """Let the draft model write again: the target has written a token."""
        ...

    def close(self) -> None: ...


@dataclass(slots=True)
class Writers:
    """The writers of one generation. Each round is `write`, `propose` if that returns None, `settle`, `observe`, `end`.

    switching: the draft model writes alone where it is sure, and nothing else is drafted. constraint: some tokens are
    forced. drafting: the others are drafted.
    """

    sampler: Sampler
    ends: frozenset[int]
    drafting: Drafting | None
    switching: Switching | None
    constraint: Constraint | None
    first: bool = field(default=True, init=False)
    """Whether this is the first round, which ends the prefill."""
    _asked: bool = field(default=False, init=False)
    """Whether the drafters take part in this round."""

    def begin(self, tokens: Sequence[int], *, generated: int, kind: str) -> None:
        """Start a generation of a kind (see `Policy.begin`) after `tokens`; the last `generated` are an answer's."""
        if self.drafting is not None:
            self.drafting.begin(tokens, kind)
        if self.switching is not None:
            self.switching.begin(tokens, generated=generated)

    def write(self, tokens: Sequence[int], room: int) -> Verdict | None:
        """Return at most `room` tokens that the draft model writes without the target; None: the target is next."""
        self._asked = False
        written = [] if self.switching is None else self.switching.write(tokens, room)
        return unverified(written, self.sampler, ends=self.ends) if written else None

    def propose(self, tokens: Sequence[int], room: int) -> Draft:
        """Return a draft for the target, whose own token after it must fit the room too.

        Nothing is forced or drafted in the first round, so that nothing delays the first token.
        """
        if self.first or self.switching is not None:  # with switching, the target writes single tokens
            return EMPTY_DRAFT
        left = room - 1
        if self.constraint is not None:
            from .constraint import forced_draft

            if len(forced := forced_draft(self.constraint, left)):
                return forced
        if self.drafting is None or not self.drafting.asks():
            return EMPTY_DRAFT
        self._asked = True
        return self.drafting.propose(tokens, room=left, constraint=self.constraint)

    @property
    def reason(self) -> str:
        """The reason of the drafters' plan; empty without one."""
        return "" if self.drafting is None or self.first else self.drafting.plan.reason

    def settle(self, verdict: Verdict) -> None:
        """Advance what decides who writes the next tokens, and which."""
        if self.constraint is not None:
            self.constraint.extend(verdict.tokens)
        if self.switching is not None and verdict.verified:
            self.switching.resume()

    def observe(self, tokens: Sequence[int], verdict: Verdict) -> bool:
        """Show the round's result to the drafters if they were asked, and return that; `tokens` end with its tokens."""
        if self.drafting is not None and self._asked:
            self.drafting.observe(tokens, verdict)
        return self._asked

    def end(self, verdict: Verdict, time: TimeSplit) -> None:
        """End the round. Its time counts for the drafters' policy if they were asked or the target wrote alone."""
        took_part = self._asked or (self.switching is None and not len(verdict.draft))
        if self.drafting is not None and took_part and not self.first:
            host_seconds = time.draft + time.sample + time.host
            self.drafting.spent(verdict, pass_seconds=time.verify, host_seconds=host_seconds)
        self.first = False
