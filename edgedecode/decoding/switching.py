"""The draft model as a writer of its own: what the loop asks of entropy switching."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from edgedecode.arrays import FloatArray

from .verify import Verdict

__all__ = ["Switching"]


class Switching(Protocol):
    """Decides which model writes, and writes with the draft model."""

    @property
    def checks(self) -> bool:
        """Whether the target verifies what the draft model wrote when it takes over, before it is shown."""
        ...

    @property
    def speculates(self) -> bool:
        """Whether the target's tokens are drafted: only where it writes several before it hands back."""
        ...

    def begin(self, tokens: Sequence[int]) -> None:
        """Start a generation after `tokens`: the draft model writes first."""
        ...

    def write(self, tokens: Sequence[int], limit: int) -> list[int]:
        """Return at most `limit` tokens that the draft model writes after `tokens`; none: the target's turn.

        It ends with an end-of-sequence token, where the draft model is unsure of the next token, or after a few
        tokens, so that text appears; call it again in the latter case.
        """
        ...

    def observe(self, verdict: Verdict, rows: FloatArray) -> None:
        """Learn what the target emitted, with its logits [1 + drafted tokens, vocabulary]."""
        ...

    def close(self) -> None: ...
