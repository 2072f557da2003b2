"""Ends a thought that has had its tokens: the end's tokens are forced, and everything else stays as it is."""

from collections.abc import Sequence

import numpy as np

from edgedecode.arrays import FloatArray
from edgedecode.text.thinking import Thinking, Thoughts
from edgedecode.text.tokenizer import Tokenizer

_CALL, _CALL_END = "<tool_call>", "</tool_call>"
_LAST = 16
"""Tokens at a prompt's end in which what begins a thought is looked for, and characters in which a call's marker is."""


class ThoughtLimit:
    """Implements `Constraint` for one answer at a time: a thought ends after `most` tokens, or with the call in it.

    message: the last words of a thought that was cut. at_once: most tokens that are forced in a round.
    """

    structured = False

    def __init__(self, tokenizer: Tokenizer, thinking: Thinking, *, most: int, message: str = "", at_once: int) -> None:
        self._tokenizer, self._thinking, self._most, self._at_once = tokenizer, thinking, most, at_once
        words = tokenizer.encode(tokenizer.without_controls(message)) if message else []
        self._closing = (*words, *tokenizer.encode(thinking.end + thinking.opening))
        self.begin(())

    def begin(self, prompt: Sequence[int]) -> None:
        """Start a new answer after a prompt."""
        opened = self._thinking.opens(self._tokenizer.decode(prompt[-_LAST:], skip_special=False))
        self._thoughts = Thoughts(self._thinking, opened=opened)
        self._text = self._tokenizer.detokenizer(skip_special=False)
        self._spent, self._calling, self._tail = 0, False, ""
        self._left: tuple[int, ...] = ()
        """Tokens that are forced, as far as they have not come."""
        self._path = 0
        """Tokens of the running round that were counted."""
        self._over = False
        self._close()

    def forced(self) -> Sequence[int]:
        return self._left[: self._at_once]

    def allows(self, tokens: Sequence[int]) -> int:
        return len(tokens)  # a draft that is longer than the thought may be is cut when it is verified

    def masked(self, row: FloatArray, path: Sequence[int]) -> FloatArray:
        self._count(path[self._path :])
        self._path = len(path)
        if not self._left:
            return row
        result = np.full_like(row, -np.inf)
        result[self._left[0]] = row[self._left[0]]
        return result

    def accepts(self, token: int, path: Sequence[int]) -> bool:
        return True  # the mask has decided

    def extend(self, tokens: Sequence[int]) -> None:
        self._count(tokens[self._path :])
        self._path = 0

    def _count(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if self._left:
                self._left = self._left[1:]
                self._over = self._over or not self._left
            elif not self._over:
                self._follow(token)

    def _follow(self, token: int) -> None:
        """Count a token that the model chose before the answer's text."""
        thought, text = self._thoughts.thinking, self._text.push([token])
        self._thoughts.parted(text)
        self._spent += thought
        self._tail = self._tail[-_LAST:] + text
        if (call := self._tail.rfind(_CALL)) >= 0 or _CALL_END in self._tail:
            self._calling = call > self._tail.rfind(_CALL_END)
        self._close()

    def _close(self) -> None:
        """Force the end if the thought has had its tokens and makes no call."""
        self._over = self._thoughts.over
        if self._thoughts.thinking and self._spent >= self._most and not self._calling:
            self._left = self._closing
