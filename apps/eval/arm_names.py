"""Names of arms, the ways in which `eval --tasks` answers: target, draft, verified, switch:0.97, target+ADAPTER."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Sequence
from dataclasses import dataclass, replace

from edgedecode import InputError, SamplingOptions, SessionOptions, SwitchOptions
from edgedecode.commands import name_list, real_number, scaled_name
from edgedecode.decoding.policy import NO_DRAFTER
from edgedecode.errors import CapabilityError
from edgedecode.pack.manifest import Manifest

from ..tasks.arms import DRAFT_ALONE

__all__ = ["Arm", "arm_list", "checked_arms", "default_arms"]

TARGET, DRAFT, VERIFIED, SWITCH = "target", "draft", "verified", "switch"


@dataclass(frozen=True, slots=True)
class Arm:
    """One way of answering. name: as it was given, with its adapter."""

    name: str
    kind: str
    switch: SwitchOptions | None = None
    adapter: tuple[str, float] | None = None

    @property
    def needs_draft(self) -> bool:
        return self.kind in (DRAFT, SWITCH)

    def options(self, sampling: SamplingOptions, *, seed: int | None) -> SessionOptions:
        """Return the options of a session that answers in this way."""
        adapter, scale = self.adapter or (None, 1.0)
        return SessionOptions(
            sampling=sampling,
            seed=seed,
            drafter=NO_DRAFTER if self.kind == TARGET else None,
            switch=self.switch,
            adapter=adapter,
            adapter_scale=scale,
        )


def arm_list(text: str) -> list[Arm]:
    """Read the value of --arms. Raises ArgumentTypeError that says what is expected."""
    arms = [_arm(name) for name in name_list(text)]
    names = [arm.name for arm in arms]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ArgumentTypeError(f"the arm {twice} is named twice")
    return arms


def _arm(name: str) -> Arm:
    base, plus, adapter = name.partition("+")
    used = scaled_name(adapter) if plus else None
    try:
        if base in (TARGET, VERIFIED):
            return Arm(name, base, adapter=used)
        if base == DRAFT and not plus:
            return Arm(name, base, DRAFT_ALONE)
        if base == SWITCH:
            return Arm(name, SWITCH, SwitchOptions(), used)
        if base.startswith(f"{SWITCH}:"):
            return Arm(name, SWITCH, SwitchOptions(quality=real_number(base.removeprefix(f"{SWITCH}:"))), used)
        if base.startswith(f"{SWITCH}@"):
            return Arm(name, SWITCH, SwitchOptions(threshold=real_number(base.removeprefix(f"{SWITCH}@"))), used)
    except InputError as error:
        raise ArgumentTypeError(f"{name[:60]}: {error}") from None
    raise ArgumentTypeError(
        f"no arm is called {name[:60]!r}: there are target, draft, verified, switch, switch:QUALITY and "
        "switch@THRESHOLD, each except draft also with +ADAPTER"
    )


def default_arms(manifest: Manifest) -> list[Arm]:
    """Return the arms of a pack where --arms is not given."""
    return arm_list("target,draft,verified" if "draft" in manifest.models else "target,verified")


def checked_arms(arms: Sequence[Arm], manifest: Manifest, *, adapter: tuple[str, float] | None) -> list[Arm]:
    """Return the arms, those without an adapter of their own with this one. Raises CapabilityError, ManifestError."""
    if "draft" not in manifest.models and (names := [arm.name for arm in arms if arm.needs_draft]):
        raise CapabilityError(f"the pack {manifest.name!r} has no draft model: leave out the arms {', '.join(names)}")
    if adapter is not None:
        arms = [arm if arm.kind == DRAFT or arm.adapter else replace(arm, adapter=adapter) for arm in arms]
    for used in {arm.adapter[0] for arm in arms if arm.adapter}:
        manifest.located_adapter(used)
    return list(arms)
