"""The variables that a chat template reads beside the conversation, and among them the switch for thinking."""

from collections.abc import Mapping
from functools import lru_cache

from jinja2.exceptions import TemplateError
from jinja2.meta import find_undeclared_variables

from edgedecode.errors import InputError

from .template_sandbox import template_sandbox
from .thinking import AUTO, EFFORTS, OFF, THINKING, begins_thoughts

_RESERVED = frozenset(
    {
        *(
            "messages",
            "tools",
            "documents",
            "add_generation_prompt",
            "continue_final_message",
            "bos_token",
            "eos_token",
        ),
        *("raise_exception", "strftime_now", "namespace", "range", "dict", "joiner", "cycler"),
    }
)
"""Variables that are the runtime's to set, and functions."""
SWITCHES = ("enable_thinking", "thinking", "think")
"""Names of the switch in published templates: Qwen 3 and SmolLM 3, Granite and DeepSeek."""
_EFFORT = "reasoning_effort"
"""Where gpt-oss's template reads how long to think."""


@lru_cache(maxsize=8)
def template_variables(source: str) -> frozenset[str]:
    """Return the variables of a template that a caller may set."""
    try:
        found = find_undeclared_variables(template_sandbox().parse(source))
    except TemplateError:  # which is reported where it is compiled
        return frozenset()
    return frozenset(found) - _RESERVED


def can_switch(source: str) -> bool:
    """Return whether a template has a switch for thinking."""
    return bool(template_variables(source) & {*SWITCHES, _EFFORT})


def can_think(source: str) -> bool:
    """Return whether a model thinks, by its template: it has a switch, or writes what begins a thought."""
    return can_switch(source) or begins_thoughts(source)


def idle_switch(source: str, think: str) -> str:
    """Return why turning thoughts off changes nothing with a template; empty: it does, or they are not turned off.

    It is for models whose thoughts nothing ends: others have a budget of 0 tokens.
    """
    if think not in OFF or can_switch(source):
        return ""
    return f"thinking is not turned off by {think!r}: this pack's chat template has no switch for thinking"


def template_arguments(source: str, given: Mapping[str, object], *, think: str = "") -> dict[str, object]:
    """Return the variables for a template: those given, and its switch for thinking.

    think: one of `EFFORTS`; empty: as the template has it. Raises InputError for a variable that the template does not
    read, and for thinking that it cannot switch on.
    """
    known = template_variables(source)
    for name in given:
        if name in _RESERVED:
            raise InputError(f"the template argument {name[:80]!r} is set by the conversation: leave it out")
        if name not in known:
            has = f"it reads {', '.join(sorted(known))}" if known else "it reads none"
            raise InputError(f"this pack's chat template does not read {name[:80]!r}: {has}")
    return {**given, **_thinking(known, think, source)}


def _thinking(known: frozenset[str], think: str, source: str) -> dict[str, object]:
    if not think or think == AUTO:
        return {}
    if think not in EFFORTS:
        raise InputError(f"thinking is {think[:40]!r}: use one of {', '.join(EFFORTS)}")
    switch = next((name for name in SWITCHES if name in known), None)
    found: dict[str, object] = {} if switch is None else {switch: think not in OFF}
    if _EFFORT in known and think not in ("off", "on", "none"):
        found[_EFFORT] = think
    if not found and think in THINKING and not begins_thoughts(source):
        raise InputError(f"this pack's chat template has no switch for thinking, which is asked for as {think!r}")
    return found
