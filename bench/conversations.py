"""Conversations that change their subject with every turn: what a scheduler must follow and no fixed choice can."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from edgedecode import InputError
from edgedecode.text.prompts import Prompt
from edgedecode.text.tokenizer import Tokenizer

__all__ = ["MIXED", "mixed_conversations"]

MIXED = "mixed"
TURNS = 6
"""A longer conversation is more easily lost to a near tie: a text that differs once differs to its end."""
_FRAME = 16
"""Tokens of a chat template around a turn, at most."""


def mixed_conversations(
    prompts: Sequence[Prompt], tokenizer: Tokenizer, *, max_tokens: int, context: int
) -> list[Prompt]:
    """Join the turns of these prompts, another family at each turn, into conversations that fit the context.

    Raises InputError for prompts that have a conversation before them, and where a turn alone does not fit.
    """
    if any(prompt.history for prompt in prompts):
        raise InputError("--mixed joins prompts to conversations: these have messages before the user's turn")
    conversations: list[list[str]] = []
    used = 0
    for turn in _alternating(prompts):
        needed = len(tokenizer.encode(turn)) + max_tokens + _FRAME
        if needed > context:
            raise InputError(f"a turn of {needed} tokens does not fit a context of {context}: raise --ctx-size")
        if not conversations or used + needed > context or len(conversations[-1]) == TURNS:
            conversations.append([])
            used = 0
        conversations[-1].append(turn)
        used += needed
    return [Prompt(MIXED, (), tuple(turns)) for turns in conversations]


def _alternating(prompts: Sequence[Prompt]) -> list[str]:
    families = dict.fromkeys(prompt.family for prompt in prompts)
    turns = [[turn for prompt in prompts if prompt.family == family for turn in prompt.turns] for family in families]
    return [turn for row in zip_longest(*turns) for turn in row if turn is not None]
