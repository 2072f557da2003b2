"""The drafting side of a generation: asks the drafters, lets the policy choose, and reports the outcome to both.

The loop has one `Drafting`. The policy sees only counts and measured times (`Signals`), the drafters only tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from time import perf_counter
from types import MappingProxyType
from typing import TYPE_CHECKING

from edgedecode.errors import InputError
from edgedecode.sampling.sampler import Noise

from .drafter import Closable, Drafter, Watching
from .drafts import EMPTY_DRAFT, Draft, is_chain
from .offers import OpenOffers
from .policy import (
    ASKED,
    MAX_DRAFT,
    NO_SPEED_UP,
    FixedLength,
    Offer,
    Plan,
    Policy,
    RoundCost,
    Signals,
)
from .verify import Outcome, Verdict

if TYPE_CHECKING:
    from .constraint import Constraint

_PLAIN = Plan(0)
_RESTING = Plan(0, reason=NO_SPEED_UP)
COPIED = 5
"""Tokens that the text must repeat to end a rest: the least for which `acceptance.PRIORS` expects a copy."""
WATCH, MOST_BETWEEN = 8, 32
"""Resting rounds between two looks at the text: after a draft, and at most. Lower: copies are drafted sooner, but each
look takes 10 µs and evicts caches that the next pass needs."""
_FOREVER = 1 << 62
"""Number of resting rounds that never runs out."""


class Drafting:
    """Drafters and the policy that chooses among them, for one session.

    offers: ask every free drafter each round and score its proposal, which a policy needs to choose among drafters;
    False asks only the drafter that the plan names. clock: seconds, the same clock as the loop's.
    """

    def __init__(
        self,
        drafters: Sequence[Drafter],
        policy: Policy,
        *,
        noise: Noise,
        offers: bool = False,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        if not drafters:
            raise InputError("drafting needs a drafter: leave it out for plain decoding")
        self.drafters = {drafter.name: drafter for drafter in drafters}
        self.policy = policy
        self.plan = _PLAIN
        """The plan of the last round."""
        self.clock = clock
        self._noise = noise
        self._first = drafters[0].name
        self._free = [drafter for drafter in drafters if drafter.free] if offers else []
        self._models = [drafter for drafter in drafters if not drafter.free]
        self._offers = OpenOffers()
        self._rest: list[tuple[float, float]] = []
        """Seconds of the passes and of the host in a rest, of which the policy observes the medians when it ends."""
        self._tokens: Sequence[int] = ()
        """The generation's tokens, which grow in place."""
        self._resting = self._rested = 0
        """Resting rounds: those left, and those of this rest so far."""
        self._watching = next((drafter for drafter in self._free if isinstance(drafter, Watching)), None)
        self._copied = COPIED
        """Tokens that the text must repeat to end the rest."""
        self._between = WATCH
        """Resting rounds between two looks at the text."""
        self._next_look = 0
        self._asked = ASKED
        self._read = 0
        self._draft_seconds = 0.0
        self._learning_seconds = 0.0
        """Time the policy took to learn from the previous round."""
        self._returned = 0
        """Tokens of the running round's draft before a constraint cut it."""
        self._limit = 0
        """Most tokens of the running round's draft."""

    @classmethod
    def fixed(cls, drafter: Drafter, length: int, *, noise: Noise) -> Drafting:
        """Return drafting by one drafter at one length. Raises InputError for a length out of range."""
        return cls([drafter], FixedLength(length), noise=noise)

    def begin(self, tokens: Sequence[int], kind: str = "") -> None:
        """Start a generation of a kind (see `Policy.begin`) after `tokens`."""
        self._end_rest()
        self._offers.clear()
        rest = self.policy.begin(kind)
        self.plan, self._tokens = _RESTING if rest else _PLAIN, tokens
        self._rest_for(rest)
        for drafter in self.drafters.values():
            drafter.begin(tokens)

    def asks(self) -> bool:
        """Return whether to `propose` and `observe` in the next round.

        A resting round is plain decoding and only decrements a counter.
        """
        if not self._resting or (self._resting == self._next_look and self._wakes()):
            return True
        self._resting -= 1  # self.plan stays: a resting plan is plain
        self._rested += 1
        return False

    def propose(self, tokens: Sequence[int], *, room: int, constraint: Constraint | None = None) -> Draft:
        """Return the next round's draft of at most `room` tokens, as far as the constraint allows it.

        Raises InputError if a drafter returns more.
        """
        self._end_rest()
        self._tokens = tokens
        self._read, self._draft_seconds, self._returned = 0, 0.0, 0
        self._asked = ASKED
        self._noise.position = len(tokens)
        drafts = {drafter.name: drafter.propose(tokens, min(room, MAX_DRAFT), self._noise) for drafter in self._free}
        self.plan = self.policy.plan(self._signals(tokens, drafts, room=room))
        self._rest_for(self.plan.rest, drafts)
        for name, offered in drafts.items():
            if len(offered) and (offered.parents is None or is_chain(offered.parents)):
                self._offers.add(name, offered, at=len(tokens))
        length = self._limit = min(self.plan.draft_max, room)
        if length <= 0:
            return EMPTY_DRAFT
        name = self.plan.drafter or self._first
        if name not in self.drafters:
            raise InputError(f"the policy chose the drafter {name!r}; the session has {', '.join(self.drafters)}")
        draft = drafts[name].cut(length) if name in drafts else self._ask(self.drafters[name], tokens, length)
        if len(draft) or self._draft_seconds:
            self._asked = name
        if not len(draft):
            self.plan = replace(self.plan, reason=f"no proposal from {name}")
        draft = self._checked(draft, name, length)
        self._returned = len(draft)
        if constraint is not None and len(draft):
            from .constraint import allowed_draft  # late: few answers have one

            draft = allowed_draft(constraint, draft)
            if not len(draft):
                self.plan = replace(self.plan, reason="the grammar allows no draft")
        return draft

    def observe(self, tokens: Sequence[int], verdict: Verdict) -> None:
        """Report a round in which drafters were asked to all of them; `tokens` end with the tokens it emitted."""
        self._tokens = tokens
        for drafter in self.drafters.values():
            drafter.observe(tokens, verdict)

    def spent(self, verdict: Verdict, *, pass_seconds: float, host_seconds: float) -> None:
        """Report a round's cost to the policy: the target's forward pass, and host overhead without model drafting."""
        if self._rested:
            self._rest.append((pass_seconds, host_seconds))
            return
        drafted = len(verdict.draft)
        cost = RoundCost(
            width=1 + drafted,
            pass_seconds=pass_seconds,
            host_seconds=max(0.0, host_seconds + self._learning_seconds - self._draft_seconds),
            drafter=self._asked,
            drafted=drafted,
            accepted=verdict.accepted,
            read=self._read,
            draft_seconds=self._draft_seconds,
            match=verdict.draft.match,
            cut=self._returned - drafted,
            stopped=self.plan.floor > 0 and self._returned < self._limit and verdict.outcome is not Outcome.ENDED,
        )
        started = self.clock()
        self.policy.observe(cost, self._offers.settle(self._tokens))
        self._learning_seconds = self.clock() - started

    def close(self) -> None:
        """Close the drafters, and the policy if it is closable, even if one of them fails. Idempotent.

        A running generation continues without drafts.
        """
        self._resting = _FOREVER
        with ExitStack() as closing:
            if isinstance(self.policy, Closable):
                closing.callback(self.policy.close)
            for drafter in self.drafters.values():
                closing.callback(drafter.close)
            self._end_rest()

    def _ask(self, drafter: Drafter, tokens: Sequence[int], length: int) -> Draft:
        """Ask one drafter now. If it runs a model, time it: that is engine time, not host overhead."""
        self._noise.position = len(tokens)
        if drafter.free:
            return drafter.propose(tokens, length, self._noise, self.plan)
        self._read = drafter.unread(tokens)
        started = self.clock()
        draft = drafter.propose(tokens, length, self._noise, self.plan)
        self._draft_seconds = self.clock() - started
        return draft

    def _rest_for(self, rounds: int, drafts: Mapping[str, Draft] = MappingProxyType({})) -> None:
        """Rest, but look at the text in between: a copy ends the rest, longer than what these drafts matched."""
        if self.plan.draft_max:
            self._between = WATCH
        self._resting, self._next_look = rounds, rounds - self._between
        self._copied = max(COPIED, *(2 * draft.match for draft in drafts.values()), 0)

    def _wakes(self) -> bool:
        """Return whether the text copies itself, which ends the rest. Looks that find nothing become rare."""
        if self._watching is not None and self._watching.repeats(self._tokens, self._copied):
            self._resting = 0
            return True
        self._between = min(MOST_BETWEEN, 2 * self._between)
        self._next_look = self._resting - self._between
        return False

    def _end_rest(self) -> None:
        """Report a finished rest to the policy."""
        rest, self._rest, self._rested = self._rest, [], 0
        if rest:
            passes, hosts = (sorted(seconds)[(len(rest) - 1) // 2] for seconds in zip(*rest, strict=True))
            self.policy.observe(RoundCost(1, passes, hosts, repeats=len(rest) - 1), self._offers.settle(self._tokens))

    def _checked(self, draft: Draft, name: str, length: int) -> Draft:
        if len(draft) > length:
            raise InputError(f"the drafter {name!r} proposed {len(draft)} tokens where at most {length} are allowed")
        return replace(draft, source=name) if draft.source == EMPTY_DRAFT.source else draft

    def _signals(self, tokens: Sequence[int], drafts: dict[str, Draft], *, room: int) -> Signals:
        return Signals(
            context_tokens=len(tokens),
            remaining_tokens=room + 1,
            offers=tuple(Offer(name, len(draft), draft.match) for name, draft in drafts.items() if len(draft)),
            unread=tuple((drafter.name, drafter.unread(tokens)) for drafter in self._models),
        )
