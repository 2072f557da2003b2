"""What a pack's model can think, for requests: answers are parted into thought and text, and wishes it lacks noted."""

from collections.abc import Mapping
from dataclasses import replace

from edgedecode import InputError, Message, Pair
from edgedecode.options import SessionDetails
from edgedecode.text.template_switches import SWITCHES, can_switch, can_think, template_arguments
from edgedecode.text.thinking import OFF, THINKING, Thoughts, begins_thoughts
from edgedecode.typed_json import JsonValue

from .requests.asked import Asked


def thoughts_of(pair: Pair, details: SessionDetails) -> Thoughts | None:
    """Return how answers with these options are parted; None: the model does not think between marks."""
    thinking, tokenizer = pair.shared.thinking, pair.tokenizer
    if thinking is None:
        return None
    source = tokenizer.chat_template.source
    given = template_arguments(source, details.template_arguments, think=details.template_think)
    return Thoughts(thinking, opened=thinking.opens(tokenizer.render([Message("user", "x")], arguments=given)))


def as_able(asked: Asked, pair: Pair) -> Asked:
    """Return a request without the thinking that this pack's model cannot do, as clients ask by default.

    Raises InputError for other variables that the template does not read.
    """
    source, thinking = pair.tokenizer.chat_template.source, pair.shared.thinking
    given: Mapping[str, JsonValue] = asked.template_arguments
    notes, why = asked.notes, "was not followed: this pack's chat template has no switch for thinking"
    if asked.must_think and not can_think(source):
        raise InputError(f'"{asked.name}" does not support thinking')
    if asked.think_tokens is not None and (thinking is None or asked.grammar is not None):
        lacks = (
            "a form or tools cover the answer" if thinking else "nothing in this pack's chat template ends a thought"
        )
        notes = (*notes, *([f"the thinking budget was not followed: {lacks}"] if asked.think_tokens > 0 else []))
        asked = replace(asked, think_tokens=None)
    if not can_switch(source):
        notes = (*notes, *(f"chat_template_kwargs.{name} {why}" for name in given if name in SWITCHES))
        given = {name: value for name, value in given.items() if name not in SWITCHES}
        unable = THINKING if not begins_thoughts(source) else (*OFF, *THINKING) if thinking is None else ()
        if asked.think in unable:
            asked, notes = replace(asked, think=""), (*notes, f"the reasoning effort {why}")
    try:
        template_arguments(source, given)
    except InputError as error:
        raise InputError(f"chat_template_kwargs: {error}") from None
    return replace(asked, template_arguments=given, notes=notes)
