"""Open a session's drafters by name, and the policy that chooses among them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from edgedecode.decoding.drafter import Drafter
from edgedecode.decoding.drafting import Drafting
from edgedecode.decoding.model import AdapterSpan, AdapterUse, LanguageModel
from edgedecode.decoding.policy import NO_DRAFTER, FixedLength, Policy
from edgedecode.decoding.stats import Stats
from edgedecode.decoding.verify import Rule
from edgedecode.drafters.source import EXPECTED, DrafterSource, DraftSetting
from edgedecode.errors import BudgetExceeded, CapabilityError, EdgeDecodeError, cause
from edgedecode.options import SessionOptions
from edgedecode.pack.entries import DRAFT_ADAPTER
from edgedecode.sampling.sampler import Noise
from edgedecode.schedule.scheduler import Scheduler, SchedulerOptions
from edgedecode.sessions.draft_models import FULL
from edgedecode.sessions.drafter_choice import WITHOUT_MODEL, instead
from edgedecode.sessions.resources import Resources
from edgedecode.sessions.target_reading import adapter_span
from edgedecode.user_notices import notice

if TYPE_CHECKING:
    from edgedecode.adapters.pack_adapters import ActiveAdapter
    from edgedecode.switching.draft_writer import DraftWriter


class SessionDrafting:
    """A session's drafters, which are released when memory is short, and opened again later.

    `drafting` is None for decoding without drafts, `switching` without entropy switching. A running answer whose
    drafters were released continues without them.
    """

    def __init__(self, shared: Resources, options: SessionOptions, setting: DraftSetting, *, noise: Noise) -> None:
        self._shared, self._options, self._setting, self._noise = shared, options, setting, noise
        self._released = False
        self._unused_adapters: set[str] = set()
        """Adapters of the draft model that it could not take, of which the user was told."""
        self._rule = None if options.details.switch is None else options.details.switch.rule
        self.switching: DraftWriter | None = None
        self.drafting = self._open(options)
        try:
            self.switching = self._open_switching()
            self._load_adapter(options.adapter)
        except BaseException:
            self.close()
            raise

    @property
    def name(self) -> str:
        """The drafters, joined by "+"; "none" for decoding without drafts."""
        return NO_DRAFTER if self.drafting is None else "+".join(self.drafting.drafters)

    @property
    def mode(self) -> str:
        """The value of `Stats.mode`: plain, auto (by the scheduler), or the names of drafters with a fixed length."""
        if self.switching is not None:
            return "switch"
        if self.drafting is None:
            return "plain"
        return self.name if self._options.fixed else "auto"

    @property
    def switches(self) -> bool:
        """Whether the draft model writes tokens now."""
        return self.switching is not None

    @property
    def draft_models(self) -> list[LanguageModel]:
        return [state.model for state in self._setting.states.used]

    def give_back(self) -> bool:
        """Close all drafters if one of them holds a draft model; return whether that was so."""
        drafters = () if self.drafting is None else self.drafting.drafters.values()
        if self.switching is None and all(drafter.free for drafter in drafters):
            return False
        self._released = True
        self._drop()
        return True

    @contextmanager
    def answering(
        self, stats: Stats, adapter: AdapterUse | None, prompt: Sequence[int], expected: Drafter | None = None
    ) -> Iterator[Drafting | None]:
        """Yield the drafters of the next answer, whose adapter the draft model keeps until the answer ends.

        stats: of the answer; receives the mode and the loads of models. adapter: what the target reads the prompt with.
        expected: a drafter for this answer, where the policy chooses among drafters.
        Raises ManifestError if the draft's adapter is damaged.
        """
        drafting = self.begin()
        stats.mode = self.mode
        name = self._draft_adapter(None if adapter is None else adapter.name)
        with ExitStack() as held:
            if drafting is not None and expected is not None:
                held.enter_context(drafting.joined(expected))
            for state in self._setting.states.used:
                if adapter is None or name is None or state.of_head:
                    state.read_with(AdapterSpan())
                    continue
                chosen: ActiveAdapter | None = None
                try:
                    choice = self._shared.drafts.adapters(state.model).choice()
                    held.callback(choice.release)
                    chosen = choice.choose(name, scale=adapter.scale)
                except (BudgetExceeded, CapabilityError) as error:
                    self._drafts_plainly(name, error)
                state.read_with(adapter_span(chosen, prompt), refused=partial(self._drafts_plainly, name))
            if self.switching is not None:
                self.switching.signals, stats.handed_over_at = stats.signals, self.switching.rule.up
            yield drafting

    def load_adapter(self, adapter: ActiveAdapter | None) -> ActiveAdapter | None:
        """Load the draft model's own adapter for the target's, which is returned, so that no answer waits for it.

        Raises ManifestError if the draft's adapter is damaged.
        """
        self._load_adapter(None if adapter is None else adapter.use.name)
        return adapter

    def begin(self) -> Drafting | None:
        """Return the drafters of the next answer; released ones are opened again as far as memory allows.

        While memory is short, only the drafter without a model is opened, or none if the options name a drafter, a
        fixed length or the ratio rule.
        """
        if not self._released:
            return self.drafting
        if self._shared.pressure.short:
            options = self._options
            explicit = options.fixed or options.drafter is not None or options.details.rule is Rule.RATIO
            if self.drafting is None and not explicit:
                details = replace(options.details, switch=None)
                self.drafting = self._open(replace(options, drafter=WITHOUT_MODEL, details=details))
            return self.drafting
        self._drop()
        try:
            self.drafting = self._open(self._options)
            self.switching = self._open_switching()
        except (BudgetExceeded, CapabilityError) as error:  # of a drafter that the options name, or of switching
            notice(f"this answer is decoded without {'drafts' if self._rule is None else 'switching'}: {error.reason}")
            return self.drafting
        wanted, opened = self._shared.choice(self._options).names, {*(self.drafting.drafters if self.drafting else ())}
        spare = instead(wanted, self._shared.preferred)
        self._released = not {*(wanted[1:] if spare in opened else wanted)} <= opened
        return self.drafting

    def close(self) -> None:
        """Close the drafters. Idempotent; a drafter that failed to close is closed again."""
        with ExitStack() as closing:
            if self.switching is not None:
                closing.callback(self.switching.close)
            if self.drafting is not None:
                self.drafting.close()

    def _load_adapter(self, target_name: str | None) -> None:
        if (name := self._draft_adapter(target_name)) is not None:
            for state in self._setting.states.used:
                with suppress(BudgetExceeded, CapabilityError):  # the next answer reports them
                    self._shared.drafts.adapters(state.model).use(name)

    def _draft_adapter(self, name: str | None) -> str | None:
        """Return the draft model's adapter for the target's adapter of this name; None: it has none."""
        own = f"{DRAFT_ADAPTER}{name}"
        return own if name is not None and own in self._shared.manifest.adapters else None

    def _drafts_plainly(self, name: str, error: EdgeDecodeError) -> None:
        """Tell the user once that an adapter of the draft model is not used."""
        if name not in self._unused_adapters:
            self._unused_adapters.add(name)
            notice(f"the draft model drafts without its adapter {name!r}: {error.reason}")

    def _drop(self) -> None:
        self.close()
        self.drafting = self.switching = None

    def _open_switching(self) -> DraftWriter | None:
        """Open the draft model as a writer, after the drafters, whose state of it may have to hold trees."""
        asked, noise = self._options.details.switch, self._setting.noise
        if asked is None or self._rule is None or noise is None:
            return None
        from edgedecode.switching.draft_writer import DraftWriter

        setting = replace(self._setting, draft_model=self._shared.draft_model(FULL))
        return DraftWriter(setting, self._rule, noise=noise)

    def _open(self, options: SessionOptions) -> Drafting | None:
        return open_drafting(self._shared, options, self._setting, noise=self._noise)


def open_drafting(
    shared: Resources, options: SessionOptions, setting: DraftSetting, *, noise: Noise
) -> Drafting | None:
    """Open the drafters for these options and their policy; None: decode without drafts. noise: only for the drafters.

    A drafter that the options name and that cannot be opened raises CapabilityError or BudgetExceeded. Any other is
    left out. The options must have been checked.
    """
    choice = shared.choice(options)
    longest = choice.draft_max
    setting = replace(setting, tree=choice.branches and shared.target.card.tree, draft_max=longest)
    drafters = _open_all(shared, choice.names, setting, required=options.drafter is not None or options.fixed)
    if not drafters:
        return None
    if options.fixed:
        return Drafting(drafters, FixedLength(longest), noise=noise, clock=shared.clock)
    try:
        scheduler = _scheduler(shared, options, drafters, longest=longest)
        return Drafting(drafters, scheduler, noise=noise, offers=True, clock=shared.clock)
    except BaseException:
        for drafter in drafters:
            drafter.close()
        raise


def _open_all(shared: Resources, names: Sequence[str], setting: DraftSetting, *, required: bool) -> list[Drafter]:
    """Open the drafters that can be opened."""
    drafters: list[Drafter] = []
    with ExitStack() as undo:
        for name in names:
            drafter = _open_one(shared, name, setting, required=required)
            spare = instead(names, shared.preferred) if name == names[0] and not required else ""
            if isinstance(drafter, str) and spare:
                drafter = _open_one(shared, spare, setting, required=False)
            if isinstance(drafter, str):
                logging.getLogger("edgedecode").info("the drafter %s is left out: %s", name, drafter)
                continue
            drafters.append(drafter)
            undo.callback(drafter.close)
        undo.pop_all()
    return drafters


def _open_one(shared: Resources, name: str, setting: DraftSetting, *, required: bool) -> Drafter | str:
    """Open a drafter, or return why it is left out."""
    loaded = shared.drafts.loaded
    try:
        source = shared.drafter_source(name)
        if source.needs_model:
            own = next((state.model for state in setting.states.used), None)  # a session drafts with one model
            setting = replace(setting, draft_model=own or shared.draft_model(name))
        return _opened(source, name, setting)
    except (BudgetExceeded, CapabilityError) as error:
        shared.drafts.keep(loaded)  # a draft model that was loaded only for this drafter
        if required:
            raise
        if isinstance(error, _FailedError):
            shared.sources.pop(name, None)  # so the user is told once
            notice(f"{error.reason}; answers do without it")
        return error.reason


class _FailedError(CapabilityError):
    """The code of a drafter failed."""


def _opened(source: DrafterSource, name: str, setting: DraftSetting) -> Drafter:
    """Open a drafter, whose code may be another package's. Raises BudgetExceeded or CapabilityError."""
    try:
        drafter = source.open(setting)
        if (own := drafter.name) != name:
            drafter.close()
            raise _FailedError(f"the drafter of {name!r} has the name {own!r}: both need the same")
    except (BudgetExceeded, CapabilityError):
        raise
    except Exception as error:
        kind = type(error).__name__
        raise _FailedError(
            f"the drafter {name!r} cannot be opened ({kind}: {cause(error)}): update its package or remove it"
        ) from error
    return drafter


def _scheduler(shared: Resources, options: SessionOptions, drafters: Sequence[Drafter], *, longest: int) -> Policy:
    ratio = options.details.rule is Rule.RATIO
    return Scheduler(
        free=[*(drafter.name for drafter in drafters if drafter.free), EXPECTED],
        models=[drafter.name for drafter in drafters if not drafter.free],
        experience=shared.experience,
        options=SchedulerOptions(draft_max=longest, floor_stop=not ratio),
    )
