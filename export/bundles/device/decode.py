"""Verified speculative decoding as an app without the native library does it, and a bundle's self-test.

It goes into bundles as `selftest/decode.py`, next to `selftest/run.py`, and needs nothing but Python and numpy.
"""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]


class Model(Protocol):
    """A language model with the keys and values of the tokens that it has read."""

    context: int
    """How many tokens it can read."""

    @property
    def length(self) -> int:
        """How many tokens it has read."""

    def read(self, tokens: Sequence[int], *, scored: int) -> Logits:
        """Read tokens after the others; return the logits after each of the last `scored`, [scored, vocabulary]."""

    def crop(self, length: int) -> None:
        """Forget all tokens after the first `length`."""


class Round(NamedTuple):
    """One pass of the target: how many tokens of the text there were, the drafts, and the tokens that followed.

    `chosen` holds the target's choices, the accepted drafts first: all drafts before the last choice were right.
    """

    known: int
    drafts: tuple[int, ...]
    chosen: tuple[int, ...]


def decode(
    target: Model,
    draft: Model | None,
    prompt: Sequence[int],
    *,
    most: int,
    ends: Collection[int],
    draft_length: int = 0,
    least_chance: float = 0.0,
    choose: Callable[[Logits], int] | None = None,
) -> tuple[list[int], list[Round]]:
    """Answer a prompt with at most `most` tokens; return them and the rounds.

    The draft model proposes up to `draft_length` tokens, and stops below a chance of `least_chance`. The target reads
    them all in one pass. `choose` picks a token from each row of its logits (None: the likeliest), and the first choice
    that differs from a draft ends the round. Each token of the answer is therefore the target's own choice, whatever
    the drafts, and with random choices its distribution is the target's too.
    """
    choose = choose or likeliest
    tokens, rounds = list(prompt), list[Round]()
    most = min(most, target.context - len(prompt))
    new: list[int] = list(prompt)  # what the target has not read yet
    drafts: list[int] = []
    while most > len(tokens) - len(prompt):
        if draft is not None and rounds:
            room = most - (len(tokens) - len(prompt)) - 1
            drafts = propose(draft, tokens, min(draft_length, room), least_chance=least_chance)
        rows = target.read([*new, *drafts], scored=len(drafts) + 1)
        chosen: list[int] = []
        for row in rows:
            chosen.append(choose(row))
            if chosen[-1] in ends or chosen != drafts[: len(chosen)]:
                break
        rounds.append(Round(len(tokens), tuple(drafts), tuple(chosen)))
        tokens += chosen
        # Keys and values of rejected drafts are dropped. The last choice has not been read.
        target.crop(len(tokens) - 1)
        if draft is not None:
            draft.crop(min(draft.length, len(tokens) - 1))
        new = tokens[-1:]
        if tokens[-1] in ends:
            break
    return tokens[len(prompt) :], rounds


def propose(draft: Model, tokens: Sequence[int], length: int, *, least_chance: float) -> list[int]:
    """Return up to `length` tokens after `tokens`, each the draft model's likeliest."""
    length = min(length, draft.context - len(tokens) + 1)
    drafts: list[int] = []
    unread = tokens[draft.length :]
    while len(drafts) < length:
        row = draft.read(unread, scored=1)[0]
        token = likeliest(row)
        if 1 / float(np.exp(row - row[token]).sum(dtype=np.float64)) < least_chance:
            break
        drafts.append(token)
        unread = [token]
    return drafts


def likeliest(row: Logits) -> int:
    """Return the token with the largest logit; of equal ones the first."""
    return int(row.argmax())
