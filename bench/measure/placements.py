"""Measures where a pack's two models run fastest on this device: every pair of engines and providers."""

from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from edgedecode import EdgeDecodeError
from edgedecode.apps.devices.command import probe
from edgedecode.apps.verb_options import open_pair
from edgedecode.engines.registry import RUNTIMES, installed
from edgedecode.engines.wrappers.kept_placement import Placement
from edgedecode.engines.wrappers.placed import Place
from edgedecode.errors import cause

from ..choices import Prompts, settings_of
from ..settings import SCHEDULED
from .timed_answers import Requests


@dataclass(slots=True)
class MeasuredPlacement:
    """A placement's seconds per token of full requests, one figure per repetition; or why it cannot run the pack."""

    placement: Placement
    seconds: list[float] = field(default_factory=list)
    refusal: str = ""

    @property
    def tokens_per_second(self) -> float:
        """The median over the repetitions; 0 if it was refused."""
        return 1 / median(self.seconds) if self.seconds and not self.refusal else 0.0


def candidates(*, draft: bool) -> Sequence[Placement]:
    """Return every pair of available devices, those with both models on one device first.

    draft: whether the pack has one. Emulated devices, whose speed says nothing, are left out.
    """
    devices = [
        device
        for runtime in installed(RUNTIMES)
        for device in probe(runtime)
        if device.available and not device.emulated
    ]
    places = [Place(device.runtime, device.provider) for device in devices]
    mixed = [Placement(target, other) for target in places for other in places if other != target and draft]
    return [*map(Placement, places), *mixed]


def measure_placements(
    arguments: Namespace, prompts: Prompts, placements: Sequence[Placement], *, advance: Callable[[], None]
) -> Sequence[MeasuredPlacement]:
    """Answer the prompts with the scheduler at each placement, in turns, and return them fastest first.

    One placement is open at a time: the memory of one suffices. Loading is not counted.
    """
    found = [MeasuredPlacement(placement) for placement in placements]
    for repetition in range(arguments.repetitions):
        start = repetition % len(found)
        for each in (*found[start:], *found[:start]):  # each time another one goes first
            if not each.refusal:
                try:
                    each.seconds.append(_seconds_per_token(arguments, each.placement, prompts))
                except EdgeDecodeError as error:
                    each.refusal = cause(error)
            advance()
    return sorted(found, key=lambda each: -each.tokens_per_second)


def _seconds_per_token(arguments: Namespace, placement: Placement, prompts: Prompts) -> float:
    draft_on = None if placement.draft is None else f"{placement.draft.runtime}:{placement.draft.provider}"
    place = {"runtime": placement.target.runtime, "provider": placement.target.provider, "draft_on": draft_on}
    with open_pair(Namespace(**vars(arguments) | place)) as pair:
        pair.keep_experience(None)
        settings = settings_of(arguments, pair, prompts)
        requests = Requests(pair, settings)
        requests.warm_up(prompts.others)
        runs = [requests.answer(prompt, SCHEDULED) for prompt in settings.prompts]
    return sum(run.whole_seconds for run in runs) / sum(len(run.tokens) for run in runs)
