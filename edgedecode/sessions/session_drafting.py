"""Opens what drafts for a session: drafters by name, and the policy that chooses among them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from edgedecode.decoding.drafter import Drafter, head_groups
from edgedecode.decoding.drafting import Drafting
from edgedecode.decoding.model import State
from edgedecode.decoding.policy import NO_DRAFTER, Policy
from edgedecode.decoding.verify import Rule
from edgedecode.drafters.source import DraftSetting
from edgedecode.errors import BudgetExceeded, CapabilityError
from edgedecode.options import TREE, SessionOptions, wants_trees
from edgedecode.pack.integrity import pack_digest
from edgedecode.sampling.sampler import Noise
from edgedecode.schedule.experience import Experience
from edgedecode.schedule.scheduler import Scheduler, SchedulerOptions
from edgedecode.schedule.trace import Recorder
from edgedecode.sessions.drafter_choice import WITHOUT_MODEL, fixed_policy
from edgedecode.sessions.resources import Resources
from edgedecode.user_notices import notice

__all__ = ["SessionDrafting", "open_drafting", "plan_state"]


class SessionDrafting:
    """What a session drafts with, which it gives back where memory is short, and opens again later.

    `drafting` is None for plain decoding. A running answer whose drafters were given back goes on plainly.
    """

    def __init__(self, shared: Resources, options: SessionOptions, setting: DraftSetting, *, noise: Noise) -> None:
        self._shared, self._options, self._setting, self._noise = shared, options, setting, noise
        self._given_back = False
        self.drafting = self._opened(options)

    @property
    def name(self) -> str:
        """The drafters, joined by "+"; "none" for plain decoding."""
        return NO_DRAFTER if self.drafting is None else "+".join(self.drafting.drafters)

    @property
    def mode(self) -> str:
        """What `Stats.mode` says: plain, scheduled, or the drafters of a fixed length."""
        if self.drafting is None:
            return "plain"
        return self.name if self._options.fixed else "scheduled"

    def give_back(self) -> bool:
        """Close drafters that hold a draft model, and those beside them; tell whether there were any."""
        if self.drafting is None or all(drafter.free for drafter in self.drafting.drafters.values()):
            return False
        self._given_back = True
        self._drop()
        return True

    def begin(self) -> Drafting | None:
        """Return what the next answer drafts with: what was given back is opened again as far as memory allows.

        While memory is short that is what needs no model; where a drafter, a length or a rule that needs the model was
        asked for, nothing.
        """
        if not self._given_back:
            return self.drafting
        if self._shared.pressure.short:
            options = self._options
            chosen = options.fixed or options.drafter is not None or options.rule is Rule.RATIO
            if self.drafting is None and not chosen:
                self.drafting = self._opened(replace(options, drafter=WITHOUT_MODEL))
            return self.drafting
        self._drop()
        try:
            self.drafting = self._opened(self._options)
        except (BudgetExceeded, CapabilityError) as error:  # what was asked for by name
            notice(f"this answer is decoded plainly: {error.reason}")
            return None
        wanted = self._shared.choice(self._options).names
        self._given_back = self.drafting is None or not self.drafting.drafters.keys() >= {*wanted}
        return self.drafting

    def close(self) -> None:
        """Close the drafters. Idempotent; one that failed to close is asked again."""
        if self.drafting is not None:
            self.drafting.close()

    def _drop(self) -> None:
        self.close()
        self.drafting = None
        if self._options.trace is not None:  # another scheduler would begin the file again
            notice(f"the trace {self._options.trace} ends here: drafts were released to save memory")
            self._options = replace(self._options, trace=None)

    def _opened(self, options: SessionOptions) -> Drafting | None:
        return open_drafting(self._shared, options, self._setting, noise=self._noise)


def open_drafting(
    shared: Resources, options: SessionOptions, setting: DraftSetting, *, noise: Noise
) -> Drafting | None:
    """Open the drafters these options mean and their policy; None: plain decoding. `noise` is the drafters' own.

    A drafter that was asked for by name and cannot be had raises CapabilityError or BudgetExceeded; any other is left
    out, with a notice where it is the trees that were asked for. The options were checked.
    """
    choice = shared.choice(options)
    trees = wants_trees(options) and _reads_trees(shared, options)
    longest = choice.draft_max
    setting = replace(setting, tree=trees, draft_max=longest)
    fixed = fixed_policy(longest, trees=trees) if options.fixed else None
    left_out: dict[str, str] = {}
    asked = options.drafter is not None or options.fixed
    drafters = _opened(shared, choice.names, setting, asked=asked, left_out=left_out)
    if trees and TREE in left_out:
        notice(f"drafts are not the draft model's trees ({left_out[TREE]}); {_remaining(drafters)}")
    if not drafters:
        return None
    if fixed is not None:
        return Drafting(drafters, fixed, noise=noise, chains_only=options.reproducible)
    try:
        return Drafting(drafters, _scheduler(shared, options, drafters, longest=longest), noise=noise, offers=True)
    except BaseException:
        for drafter in drafters:
            drafter.close()
        raise


def plan_state(shared: Resources, options: SessionOptions, capacity: int, *, rows: int) -> tuple[State, SessionOptions]:
    """Make the target's state, and return it with the options that it can serve: chains where trees do not fit.

    Raises BudgetExceeded where chains do not fit either, or nothing but trees was asked for.
    """
    if wants_trees(options) and shared.target.card.tree:
        try:
            return shared.target.new_state(capacity, rows=rows, tree=True), options
        except BudgetExceeded as error:
            if options.drafter == TREE:
                raise
            reason = str(error).partition("\n")[0]
            options = replace(options, tree=False)
        state = shared.target.new_state(capacity, rows=rows)
        notice(f"drafts are chains: trees do not fit the budget ({reason})")
        return state, options
    return shared.target.new_state(capacity, rows=rows), options


def _reads_trees(shared: Resources, options: SessionOptions) -> bool:
    """Tell whether the target can verify trees; a drafter that proposes nothing else says by itself why not."""
    if not shared.target.card.tree and options.drafter != TREE:
        notice("drafts are chains: this pack's target reads no trees")
    return shared.target.card.tree


def _opened(
    shared: Resources, names: Sequence[str], setting: DraftSetting, *, asked: bool, left_out: dict[str, str]
) -> list[Drafter]:
    """Open what can be had; `left_out` gets the reason of each other drafter."""
    drafters: list[Drafter] = []
    with ExitStack() as undo:
        for name in names:
            drafter = _open(shared, name, setting, asked=asked)
            if isinstance(drafter, str):
                logging.getLogger("edgedecode").info("the drafter %s is left out: %s", name, drafter)
                left_out[name] = drafter
                continue
            drafters.append(drafter)
            undo.callback(drafter.close)
        undo.pop_all()
    return drafters


def _remaining(drafters: Sequence[Drafter]) -> str:
    return f"drafting with {', '.join(each.name for each in drafters)}" if drafters else "decoding plainly"


def _open(shared: Resources, name: str, setting: DraftSetting, *, asked: bool) -> Drafter | str:
    """Open a drafter, or return why it is left out."""
    loaded = len(shared.drafts.loaded)
    try:
        source = shared.drafter_source(name)
        if not asked and source.needs_model and shared.drafts.needs_another(source.needs):
            return "it needs a second draft model here"
        model = shared.drafts.offering(source.needs) if source.needs_model else None
        return source.open(replace(setting, draft_model=model))
    except (BudgetExceeded, CapabilityError) as error:
        shared.drafts.keep(loaded)  # a draft model that nothing can be drafted with is not held
        if asked:
            raise
        return error.reason


def _scheduler(shared: Resources, options: SessionOptions, drafters: Sequence[Drafter], *, longest: int) -> Policy:
    experience = shared.experience
    if options.trace is not None:  # a copy of its own: what other sessions learn is not in the trace
        experience = Experience.from_dict(experience.as_dict())
    scheduler = Scheduler(
        free=[drafter.name for drafter in drafters if drafter.free],
        models=[drafter.name for drafter in drafters if not drafter.free],
        heads=[[head.name for head in group] for group in head_groups(drafters)],
        experience=experience,
        options=SchedulerOptions(draft_max=longest, floor_stop=options.rule is not Rule.RATIO),
    )
    return scheduler if options.trace is None else Recorder(scheduler, options.trace, pack=pack_digest(shared.manifest))
