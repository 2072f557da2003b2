"""Who writes a round: the draft model alone, a constraint that leaves no choice, or the target with a draft.

The loop has one `Writers`, which knows neither the target nor its state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from .drafting import Drafting
from .drafts import EMPTY_DRAFT, FORCED, WRITER, Draft
from .stats import Stopwatch
from .verify import Verdict

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
    """The writers of one generation. A round of it is `propose` and `settle`.

    switching: the draft model writes alone where it is sure, and nothing else is drafted. constraint: some tokens are
    forced. drafting: the others are drafted.
    """

    drafting: Drafting | None
    switching: Switching | None
    constraint: Constraint | None
    rounds: int = field(default=0, init=False)

    def begin(self, tokens: Sequence[int], *, generated: int, kind: str) -> None:
        """Start a generation of a kind (see `Policy.begin`) after `tokens`; the last `generated` are an answer's."""
        if self.drafting is not None:
            self.drafting.begin(tokens, kind)
        if self.switching is not None:
            self.switching.begin(tokens, generated=generated)

    def propose(self, tokens: Sequence[int], room: int) -> Draft:
        """Return a draft for the target, whose own token after it must fit the room too; or a WRITER's for no target.

        Nothing is forced or drafted in the first round, so that nothing delays the first token.
        """
        if self.switching is not None:  # the target then writes single tokens
            written = self.switching.write(tokens, room)
            return Draft(tuple(written), source=WRITER) if written else EMPTY_DRAFT
        if not self.rounds:
            return EMPTY_DRAFT
        if self.constraint is not None:
            from .constraint import forced_draft

            if len(forced := forced_draft(self.constraint, room - 1)):
                return forced
        if self.drafting is None:
            return EMPTY_DRAFT
        return self.drafting.propose(tokens, room=room - 1, constraint=self.constraint)

    @property
    def reason(self) -> str:
        """The reason of the drafters' plan; empty without one."""
        return self.drafting.plan.reason if self.drafting is not None and self.rounds else ""

    def settle(self, tokens: Sequence[int], verdict: Verdict, watch: Stopwatch) -> None:
        """End the round: show its result, with which `tokens` end, to what decides who writes the next ones.

        Its time counts for the drafters' policy if they were asked or the target wrote alone.
        """
        if self.constraint is not None:
            self.constraint.extend(verdict.tokens)
        if self.switching is not None and verdict.verified:
            self.switching.resume()
        watch.lap("host")
        if self.drafting is not None:
            self.drafting.observe(tokens, verdict)
        watch.lap("draft")
        if self.drafting is not None and self.switching is None and self.rounds and verdict.draft.source != FORCED:
            time = watch.round
            host_seconds = time.draft + time.sample + time.host
            self.drafting.spent(verdict, pass_seconds=time.verify, host_seconds=host_seconds)
        self.rounds += 1
