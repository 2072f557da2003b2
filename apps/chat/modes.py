"""The modes of a chat: ways to make an answer, each the options of a session."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from edgedecode import CapabilityError, EdgeDecodeError, InputError, Pair, SessionOptions, SwitchOptions
from edgedecode.decoding.policy import NO_DRAFTER
from edgedecode.engines.registry import drafter_names
from edgedecode.pack.integrity import models_digest

SCHEDULED, PLAIN, SWITCH, FIXED = "scheduled", "plain", "switch", "fixed"
TREE_NODES = 8
"""Size of draft trees where the chat began without a fixed length."""


@dataclass(frozen=True, slots=True)
class Mode:
    """A way to make answers."""

    name: str
    help: str
    options: SessionOptions


def chat_modes(pair: Pair, start: SessionOptions) -> dict[str, Mode]:
    """Return the modes that a chat may choose, by name. start: the options it began with, whose other values stay."""
    return {mode.name: mode for mode in _modes(pair, start)}


def chosen_mode(name: str, pair: Pair, start: SessionOptions) -> Mode:
    """Return the mode of this name. Raises InputError for an unknown one, CapabilityError for one without calibration.

    Switching without a calibrated curve has an unknown quality: only the options that start a chat may ask for it.
    """
    modes = chat_modes(pair, start)
    if name not in modes:
        raise InputError(f"there is no mode {name!r}; there are: {', '.join(modes)}")
    curve = pair.manifest.switching
    calibrated = curve is not None and curve.models == models_digest(pair.manifest)
    if name == SWITCH and start.switch is None and not calibrated:
        raise CapabilityError(
            "the pack is not calibrated for switching: run `edgedecode calibrate`, or start with --mode switch "
            "--switch-threshold H"
        )
    return modes[name]


def mode_of(options: SessionOptions) -> str:
    """Return the name of the mode that these options are."""
    if options.switch is not None:
        return SWITCH
    if options.drafter == NO_DRAFTER or options.draft_max == 0:
        return PLAIN
    if options.drafter is not None:
        return options.drafter
    return FIXED if options.fixed else SCHEDULED


def _modes(pair: Pair, start: SessionOptions) -> Iterator[Mode]:
    clear = replace(start, drafter=None, draft_max=None, switch=None)
    yield Mode(SCHEDULED, "each round drafts as is fastest, or not at all", clear)
    if mode_of(start) == FIXED:
        yield Mode(FIXED, "drafts of the fixed length that the chat started with", start)
    yield Mode(PLAIN, "the target alone, no drafts", replace(clear, drafter=NO_DRAFTER))
    if "draft" in pair.manifest.models and not start.reproducible:
        switch = start.switch or SwitchOptions()
        yield Mode(SWITCH, "the draft model writes what it is sure of, unverified", replace(clear, switch=switch))
    length = start.draft_max or None
    for name in drafter_names():
        if _can_draft(name, pair):
            nodes = TREE_NODES if pair.drafter_source(name).branches else None
            options = replace(clear, drafter=name, draft_max=length or nodes)
            yield Mode(name, f"only the drafter {name} drafts", options)


def _can_draft(name: str, pair: Pair) -> bool:
    """Return whether a drafter can be loaded and has the draft model that it needs."""
    with suppress(EdgeDecodeError):
        return "draft" in pair.manifest.models or not pair.drafter_source(name).needs_model
    return False
