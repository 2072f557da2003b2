"""Reads the prompts of a completion: texts and token ids."""

from typing import Annotated, TypeAlias

from msgspec import Meta

from edgedecode import InputError

_MOST_PROMPTS = 2048
"""As OpenAI's limit."""
Prompt: TypeAlias = str | tuple[int, ...]
PromptField: TypeAlias = str | Annotated[list[str | int | list[int]], Meta(min_length=1)]


def read_prompts(given: PromptField) -> tuple[Prompt, ...]:
    """Return the prompts of a text, of token ids, or of a list of one of these. Raises InputError."""
    if isinstance(given, str):
        return (given,)
    if ids := _ids(given):
        return (ids,)
    if len(given) > _MOST_PROMPTS:
        raise InputError(f"prompt has {len(given)} texts, the most is {_MOST_PROMPTS}")
    found: list[Prompt] = []
    for number, each in enumerate(given):
        if isinstance(each, int) or type(each) is not type(given[0]):
            raise InputError("prompt must be a text, token ids, a list of texts, or a list of lists of token ids")
        if not each:
            raise InputError(f"prompt[{number}] is empty: a prompt has at least one token")
        found.append(each if isinstance(each, str) else tuple(each))
    return tuple(found)


def _ids(given: list[str | int | list[int]]) -> tuple[int, ...]:
    """Return the ids that a list consists of; empty: it is none of ids."""
    ids = tuple(each for each in given if isinstance(each, int))
    return ids if len(ids) == len(given) else ()
