"""The drafting side of a generation: asks the drafters, lets the policy choose, tells both what became of it.

The loop knows one `Drafting`; the policy sees counts and measured times only (`Signals`), the drafters tokens only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from time import perf_counter

from edgedecode.errors import CapabilityError, InputError
from edgedecode.sampling.sampler import Noise

from .counterfactual import OpenOffers, would_have
from .drafter import Branching, Closable, Drafter, HeadDrafter, head_groups
from .drafts import EMPTY_DRAFT, Draft
from .policy import (
    ASKED,
    MAX_DRAFT,
    NO_DRAFTER,
    NO_SPEED_UP,
    FixedLength,
    Offer,
    Plan,
    Policy,
    RoundCost,
    Score,
    Signals,
)
from .tree import RankRates, depths, is_chain
from .verify import Outcome, Verdict

__all__ = ["Drafting"]

_PLAIN = Plan(0)
_RESTING = Plan(0, reason=NO_SPEED_UP)
_FOR_GOOD = 1 << 62
"""Rounds at rest that never end."""


class Drafting:
    """Drafters and the policy that chooses among them, for one session.

    offers: ask every free drafter each round and score what it says, as a choosing policy needs; False asks only the
    drafter that the plan names. chains_only: refuse drafts that branch, since trees change the order of sums. clock:
    seconds, as the loop reads them.
    """

    def __init__(
        self,
        drafters: Sequence[Drafter],
        policy: Policy,
        *,
        noise: Noise,
        offers: bool = False,
        chains_only: bool = False,
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
        self._models = _by_model(drafters)
        self._branching = [drafter for drafter in drafters if isinstance(drafter, Branching)]  # asked once: it is slow
        self._chains_only = chains_only
        self._offers = OpenOffers()
        self._rest: RoundCost | None = None
        """The first round of a rest: the policy is told when it is known how many followed."""
        self._tokens: Sequence[int] = ()
        """The generation's tokens, which grow in place."""
        self._resting = self._rested = 0
        """Rounds at rest: those to come, and those of this rest so far."""
        self.timed = True
        """Whether the running round is to be told to `spent`: of a rest's rounds, which are alike, only the first."""
        self._asked = NO_DRAFTER
        self._read = 0
        self._draft_seconds = 0.0
        self._learning_seconds = 0.0
        """What the policy's learning from the round before took."""
        self._limit = 0
        """Tokens that the running round's draft may have."""
        self._known_rates: dict[str, RankRates] = {}
        """The rates that the policy was shown."""
        self._heads = _other_heads(drafters) if offers else {}
        self._head_scores: list[Score] = []
        """What heads that did not draft would have been worth."""

    @classmethod
    def fixed(cls, drafter: Drafter, length: int, *, noise: Noise, chains_only: bool = False) -> Drafting:
        """Return drafting by one drafter at one length. Raises InputError for a length out of range."""
        return cls([drafter], FixedLength(length), noise=noise, chains_only=chains_only)

    def begin(self, tokens: Sequence[int], adapter: str = "") -> None:
        """Start a generation after `tokens`, with the adapter of this name; empty: none."""
        self._end_rest()
        self._offers.clear()
        self._head_scores.clear()
        self._resting = self.policy.begin(adapter)
        self.plan, self._tokens = _RESTING if self._resting else _PLAIN, tokens
        for drafter in self.drafters.values():
            drafter.begin(tokens)

    def asks(self) -> bool:
        """Tell whether to `propose` and `observe` in the next round.

        A resting round is plain decoding and only decrements a counter.
        """
        if not self._resting:
            self.timed = True
            return True
        self._resting -= 1  # the plan that rests is a plain one, and stands
        self._rested += 1
        self.timed = self._rested == 1
        if self.timed:
            self._asked, self._read, self._draft_seconds = NO_DRAFTER, 0, 0.0
        return False

    def propose(self, tokens: Sequence[int], *, room: int) -> Draft:
        """Return the next round's draft of at most `room` tokens. Raises InputError for a drafter that gives more."""
        self._end_rest()
        self._tokens = tokens
        self._read, self._draft_seconds = 0, 0.0
        self._asked = ASKED
        self._noise.position = len(tokens)
        drafts = {drafter.name: drafter.propose(tokens, min(room, MAX_DRAFT), self._noise) for drafter in self._free}
        self.plan = self.policy.plan(self._signals(tokens, drafts, room=room))
        self._resting = self.plan.rest
        for name, offered in drafts.items():
            if len(offered) and (offered.parents is None or is_chain(offered.parents)):
                self._offers.add(name, offered, at=len(tokens))
        length = self._limit = min(self.plan.draft_max, room)
        if length <= 0:
            return EMPTY_DRAFT
        name = self.plan.drafter or self._first
        if name not in self.drafters:
            raise InputError(f"the policy wants the drafter {name!r}, there is: {', '.join(self.drafters)}")
        offered_chain = name in drafts and self.plan.shape is None
        draft = drafts[name].cut(length) if offered_chain else self._ask(self.drafters[name], tokens, length)
        if len(draft) or self._draft_seconds:
            self._asked = name
        if not len(draft):
            self.plan = replace(self.plan, reason=f"no proposal from {name}")
        return self._checked(draft, name, length)

    def observe(self, tokens: Sequence[int], verdict: Verdict) -> None:
        """Tell the drafters what a round emitted in which they were asked; `tokens` end with it."""
        self._tokens = tokens
        for drafter in self.drafters.values():
            drafter.observe(tokens, verdict)
        if len(verdict.draft) and verdict.draft.parents is None:
            for head in self._heads.get(verdict.draft.source, ()):
                self._head_scores.append(Score(head.name, *would_have(verdict, head.vocabulary)))

    def spent(self, verdict: Verdict, *, pass_seconds: float, host_seconds: float) -> None:
        """Tell the policy what a round cost: the target's pass, and the host's work without a model's drafting."""
        drafted, plan = len(verdict.draft), self.plan
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
            levels=_levels(verdict.draft) if self._draft_seconds else 0,
            stopped=plan.floor > 0 and drafted < self._limit and verdict.outcome is not Outcome.ENDED,
        )
        if self._rested:
            self._rest = cost
        else:
            started = self.clock()
            self.policy.observe(cost, self._scores())
            self._learning_seconds = self.clock() - started

    def close(self) -> None:
        """Close the drafters, and the policy where it holds something, whichever of them fails. Idempotent.

        A generation that runs goes on plainly.
        """
        self._resting = _FOR_GOOD
        with ExitStack() as closing:
            if isinstance(self.policy, Closable):
                closing.callback(self.policy.close)
            for drafter in self.drafters.values():
                closing.callback(drafter.close)
            self._end_rest()

    def _ask(self, drafter: Drafter, tokens: Sequence[int], length: int) -> Draft:
        """Ask one drafter now, and time it where it runs a model: that is engine's work, not the host's."""
        self._noise.position = len(tokens)
        if drafter.free:
            return drafter.propose(tokens, length, self._noise, self.plan)
        self._read = drafter.unread(tokens)
        started = self.clock()
        draft = drafter.propose(tokens, length, self._noise, self.plan)
        self._draft_seconds = self.clock() - started
        return draft

    def _end_rest(self) -> None:
        """Tell the policy of a rest that is over."""
        rest, rested = self._rest, self._rested
        self._rest, self._rested = None, 0
        if rest is not None:
            self.policy.observe(replace(rest, repeats=rested - 1), self._scores())

    def _scores(self) -> tuple[Score, ...]:
        scores = (*self._offers.settle(self._tokens), *self._head_scores)
        self._head_scores.clear()
        return scores

    def _checked(self, draft: Draft, name: str, length: int) -> Draft:
        if len(draft) > length:
            raise InputError(f"the drafter {name!r} proposed {len(draft)} of {length} tokens")
        if self._chains_only and draft.parents is not None and not is_chain(draft.parents):
            raise CapabilityError(f"the drafter {name!r} proposes trees: reproducible text needs chains")
        return draft

    def _signals(self, tokens: Sequence[int], drafts: dict[str, Draft], *, room: int) -> Signals:
        return Signals(
            context_tokens=len(tokens),
            remaining_tokens=room + 1,
            offers=tuple(Offer(name, len(draft), draft.match) for name, draft in drafts.items() if len(draft)),
            unread=tuple(self._unread(tokens)),
            rates=tuple(self._moved_rates()),
        )

    def _unread(self, tokens: Sequence[int]) -> Iterator[tuple[str, int]]:
        for group in self._models:  # what one of its heads has read, all have
            unread = group[0].unread(tokens)
            for drafter in group:
                yield drafter.name, unread

    def _moved_rates(self) -> Iterator[tuple[str, RankRates]]:
        for drafter in self._branching:
            rates = drafter.rates()
            if rates is not None and rates is not self._known_rates.get(drafter.name):
                self._known_rates[drafter.name] = rates
                yield drafter.name, rates


def _other_heads(drafters: Sequence[Drafter]) -> dict[str, list[HeadDrafter]]:
    """Return, by name, the drafters that draft with another head of the same model."""
    return {
        head.name: [other for other in group if other is not head] for group in head_groups(drafters) for head in group
    }


def _by_model(drafters: Sequence[Drafter]) -> list[list[Drafter]]:
    """Return the drafters that run models, those together that draft with heads of one."""
    models: dict[int, list[Drafter]] = {}
    for drafter in drafters:
        if not drafter.free:
            shared = drafter.state if isinstance(drafter, HeadDrafter) else drafter
            models.setdefault(id(shared), []).append(drafter)
    return list(models.values())


def _levels(draft: Draft) -> int:
    return 0 if draft.parents is None else 1 + max(depths(draft.parents), default=-1)
