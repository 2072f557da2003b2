"""The prompts of a bench run: the package's own, or a file in our format or Spec-Bench's. Knows no model."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from edgedecode import InputError, Message

from ..text import checked_text, decoded_text

__all__ = ["Prompt", "bundled_prompts", "choose", "read_prompts"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation to be answered: what was said before, and the user's turns, answered one after the other."""

    family: str
    history: tuple[Message, ...]
    turns: tuple[str, ...]


def bundled_prompts() -> list[Prompt]:
    """Return the held-out prompts that come with the package."""
    return _parse(files(__package__).joinpath("prompts.jsonl").read_bytes(), "the bundled prompts")


def read_prompts(path: Path) -> list[Prompt]:
    """Read a jsonl file with `family` and `messages`, or Spec-Bench's `category` and `turns`. InputError or OSError."""
    return _parse(path.read_bytes(), str(path))


def choose(prompts: Sequence[Prompt], *, families: Iterable[str] = (), per_family: int) -> list[Prompt]:
    """Keep the first `per_family` prompts of each family asked for (none: of all). Raises InputError."""
    if per_family < 1:
        raise InputError(f"--per-family {per_family} is out of range: 1 or more")
    known = list(dict.fromkeys(prompt.family for prompt in prompts))
    wanted = list(families) or known
    if missing := [family for family in wanted if family not in known]:
        raise InputError(f"there are no prompts of family {', '.join(missing)}; there are: {', '.join(known)}")
    return [prompt for family in wanted for prompt in [p for p in prompts if p.family == family][:per_family]]


def _parse(data: bytes, name: str) -> list[Prompt]:
    lines = enumerate(decoded_text(data, name).split("\n"), start=1)
    prompts = [_prompt(line, f"{name}, line {number}") for number, line in lines if line.strip()]
    if not prompts:
        raise InputError(f"{name} holds no prompts")
    return prompts


def _prompt(line: str, where: str) -> Prompt:
    try:
        value: object = json.loads(line)
    except (ValueError, RecursionError) as error:  # ValueError: no JSON, or a number of 5000 digits
        raise InputError(f"{where} is not JSON: {' '.join(str(error).split())}") from None
    if not isinstance(value, dict):
        raise InputError(f"{where} is no JSON object")
    family = value.get("family", value.get("category"))
    if not isinstance(family, str):
        raise InputError(f"{where} has neither a family nor a category")
    if "messages" in value:
        return _of_messages(family, value["messages"], where)
    turns = value.get("turns")
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) for turn in turns):
        raise InputError(f"{where} has neither messages nor turns (a list of strings)")
    return _checked(Prompt(family, (), tuple(turns)), where)


def _of_messages(family: str, value: object, where: str) -> Prompt:
    items = value if isinstance(value, list) else []
    if not items or not all(isinstance(item, dict) and isinstance(item.get("role"), str) for item in items):
        raise InputError(f"{where}: messages must be a list of objects with role and content")
    messages = [Message(item["role"], item.get("content", "")) for item in items]
    if messages[-1].role != "user":
        raise InputError(f"{where}: the last message must be the user's, not the {messages[-1].role}'s")
    return _checked(Prompt(family, tuple(messages[:-1]), (messages[-1].content,)), where)


def _checked(prompt: Prompt, where: str) -> Prompt:
    """Refuse what no tokenizer takes, and a turn that asks nothing."""
    for text in (prompt.family, *(message.content for message in prompt.history), *prompt.turns):
        checked_text(text, where)
    if not all(turn.strip() for turn in prompt.turns):
        raise InputError(f"{where} has an empty turn: give the user something to say")
    return prompt
