"""Find stop strings in a stream of text, and hold back text that may begin one."""

import re
from collections.abc import Sequence

from edgedecode.errors import InputError


class StopStrings:
    """Cut a stream at the first stop string, and hold back a tail that may begin one.

    The match with the earliest position in the text wins, as in llama.cpp and OpenAI's API, however the text was split
    into pushes. Where two start at the same position, the shorter is reported, because it is complete first. A match
    may therefore wait until an earlier, longer candidate is decided. The text held back is always shorter than the
    longest stop string.
    """

    __slots__ = ("_held", "_longest", "_matched", "_pattern", "_stops")

    def __init__(self, stops: Sequence[str]) -> None:
        """Watch for any of `stops`; with none, all text passes through. An empty string raises `InputError`."""
        if isinstance(stops, str):
            raise InputError(f"stop strings are a list of strings, not the string {stops!r}: use [{stops!r}]")
        for stop in stops:
            if stop == "":
                raise InputError("a stop string cannot be empty: use a string of one character or more")
        self._stops = tuple(sorted(set(stops), key=len))
        self._longest = len(self._stops[-1]) if self._stops else 0
        self._pattern = re.compile("|".join(map(re.escape, self._stops)))
        self._held = ""
        self._matched: str | None = None

    @property
    def matched(self) -> str | None:
        """The stop string that ended the text, or None so far."""
        return self._matched

    def push(self, text: str) -> str:
        """Return the text that is now safe to show; nothing once a stop string has matched."""
        if self._matched is not None or not text:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        match = self._pattern.search(text)
        end = match.start() if match else len(text)
        candidate = self._candidate(text, end=end)
        if candidate is not None:
            self._held = text[candidate:]
            return text[:candidate]
        self._held = ""
        self._matched = match.group() if match else None
        return text[:end]

    def flush(self) -> str:
        """Return the text held back: at the end of the text, nothing can complete a candidate any more."""
        rest, self._held = self._held, ""
        match = self._pattern.search(rest) if rest else None
        if match is None:
            return rest
        self._matched = match.group()
        return rest[: match.start()]

    def _candidate(self, text: str, *, end: int) -> int | None:
        """Return the first position before `end` from which the rest of the text begins a stop string."""
        for start in range(max(0, len(text) - self._longest + 1), end):
            tail = text[start:]
            if any(len(stop) > len(tail) and stop.startswith(tail) for stop in self._stops):
                return start
        return None
