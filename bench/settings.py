"""Settings of a bench run: prompts, arms, repetitions."""

from dataclasses import dataclass, field

from edgedecode import SamplingOptions
from edgedecode.structured.grammar import Grammar
from edgedecode.text.prompts import Prompt


@dataclass(frozen=True, slots=True)
class Arm:
    """A way to decode: a drafter at a draft length. None leaves the drafter or the length to the scheduler."""

    drafter: str | None
    length: int | None

    @property
    def scheduled(self) -> bool:
        return self.length is None

    def __str__(self) -> str:
        if self.scheduled:
            return "scheduled"
        return "plain" if self.length == 0 else f"{self.drafter} {self.length}"


PLAIN = Arm("none", 0)
SCHEDULED = Arm(None, None)


@dataclass(frozen=True, slots=True)
class Settings:
    """One bench run."""

    prompts: tuple[Prompt, ...]
    drafters: tuple[str, ...]
    lengths: tuple[int, ...]
    repetitions: int
    max_tokens: int
    context: int
    """Positions of each session's KV cache."""
    fixed: bool = True
    """Whether fixed drafters and lengths are measured in addition to plain decoding and the scheduler."""
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    seed: int = 0
    adapter: tuple[str, float] | None = None
    """Name and scale of the adapter that answers."""
    grammar: Grammar | None = None

    @property
    def families(self) -> tuple[str, ...]:
        """The families, in the order of the prompts."""
        return tuple(dict.fromkeys(prompt.family for prompt in self.prompts))

    def of_family(self, family: str) -> list[Prompt]:
        return [prompt for prompt in self.prompts if prompt.family == family]


def arms_of(settings: Settings) -> tuple[Arm, ...]:
    """Return plain decoding, the scheduler, and if `settings.fixed` every drafter at every length."""
    fixed = [Arm(drafter, length) for drafter in settings.drafters for length in settings.lengths]
    return PLAIN, SCHEDULED, *(fixed if settings.fixed else ())
