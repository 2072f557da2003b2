"""What a bench run measures: prompts, arms, repetitions. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from edgedecode import InputError

from .prompts import Prompt

__all__ = ["PLAIN", "Arm", "Settings", "arms_of"]


@dataclass(frozen=True, slots=True)
class Arm:
    """A way to decode: a drafter at one draft length."""

    drafter: str
    length: int

    def __str__(self) -> str:
        return "plain" if self.length == 0 else f"{self.drafter} {self.length}"


PLAIN = Arm("none", 0)


@dataclass(frozen=True, slots=True)
class Settings:
    """One bench run. Raises InputError for numbers out of range."""

    prompts: tuple[Prompt, ...]
    drafters: tuple[str, ...]
    lengths: tuple[int, ...]
    repetitions: int
    max_tokens: int
    context: int
    """Positions of every session's state."""

    def __post_init__(self) -> None:
        for name, value, most in (
            ("--repetitions", self.repetitions, 1000),
            ("--max-tokens", self.max_tokens, 10**6),
            *(("--lengths", length, 64) for length in self.lengths),
        ):
            if not 1 <= value <= most:
                raise InputError(f"{name} {value} is out of range: 1 to {most}")

    @property
    def families(self) -> tuple[str, ...]:
        """The families in the prompts' order."""
        return tuple(dict.fromkeys(prompt.family for prompt in self.prompts))

    def of_family(self, family: str) -> list[Prompt]:
        return [prompt for prompt in self.prompts if prompt.family == family]


def arms_of(settings: Settings) -> tuple[Arm, ...]:
    """Return plain decoding and every drafter at every length."""
    return PLAIN, *(Arm(drafter, length) for drafter in settings.drafters for length in settings.lengths)
