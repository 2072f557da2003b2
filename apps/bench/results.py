"""The figures of a bench run, by family and arm: values only, JSON-serialisable with `dataclasses.asdict`."""

from __future__ import annotations

from dataclasses import dataclass

from edgedecode.stats import TimeSplit

__all__ = ["ArmResult", "FamilyResult"]


@dataclass(frozen=True, slots=True)
class ArmResult:
    """One drafter at one length on one family.

    `speed_up` is the median over repetitions of plain seconds / this arm's seconds, over the prompts whose text is
    plain's own; None when no prompt's is. `speed_ups` are all of them, sorted. `divergent` counts the other prompts.
    Every other figure is of the same prompts as `speed_up`, of all prompts when it is None.
    """

    drafter: str
    length: int
    speed_up: float | None
    speed_ups: tuple[float, ...]
    predicted: float
    tokens_per_second: float
    acceptance_length: float
    acceptance_per_position: tuple[float, ...]
    proposed: int
    accepted: int
    divergent: int
    host_seconds_per_round: float
    reading_share: float
    """Of the seconds, the draft model's reading of the prompt: measured, but no part of the prediction."""
    time: TimeSplit

    @property
    def measured_over_predicted(self) -> float | None:
        return None if self.speed_up is None else self.speed_up / self.predicted

    @property
    def name(self) -> str:
        return f"{self.drafter} {self.length}"


@dataclass(frozen=True, slots=True)
class FamilyResult:
    """Plain decoding and every arm on one family. `bound`: max over drafters and k of S(k), k = 0 included."""

    family: str
    prompts: int
    tokens: int
    """Tokens of one repetition, plain."""
    plain_tokens_per_second: float
    plain_host_seconds_per_token: float
    plain_unstable: int
    """Prompts whose plain text was not the same in every repetition: those speak against the machine or the engine."""
    bound: float
    bound_arm: str
    arms: tuple[ArmResult, ...]

    @property
    def best(self) -> ArmResult | None:
        """The fastest arm whose text was plain's own on at least half of the prompts; None when there is none."""
        measured = [arm for arm in self.arms if arm.speed_up is not None and 2 * arm.divergent <= self.prompts]
        return max(measured, key=lambda arm: arm.speed_up or 0.0, default=None)
