"""How a model thinks before it answers: what begins and ends a thought, how long it may be, and where one is in a text.

All options and protocols mean this: `on` and `off` (the chat template's switch, or an end at once), and a limit in
tokens, given as a number or as an effort.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from edgedecode.errors import ManifestError

OFF = ("off", "none", "minimal")
AUTO = "auto"
"""As the chat template has it, like no word at all: nothing here decides by the question."""
Effort: TypeAlias = Literal["off", "on", "auto", "none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""How much a model thinks first: `on`, `off` and `auto`, and OpenAI's names, of which `none` and `minimal` mean off."""
EFFORTS: tuple[str, ...] = get_args(Effort)
THINKING = tuple(each for each in EFFORTS if each not in (*OFF, AUTO))
BUDGETS = {"low": 256, "medium": 1024, "high": 4096}
"""Most tokens of a thought by effort; of those above there is no limit. A small model's thought has some hundred."""
_PAIRS = (
    ("<think>", "</think>"),  # Qwen 3, SmolLM 3, DeepSeek, Granite
    ("[THINK]", "[/THINK]"),  # Magistral
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Command A
)
LONGEST_MARKER = 64
NO_LIMIT, MOST_THOUGHT = -1, 1 << 24
"""Budgets: none, whatever the effort, and the largest."""
_OPENING = "\n\n"
"""What most models write between a thought and the answer."""


@dataclass(frozen=True, slots=True)
class Thinking:
    """What begins a thought and ends it, and what comes between its end and the answer."""

    start: str
    end: str
    opening: str = _OPENING

    def check(self) -> None:
        """Raise ManifestError for texts that mark nothing, or are too long to look for in every answer."""
        if not (self.start.strip() and self.end.strip()):
            raise ManifestError("manifest.thinking has an empty start or end: export the pack again")
        if max(map(len, (self.start, self.end, self.opening))) > LONGEST_MARKER:
            raise ManifestError(
                f"manifest.thinking has a text of more than {LONGEST_MARKER} characters: export the pack again"
            )

    def opens(self, prompt: str) -> bool:
        """Return whether a prompt ends inside of a thought, so that the answer begins with one."""
        return prompt.rstrip().endswith(self.start)


USUAL = Thinking(*_PAIRS[0])
"""What a template means that opens a thought and names no end."""


def thinking_in(source: str, token_id: Callable[[str], int | None]) -> Thinking | None:
    """Return how a model thinks, by its chat template and its tokens; None: it does not, or nothing ends a thought."""
    for start, end in _PAIRS:
        if end in source or token_id(end) is not None:
            found = re.findall(rf"{re.escape(end)}((?:\\n|\n)+)", source)
            return Thinking(start, end, max((each.replace("\\n", "\n") for each in found), key=len, default=_OPENING))
    return None


def begins_thoughts(source: str) -> bool:
    """Return whether a chat template writes what begins a thought."""
    return any(start in source for start, _ in _PAIRS)


def thought_limit(think: str, tokens: int | None) -> int | None:
    """Return the most tokens of a thought; None: no limit. think: one of `EFFORTS`. tokens: as `SessionDetails`."""
    if think in OFF:
        return 0
    return BUDGETS.get(think) if tokens is None else None if tokens == NO_LIMIT else tokens


class Thoughts:
    """Splits an answer, as it is written, into its thought and its text. opened: it begins inside of a thought."""

    def __init__(self, thinking: Thinking, *, opened: bool) -> None:
        self._start, self._end = thinking.start, thinking.end
        self._held = ""
        """Text that may be a part of a marker, or white space before or after a thought."""
        self._state = "thought" if opened else "start"

    @property
    def thinking(self) -> bool:
        """Whether the text so far ends inside of a thought."""
        return self._state == "thought"

    @property
    def over(self) -> bool:
        """Whether no thought can follow."""
        return self._state in ("after", "text")

    def parted(self, text: str, *, ended: bool = False) -> tuple[str, str]:
        """Return what a piece adds to the thought and to the text. ended: it is the last piece."""
        self._held += text
        thought = ""
        if self._state == "start":
            self._begin(ended)
        if self._state == "thought":
            thought = self._think(ended)
        if self._state == "after" and self._held.lstrip():
            self._held, self._state = self._held.lstrip(), "text"
        if self._state != "text":
            return thought, ""
        said, self._held = self._held, ""
        return thought, said

    def _begin(self, ended: bool) -> None:
        """Decide whether the answer begins with a thought, as far as its text tells."""
        begun = self._held.lstrip()
        if begun.startswith(self._start):
            self._held, self._state = begun.removeprefix(self._start), "thought"
        elif ended or not self._start.startswith(begun):
            self._state = "text"

    def _think(self, ended: bool) -> str:
        """Take the thought from what is held, up to its end or what may be the beginning of it."""
        thought, end, rest = self._held.partition(self._end)
        if end:
            self._held, self._state = rest, "after"
            return thought
        sizes = range(len(self._end) - 1, 0, -1)
        keep = 0 if ended else next((size for size in sizes if thought.endswith(self._end[:size])), 0)
        self._held = thought[len(thought) - keep :]
        return thought[: len(thought) - keep]
