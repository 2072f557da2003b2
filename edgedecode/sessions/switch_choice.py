"""Choose a session's switching rule: from a threshold, or from the pack's calibrated curve."""

from dataclasses import replace

from edgedecode.options import DEFAULT_QUALITY, SessionOptions, SwitchOptions
from edgedecode.pack.entries import DRAFT
from edgedecode.pack.integrity import models_digest
from edgedecode.pack.manifest import Manifest
from edgedecode.switching.rule import SwitchRule
from edgedecode.user_notices import notice

from .drafter_choice import check_switching

CAREFUL = SwitchRule(up=0.05)
"""The rule of a pack without a curve: entropy in nats, low enough that nearly every other token is the target's."""
ALWAYS_TARGET = 0.0
"""At this threshold the target writes every token."""


def with_switch_rule(options: SessionOptions, manifest: Manifest) -> SessionOptions:
    """Return the options with the rule that switching follows; without switching if the target writes every token.

    The target alone, with verified drafts, is then faster. Raises as `check_switching`, before a notice.
    """
    if options.details.switch is None:
        return options
    check_switching(options, has_draft=DRAFT in manifest.models)
    rule = switch_rule(options.details.switch, manifest)
    switch = None if rule.up <= ALWAYS_TARGET else SwitchOptions(rule=rule)
    return replace(options, details=replace(options.details, switch=switch))


def switch_rule(asked: SwitchOptions, manifest: Manifest) -> SwitchRule:
    """Return the rule for these options; a missing or foreign curve, or one that lacks the quality, gives a notice."""
    if asked.rule is not None:
        return asked.rule
    if asked.threshold is not None:
        return SwitchRule(up=asked.threshold)
    curve, quality = manifest.switching, DEFAULT_QUALITY if asked.quality is None else asked.quality
    if curve is None or curve.models != models_digest(manifest):
        reason = "has no switching curve" if curve is None else "has a switching curve of other models"
        notice(
            f"{manifest.name} {reason}, so its quality is unknown: switching at an entropy of {CAREFUL.up} nats; "
            f"`edgedecode calibrate` measures the curve"
        )
        return CAREFUL
    point = curve.threshold(quality)
    if point is None:
        notice(f"no measured threshold keeps {quality:.0%} of the target's accuracy: the target writes all tokens")
    up = ALWAYS_TARGET if point is None else point.up
    return SwitchRule(up=up, signal=curve.signal)
