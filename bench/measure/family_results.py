"""The figures of a bench run, by family and arm: values only, JSON-serialisable with `dataclasses.asdict`."""

from __future__ import annotations

from dataclasses import dataclass

from edgedecode.decoding.stats import DrafterCount, TimeSplit

from ..settings import Arm

__all__ = ["ArmResult", "FamilyResult", "Hindsight"]


@dataclass(frozen=True, slots=True)
class ArmResult:
    """One drafter at one length on one family, or the scheduler (drafter or length None).

    `speed_up` is the median over repetitions of plain seconds / this arm's seconds after the first token, over the
    prompts whose text is plain's own; None when no prompt's is. `speed_ups` are all of them, sorted. `whole_…`: of
    whole requests, the prompts' reading included. `divergent` counts the other prompts.
    Every other figure is of the same prompts as `speed_up`, of all prompts when it is None.
    """

    drafter: str | None
    length: int | None
    speed_up: float | None
    speed_ups: tuple[float, ...]
    whole_speed_up: float | None
    whole_speed_ups: tuple[float, ...]
    first_token_seconds: float
    """From the request to the first token, median of all turns' means."""
    predicted: float
    tokens_per_second: float
    acceptance_length: float
    acceptance_per_position: tuple[float, ...]
    rounds: int
    """Of all repetitions, without those that read prompts."""
    proposed: int
    accepted: int
    drafters: dict[str, DrafterCount]
    plain_rounds: dict[str, int]
    """Rounds without a draft, by why."""
    divergent: int
    host_seconds_per_round: float
    reading_share: float
    """Of the seconds, the draft model's reading of the prompt: measured, but no part of the prediction."""
    time: TimeSplit

    @property
    def wasted(self) -> int:
        """Tokens drafted for nothing."""
        return self.proposed - self.accepted

    @property
    def measured_over_predicted(self) -> float | None:
        return None if self.speed_up is None else self.speed_up / self.predicted

    @property
    def name(self) -> str:
        return str(Arm(self.drafter, self.length))


@dataclass(frozen=True, slots=True)
class Hindsight:
    """The best that one fixed choice could do on a family, plain decoding included, and how the scheduler compares.

    The ratios are medians over repetitions of its seconds / the scheduler's, on the prompts where both said what plain
    decoding says. A maximum of noisy figures is a little too high.
    """

    arm: str
    speed_up: float
    ratio: float
    whole_ratio: float


@dataclass(frozen=True, slots=True)
class FamilyResult:
    """Plain decoding, the scheduler and every fixed arm on one family."""

    family: str
    prompts: int
    tokens: int
    """Tokens of one repetition, plain."""
    plain_tokens_per_second: float
    plain_first_token_seconds: float
    plain_host_seconds_per_token: float
    plain_unstable: int
    """Prompts whose plain text was not the same in every repetition: those speak against the machine or the engine."""
    scheduled: ArmResult
    arms: tuple[ArmResult, ...]
    """The fixed ones; none where they were not asked for, and then no bound and no hindsight either."""
    bound: float | None
    """Max over drafters and k of S(k), k = 0 included."""
    bound_arm: str
    hindsight: Hindsight | None
    """None also where no prompt's texts are comparable."""

    @property
    def best(self) -> ArmResult | None:
        """The fastest fixed arm whose text was plain's own on at least half of the prompts; None: there is none."""
        measured = [arm for arm in self.arms if arm.speed_up is not None and 2 * arm.divergent <= self.prompts]
        return max(measured, key=lambda arm: arm.speed_up or 0.0, default=None)

    @property
    def all_arms(self) -> tuple[ArmResult, ...]:
        return self.scheduled, *self.arms
