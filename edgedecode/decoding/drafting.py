"""The drafting side of a generation: asks the drafters, lets the policy choose, and reports the outcome to both.

The loop has one `Drafting`. The policy sees only counts and measured times (`Signals`), the drafters only tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING

from edgedecode.errors import InputError
from edgedecode.sampling.sampler import Noise

from .drafter import Drafter, Watching
from .drafts import EMPTY_DRAFT, Draft, is_chain
from .offers import OpenOffers
from .policy import ASKED, MAX_DRAFT, NO_SPEED_UP, FixedLength, Offer, Plan, Policy, RoundCost, Signals
from .verify import Outcome, Verdict

if TYPE_CHECKING:
    from .constraint import Constraint

COPIED = 5
"""Tokens that the text must repeat to end a rest: the least for which `acceptance.PRIORS` expects a copy."""
WATCH, MOST_BETWEEN = 8, 32
"""Resting rounds between two looks at the text: after a draft, and at most. Lower: copies are drafted sooner, but each
look takes 10 µs and evicts caches that the next pass needs."""


@dataclass(slots=True)
class _Round:
    """A round in which drafters are asked: who drafts, and what the policy is told that it cost."""

    limit: int
    """Most tokens of the draft."""
    drafter: str = ASKED
    returned: int = 0
    """Tokens of the draft before a constraint cut it."""
    read: int = 0
    draft_seconds: float = 0.0


@dataclass(slots=True)
class _Rest:
    """Rounds that are plain and ask no drafter; now and then, `watching` looks whether the text copies itself."""

    watching: Sequence[Watching]
    left: float = 0
    copied: int = COPIED
    """Tokens that the text must repeat to end it."""
    between: int = WATCH
    """Rounds between two looks at the text."""
    next_look: float = 0
    spent: list[tuple[float, float]] = field(default_factory=list)
    """Seconds of its passes and of the host, of which the policy observes the medians when it ends."""

    def begin(self, plan: Plan, drafts: Iterable[Draft] = ()) -> None:
        """Rest as planned; a copy ends it, longer than what these drafts matched."""
        if plan.draft_max:
            self.between = WATCH
        self.left, self.next_look = plan.rest, plan.rest - self.between
        self.copied = max(COPIED, *(2 * draft.match for draft in drafts), 0)

    def goes_on(self, tokens: Sequence[int]) -> bool:
        """Return whether the next round rests too. Looks that find nothing become rare."""
        if self.left and self.left == self.next_look:
            if any(each.repeats(tokens, self.copied) for each in self.watching):
                self.left = 0
            else:
                self.between = min(MOST_BETWEEN, 2 * self.between)
                self.next_look -= self.between
        self.left -= (goes_on := self.left > 0)
        return goes_on

    def cost(self) -> RoundCost | None:
        """Return what its rounds until now cost, and forget it."""
        spent, self.spent = self.spent, []
        if not spent:
            return None
        passes, hosts = (sorted(seconds)[(len(spent) - 1) // 2] for seconds in zip(*spent, strict=True))
        return RoundCost(1, passes, hosts, repeats=len(spent) - 1)


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
        self.policy, self.clock, self._noise = policy, clock, noise
        self.plan = Plan(0)
        """The plan of the last round."""
        self._offering = offers
        self._free = [drafter for drafter in drafters if drafter.free] if offers else []
        self._offers = OpenOffers()
        self._rest = _Rest([drafter for drafter in self._free if isinstance(drafter, Watching)][:1])
        self._round: _Round | None = None
        """The running round; None: no drafter was asked."""
        self._tokens: Sequence[int] = ()
        """The generation's tokens, which grow in place."""
        self._learning_seconds = 0.0
        """Time the policy took to learn from the previous round."""

    @classmethod
    def fixed(cls, drafter: Drafter, length: int, *, noise: Noise) -> Drafting:
        """Return drafting by one drafter at one length. Raises InputError for a length out of range."""
        return cls([drafter], FixedLength(length), noise=noise)

    @contextmanager
    def joined(self, drafter: Drafter) -> Iterator[None]:
        """Ask a free drafter too while the block runs, of which the policy knows the name, if it chooses among them."""
        if not self._offering:
            yield
            return
        self.drafters[drafter.name] = drafter
        self._free.append(drafter)
        watching = self._rest.watching
        if isinstance(drafter, Watching):
            self._rest.watching = [*watching, drafter]
        try:
            yield
        finally:
            self._rest.watching = watching
            self._free.remove(drafter)
            del self.drafters[drafter.name]

    def begin(self, tokens: Sequence[int], kind: str = "") -> None:
        """Start a generation of a kind (see `Policy.begin`) after `tokens`."""
        self._end_rest()
        self._offers.clear()
        rest = self.policy.begin(kind)
        self.plan, self._tokens, self._round = Plan(0, rest=rest, reason=NO_SPEED_UP if rest else ""), tokens, None
        self._rest.begin(self.plan)
        for drafter in self.drafters.values():
            drafter.begin(tokens)

    def propose(self, tokens: Sequence[int], *, room: int, constraint: Constraint | None = None) -> Draft:
        """Return the next round's draft of at most `room` tokens, as far as the constraint allows it.

        A resting round is plain decoding: it only decrements a counter. Raises InputError if a drafter returns more.
        """
        if self._rest.goes_on(tokens):
            return EMPTY_DRAFT  # self.plan stays: a resting plan is plain
        self._end_rest()
        self._tokens, self._noise.position = tokens, len(tokens)
        drafts = {drafter.name: drafter.propose(tokens, min(room, MAX_DRAFT), self._noise) for drafter in self._free}
        self.plan = plan = self.policy.plan(self._signals(drafts, room=room))
        self._rest.begin(plan, drafts.values())
        for name, offered in drafts.items():
            if len(offered) and (offered.parents is None or is_chain(offered.parents)):
                self._offers.add(name, offered, at=len(tokens))
        self._round = _Round(limit=min(plan.draft_max, room))
        if self._round.limit <= 0:
            return EMPTY_DRAFT
        draft = self._drafted(plan.drafter or next(iter(self.drafters)), drafts, self._round)
        if constraint is not None and len(draft):
            from .constraint import allowed_draft  # late: few answers have one

            draft = allowed_draft(constraint, draft)
            if not len(draft):
                self.plan = replace(plan, reason="the grammar allows no draft")
        return draft

    def observe(self, tokens: Sequence[int], verdict: Verdict) -> None:
        """Report a round to the drafters, if they were asked; `tokens` end with the tokens it emitted."""
        if self._round is not None:
            for drafter in self.drafters.values():
                drafter.observe(tokens, verdict)

    def spent(self, verdict: Verdict, *, pass_seconds: float, host_seconds: float) -> None:
        """Report a round's cost to the policy: the target's forward pass, and host overhead without model drafting."""
        if (round := self._round) is None:
            self._rest.spent.append((pass_seconds, host_seconds))
            return
        self._round, drafted = None, len(verdict.draft)
        cost = RoundCost(
            width=1 + drafted,
            pass_seconds=pass_seconds,
            host_seconds=max(0.0, host_seconds + self._learning_seconds - round.draft_seconds),
            drafter=round.drafter,
            drafted=drafted,
            accepted=verdict.accepted,
            read=round.read,
            draft_seconds=round.draft_seconds,
            at_once=verdict.draft.at_once,
            match=verdict.draft.match,
            cut=round.returned - drafted,
            stopped=self.plan.floor > 0
            and round.returned < (verdict.draft.at_once or round.limit)
            and verdict.outcome is not Outcome.ENDED,
        )
        started = self.clock()
        self.policy.observe(cost, self._offers.settle(self._tokens))
        self._learning_seconds = self.clock() - started

    def close(self) -> None:
        """Close the drafters, even if one of them fails. Idempotent. A running generation continues without drafts."""
        self._rest.left = inf
        with ExitStack() as closing:
            for drafter in self.drafters.values():
                closing.callback(drafter.close)
            self._end_rest()

    def _drafted(self, name: str, offered: dict[str, Draft], round: _Round) -> Draft:
        """Return the draft of the round's drafter. One with a model is timed: it is engine time, not host overhead."""
        if (drafter := self.drafters.get(name)) is None:
            raise InputError(f"the policy chose the drafter {name!r}; the session has {', '.join(self.drafters)}")
        if name in offered:
            draft = offered[name].cut(round.limit)
        else:
            self._noise.position = len(self._tokens)
            round.read = drafter.unread(self._tokens)
            started = self.clock()
            draft = drafter.propose(self._tokens, round.limit, self._noise, self.plan)
            if not drafter.free:
                round.draft_seconds = self.clock() - started
        round.returned = len(draft)
        if round.returned > round.limit:
            raise InputError(
                f"the drafter {name!r} proposed {round.returned} tokens where at most {round.limit} are allowed"
            )
        if round.returned or round.draft_seconds:
            round.drafter = name
        if not round.returned:
            self.plan = replace(self.plan, reason=f"no proposal from {name}")
        return replace(draft, source=name) if draft.source == EMPTY_DRAFT.source else draft

    def _end_rest(self) -> None:
        """Report a finished rest to the policy."""
        if (cost := self._rest.cost()) is not None:
            self.policy.observe(cost, self._offers.settle(self._tokens))

    def _signals(self, drafts: dict[str, Draft], *, room: int) -> Signals:
        models = (drafter for drafter in self.drafters.values() if not drafter.free)
        return Signals(
            context_tokens=len(self._tokens),
            remaining_tokens=room + 1,
            offers=tuple(Offer(name, len(draft), draft.match) for name, draft in drafts.items() if len(draft)),
            unread=tuple((drafter.name, drafter.unread(self._tokens)) for drafter in models),
        )
