"""The prompts of a bench run: the package's own, or a file of the user's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.resources import files

from edgedecode import InputError
from edgedecode.text.prompts import Prompt, parse_prompts, read_prompts

__all__ = ["Prompt", "bundled_prompts", "choose", "read_prompts"]


def bundled_prompts() -> list[Prompt]:
    """Return the held-out prompts that come with the package."""
    return parse_prompts(files(__package__).joinpath("prompts.jsonl").read_bytes(), "the bundled prompts")


def choose(prompts: Sequence[Prompt], *, families: Iterable[str] = (), per_family: int) -> list[Prompt]:
    """Keep the first `per_family` prompts of each family asked for (none: of all). Raises InputError."""
    if per_family < 1:
        raise InputError(f"--per-family {per_family} is out of range: 1 or more")
    known = list(dict.fromkeys(prompt.family for prompt in prompts))
    wanted = list(families) or known
    if missing := [family for family in wanted if family not in known]:
        raise InputError(f"there are no prompts of family {', '.join(missing)}; there are: {', '.join(known)}")
    return [prompt for family in wanted for prompt in [p for p in prompts if p.family == family][:per_family]]
