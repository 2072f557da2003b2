"""Whether a model thinks; splits an answer, as it is written, into what it thinks and what it says."""

from collections.abc import Mapping
from dataclasses import replace

from edgedecode import InputError, Message
from edgedecode.text.chat_template import EFFORTS
from edgedecode.text.template_switches import SWITCHES, THINKING, can_think, template_arguments
from edgedecode.text.tokenizer import Tokenizer

from .requests.asked import Asked

THOUGHT_BEGINS, THOUGHT_ENDS = "<think>", "</think>"
"""What most families write (Qwen 3, SmolLM 3, DeepSeek, Granite)."""


class Thoughts:
    """One answer's. opened: the prompt ends inside of a thought, so that the answer begins with one."""

    def __init__(self, *, opened: bool) -> None:
        self._held = ""
        """Text that may be a part of a tag, or white space before or after a thought."""
        self._state = "thought" if opened else "start"

    @property
    def thinking(self) -> bool:
        """Whether the text so far ends inside of a thought."""
        return self._state == "thought"

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
        if begun.startswith(THOUGHT_BEGINS):
            self._held, self._state = begun.removeprefix(THOUGHT_BEGINS), "thought"
        elif ended or not THOUGHT_BEGINS.startswith(begun):
            self._state = "text"

    def _think(self, ended: bool) -> str:
        """Take the thought from what is held, up to its end or what may be the beginning of it."""
        thought, end, rest = self._held.partition(THOUGHT_ENDS)
        if end:
            self._held, self._state = rest, "after"
            return thought
        sizes = range(0 if ended else len(THOUGHT_ENDS) - 1, 0, -1)
        keep = next((size for size in sizes if thought.endswith(THOUGHT_ENDS[:size])), 0)
        self._held = thought[len(thought) - keep :]
        return thought[: len(thought) - keep]


def thoughts_of(tokenizer: Tokenizer, arguments: Mapping[str, object], think: str) -> Thoughts | None:
    """Return how answers are parted whose template has these arguments; None: the model does not think in tags."""
    source = tokenizer.chat_template.source
    if THOUGHT_ENDS not in source and tokenizer.token_to_id(THOUGHT_ENDS) is None:
        return None
    given = template_arguments(source, arguments, think=think)
    prompt = tokenizer.render([Message("user", "x")], arguments=given)
    return Thoughts(opened=prompt.rstrip().endswith(THOUGHT_BEGINS))


def as_able(asked: Asked, source: str) -> Asked:
    """Return a request without the thinking that this pack's template cannot switch, as clients ask by default.

    Raises InputError for other variables that the template does not read.
    """
    given, notes = dict(asked.template_arguments), asked.notes
    why = "was not followed: this pack's chat template has no switch for thinking"
    if not can_think(source):
        notes = (*notes, *(f"chat_template_kwargs.{name} {why}" for name in given if name in SWITCHES))
        given = {name: value for name, value in given.items() if name not in SWITCHES}
        if asked.think in (EFFORTS if "<think>" in source else THINKING):
            asked, notes = replace(asked, think=""), (*notes, f"the reasoning effort {why}")
    try:
        template_arguments(source, given)
    except InputError as error:
        raise InputError(f"chat_template_kwargs: {error}") from None
    return replace(asked, template_arguments=given, notes=notes)
