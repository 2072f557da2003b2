"""Sessions that have answered: a request that begins as one of theirs reuses its KV cache."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from edgedecode import Session, SessionOptions

from ..requests.asked import Asked, Prompt

_MOST = 8
"""The budget may hold fewer."""


@dataclass(frozen=True, eq=False, slots=True)
class IdleSession:
    """key: the number of the key that asked. prompt: what was completed; None: a chat."""

    options: SessionOptions
    session: Session
    key: int
    prompt: Prompt | None

    def serves(self, options: SessionOptions, key: int, prompt: Prompt | None) -> bool:
        """Return whether requests of these options and this key may have it."""
        return replace(self.options, seed=None) == options and self.key == key and type(self.prompt) is type(prompt)

    def shared(self, asked: Asked, prompt: Prompt | None) -> int:
        """Return how many messages a request has in common with it from the start, or how much of their prompts."""
        if self.prompt is not None and prompt is not None:
            return _common(self.prompt, prompt)
        return _common(self.session.messages, (*asked.messages, asked.message))

    def continued(self, prompt: Prompt | None, shared: int) -> bool:
        """Return whether a request begins with all of its messages but the last two, and one besides the system's.

        More than that would take a chat's session for another chat with the same system message. A completion has half
        of the shorter prompt in common: an editor sends a file again after each change.
        """
        if self.prompt is not None and prompt is not None:
            return 2 * shared >= min(len(self.prompt), len(prompt))
        users = any(message.role != "system" for message in self.session.messages[:shared])
        return users and shared >= len(self.session.messages) - 2


class IdleSessions:
    """Those of a model, the one that has been idle for longest first."""

    def __init__(self) -> None:
        self._every: list[IdleSession] = []

    def add(self, ended: IdleSession) -> Session | None:
        """Keep a session whose answer had no seed. Return the one to close, if any."""
        if ended.options.seed is not None:
            return ended.session
        self._every.append(ended)
        return self.oldest() if len(self._every) > _MOST else None

    def oldest(self) -> Session | None:
        """Take the session that has been idle for longest."""
        return self._every.pop(0).session if self._every else None

    def take(self, options: SessionOptions, asked: Asked, number: int) -> Session | None:
        """Take the session of these options that the request continues, or whose last turn it changes.

        If there is none and all places are taken, it gets the oldest, which would be closed next, for what they share
        (a chat's system message).
        """
        prompt = None if asked.chat else asked.prompt(number)
        same = [each for each in self._every if each.serves(options, asked.key, prompt)]
        shared = {id(each): each.shared(asked, prompt) for each in same}
        found = [each for each in same if each.continued(prompt, shared[id(each)])]
        if not found and len(self._every) >= _MOST:
            found = [each for each in same[:1] if each is self._every[0] and shared[id(each)]]
        if not found:
            return None
        best = max(found, key=lambda each: shared[id(each)])
        self._every.remove(best)
        return best.session


def _common(one: Sequence[object], other: Sequence[object]) -> int:
    pairs = zip(one, other, strict=False)
    return next((number for number, (left, right) in enumerate(pairs) if left != right), min(len(one), len(other)))
