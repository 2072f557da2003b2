"""The interface of entropy switching, in which the draft model writes tokens itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from edgedecode.arrays import FloatArray

from .verify import Verdict


class Switching(Protocol):
    """Decides which model writes next, and generates the draft model's tokens."""

    @property
    def checks(self) -> bool:
        """Whether the target verifies the draft model's tokens when it takes over, before they are shown."""
        ...

    @property
    def draft_room(self) -> int:
        """Most tokens that may be drafted for the target's next pass, so that it cannot hand back within the pass.

        Otherwise the text would depend on the drafts. 0 where the draft model may write after the next token.
        """
        ...

    def begin(self, tokens: Sequence[int], *, generated: int = 0) -> None:
        """Start a generation after `tokens`, of which the last `generated` are an answer's; the draft model begins."""
        ...

    def write(self, tokens: Sequence[int], limit: int) -> list[int]:
        """Generate at most `limit` tokens after `tokens` with the draft model; empty: the target writes next.

        Always empty once it is closed, which may happen in the middle of an answer.

        Stops after an end-of-sequence token, when the draft model is unsure of the next token, or after a few tokens,
        so that they can be shown; in the last case, call it again.
        """
        ...

    def observe(self, verdict: Verdict, rows: FloatArray) -> None:
        """Learn from the target's tokens and its logits, [1 + drafted tokens, vocabulary]."""
        ...

    def close(self) -> None: ...
