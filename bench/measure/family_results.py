"""The figures of a bench run by family and arm, JSON-serialisable with `dataclasses.asdict`."""

from dataclasses import dataclass

from edgedecode.decoding.stats import DrafterCount

from ..settings import Arm


@dataclass(frozen=True, slots=True)
class ArmResult:
    """One drafter at one length on one family, or the scheduler (drafter or length None).

    `speed_up` is plain decoding's seconds / this arm's seconds after the first token, the median over repetitions, on
    the prompts whose text equals plain decoding's; None if there are none. `speed_ups` holds all repetitions, sorted.
    The `whole_…` figures are for full requests, with prefill. `divergent` counts the prompts with another text. All
    other figures are for the same prompts as `speed_up`, or for all prompts if it is None.
    """

    drafter: str | None
    length: int | None
    speed_up: float | None
    speed_ups: tuple[float, ...]
    whole_speed_up: float | None
    whole_speed_ups: tuple[float, ...]
    first_token_seconds: float
    """Time to first token: the median over repetitions of the mean over turns."""
    tokens_per_second: float
    acceptance_length: float
    """Tokens per target pass after prefill, the target's own included."""
    rounds: int
    """Rounds of all repetitions, without prefill."""
    proposed: int
    accepted: int
    drafters: dict[str, DrafterCount]
    """The most used drafter first."""
    plain_rounds: dict[str, int]
    """Rounds without a draft, by reason."""
    divergent: int

    @property
    def name(self) -> str:
        return str(Arm(self.drafter, self.length))


@dataclass(frozen=True, slots=True)
class Hindsight:
    """The best fixed arm of a family, plain decoding included, and how the scheduler compares with it.

    The ratios are the arm's seconds / the scheduler's, medians over repetitions, on the prompts where both generated
    plain decoding's text. As the maximum of noisy figures, `speed_up` is slightly too high.
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
    """Tokens of one repetition of plain decoding."""
    plain_tokens_per_second: float
    plain_first_token_seconds: float
    plain_unstable: int
    """Prompts whose plain text differs between repetitions, which points to a fault of the machine or the engine."""
    scheduled: ArmResult
    arms: tuple[ArmResult, ...]
    """The fixed arms; empty if not requested, and then there is no hindsight."""
    hindsight: Hindsight | None = None
    """None also if no prompt's texts are comparable."""

    @property
    def best(self) -> ArmResult | None:
        """The fastest fixed arm whose text equals plain decoding's on at least half of the prompts, if any."""
        measured = [arm for arm in self.arms if arm.speed_up is not None and 2 * arm.divergent <= self.prompts]
        return max(measured, key=lambda arm: arm.speed_up or 0.0, default=None)

    @property
    def all_arms(self) -> tuple[ArmResult, ...]:
        return self.scheduled, *self.arms
