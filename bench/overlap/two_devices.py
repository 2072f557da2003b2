"""Shows where drafting on a second device would pay if it overlapped verification, from a pack's recorded costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgedecode import CapabilityError
from edgedecode.plot_file import write_plot
from edgedecode.schedule.experience import Experience
from edgedecode.schedule.overlap import OverlapPlan, TwoDevices, best_overlap
from edgedecode.schedule.prices import Prices

from .simulation import Text, simulated_seconds

__all__ = ["ACCEPTED", "STEPS", "Gain", "measured_gains", "recorded_passes", "write_overlap_chart"]

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.8)
"""Costs of a draft step on its own device, in target steps."""
ACCEPTED = (0.5, 0.6, 0.7, 0.8, 0.9)
SECOND = 0.18
"""Chance that the draft model's second choice is right where its first is wrong: of 336 such tokens of the bundled
target's greedy answers to 120 prompts, 59."""
LONGEST = 16
TOKENS, SEEDS = 2000, range(3)


@dataclass(frozen=True, slots=True)
class Gain:
    """The plan for a draft step's cost and an acceptance rate, and its simulated speed-up over rounds without overlap.

    1 if overlap was not chosen.
    """

    step: float
    accepted: float
    plan: OverlapPlan
    speed_up: float


def recorded_passes(experience: Experience, *, context_tokens: int) -> Callable[[int], float]:
    """Return the cost of a target pass by its rows, in baseline steps, as it was learnt on this device.

    Raises CapabilityError if no session has run.
    """
    table = experience.costs.table(context_tokens)
    if table.step is None:
        raise CapabilityError("no costs of this pack are recorded here yet: run `edgedecode bench --calibrate` first")
    prices = Prices(experience.costs, table, table.step)
    return lambda rows: prices.round(rows - 1) if rows > 1 else 1.0


def measured_gains(passes: Callable[[int], float], *, advance: Callable[[], None]) -> Sequence[Gain]:
    """Simulate each cost of a draft step with each acceptance rate; `advance` is called after each."""
    gains = []
    for step in STEPS:
        for accepted in ACCEPTED:
            gains.append(_gain(TwoDevices(passes, step), accepted))
            advance()
    return gains


def _gain(devices: TwoDevices, accepted: float) -> Gain:
    alive = [accepted**count for count in range(1, LONGEST + 2)]
    plan, text = best_overlap(devices, alive, second=SECOND), Text(accepted, SECOND)
    if not plan.guesses:
        return Gain(devices.step, accepted, plan, 1.0)
    plain = min(  # the best draft length in hindsight
        _seconds(devices, replace(plan, length=length, guesses=0), text) for length in range(1, LONGEST + 1)
    )
    return Gain(devices.step, accepted, plan, plain / _seconds(devices, plan, text))


def _seconds(devices: TwoDevices, plan: OverlapPlan, text: Text) -> float:
    return sum(simulated_seconds(devices, plan, text, tokens=TOKENS, seed=seed) for seed in SEEDS)


def write_overlap_chart(path: Path, gains: Sequence[Gain], *, conditions: str) -> None:
    """Write a chart of the gains. Raises InputError if the file cannot be written."""
    write_plot(path, _figure(gains, conditions=conditions))


def _figure(gains: Sequence[Gain], *, conditions: str) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure((7, 4.5), layout="constrained")
    axes = figure.subplots()
    for accepted in ACCEPTED:
        mine = [gain for gain in gains if gain.accepted == accepted]
        axes.plot([gain.step for gain in mine], [gain.speed_up for gain in mine], marker="o", label=f"{accepted:.0%}")
    axes.axhline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_xticks(STEPS, [f"{step:g}" for step in STEPS])
    axes.set_xlabel("cost of a draft step on its own device, in target steps")
    axes.set_ylabel("speed-up over rounds without overlap")
    axes.set_title("Drafting while the target verifies, simulated")
    axes.legend(title="drafts accepted")
    figure.supxlabel(conditions, fontsize="xx-small", wrap=True)
    return figure
