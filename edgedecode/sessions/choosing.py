"""Choose one of several answers to a prompt: the one that most of them agree on, or the likeliest."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import NamedTuple, TypeAlias

from edgedecode.errors import InputError
from edgedecode.sampling.log_probabilities import TokenLogprob

Reader: TypeAlias = Callable[[str], str | None]
"""Returns what a text says that is voted on; None: nothing."""
_NUMBER = re.compile(r"-?[0-9][0-9,]*(?:\.[0-9]+)?")


class Vote(NamedTuple):
    """chosen: the first text with the most frequent answer. votes: for each answer, the most frequent first."""

    chosen: int
    votes: dict[str, int]


def last_number(text: str) -> str | None:
    """Return the last number in a text, however it is written: 1,200.0 as 1200."""
    found = _NUMBER.findall(text)
    return format(Decimal(found[-1].replace(",", "")).normalize(), "f") if found else None


def pattern_reader(pattern: str) -> Reader:
    """Return a reader of a regular expression's last match, or of its first group. Raises InputError."""
    try:
        compiled = re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise InputError(f"the pattern {pattern[:60]!r} is no regular expression: {error}") from None

    def read(text: str) -> str | None:
        found = [*compiled.finditer(text)]
        said = found[-1].group(min(1, compiled.groups)) if found else None
        return None if said is None else said.strip()

    return read


def vote(texts: Sequence[str], read: Reader = last_number) -> Vote | None:
    """Let the texts vote for what they say; None: none of them says anything. Among equals the earliest text wins."""
    said = [read(text) for text in texts]
    votes = dict(Counter(each for each in said if each is not None).most_common())
    return Vote(said.index(next(iter(votes))), votes) if votes else None


def likeliest(logprobs: Sequence[Sequence[TokenLogprob]]) -> int:
    """Return the answer whose tokens have the largest mean log probability; the earliest of equal ones."""
    means = [sum(token.logprob for token in each) / len(each) if each else -float("inf") for each in logprobs]
    return max(range(len(means)), key=means.__getitem__)
