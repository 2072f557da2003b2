"""Render a model's chat template: messages in, prompt text out."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from jinja2 import Template
from jinja2.exceptions import SecurityError, TemplateSyntaxError

from edgedecode.errors import InputError, ManifestError

from .messages import Message, as_mapping
from .template_limits import metered
from .template_sandbox import template_sandbox

PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)
"""Template of a pack that has none (base models): "role: content" lines without special tokens."""
MOST_CHARACTERS = 1 << 16
"""Longest template source that is compiled, in characters."""
MOST_NBYTES = 1 << 28
"""Bytes that one rendering may allocate where the caller sets no limit."""
NOTHING: Mapping[str, object] = MappingProxyType({})
SHOWN = 500
"""Characters of a template's own error that are quoted in ours."""


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A jinja2 chat template, compiled once in the sandbox that transformers uses.

    `source` is the template's text; `bos_token` and `eos_token` are passed to it as variables. A template that does
    not compile raises `ManifestError` here, not at the first conversation. Compiling evaluates no expression of it.
    """

    source: str
    bos_token: str = field(default="", kw_only=True)
    eos_token: str = field(default="", kw_only=True)
    _compiled: Template = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_compiled", _compile(self.source))

    def render(
        self,
        messages: Sequence[Mapping[str, str]] | Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        arguments: Mapping[str, object] = NOTHING,
        most_nbytes: int | None = None,
    ) -> str:
        """Render a conversation to the text the model was trained on.

        `add_generation_prompt` appends the header of the assistant's next turn. A mapping needs `role` and `content`;
        its other keys reach the template too, as do `arguments`, its other variables. `most_nbytes` limits the memory
        allocated while rendering. Raises
        `InputError` for an invalid message or one that the template refuses (role order, no system message, ...), and
        `ManifestError` for a template that tries to leave the sandbox or exceeds its limits.
        """
        return self.render_plain(
            [_plain(message) for message in messages],
            add_generation_prompt=add_generation_prompt,
            arguments=arguments,
            most_nbytes=most_nbytes,
        )

    def render_plain(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        arguments: Mapping[str, object] = NOTHING,
        most_nbytes: int | None = None,
    ) -> str:
        """Render messages of any roles, given as plain JSON values. Raises as `render`."""
        variables = {
            "tools": None,
            "documents": None,
            **arguments,
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
            "bos_token": self.bos_token,
            "eos_token": self.eos_token,
        }
        try:
            with metered(most_nbytes or MOST_NBYTES):
                return self._compiled.render(variables)
        except InputError:
            raise
        except SecurityError as error:
            raise ManifestError(f"the chat template was stopped by the sandbox: {_one_line(error)}") from error
        except Exception as error:  # templates run arbitrary expressions: they fail with anything
            raise InputError(f"the chat template refused these messages: {_one_line(error)}") from error


def _compile(source: str) -> Template:
    if len(source) > MOST_CHARACTERS:
        raise ManifestError(f"the chat template has {len(source)} characters: the limit is {MOST_CHARACTERS}")
    try:
        return template_sandbox().from_string(source)
    except TemplateSyntaxError as error:
        raise ManifestError(
            f"the chat template is invalid at line {error.lineno}: {_one_line(error.message)}"
        ) from error
    except Exception as error:  # such as RecursionError: the parser recurses
        raise ManifestError(f"the chat template does not compile: {_one_line(error)}") from error


def _plain(message: Mapping[str, str] | Message) -> dict[str, object]:
    """Copy a message into plain JSON values, so that a template never gets an object with methods."""
    if isinstance(message, Message):
        return as_mapping(message.role, message.content, message.thought)
    if not isinstance(message, Mapping):
        raise InputError(f"a message is {type(message).__name__}: use edgedecode.Message or a mapping")
    missing = [key for key in ("role", "content") if key not in message]
    if missing:
        raise InputError(f"a message has no {' and no '.join(missing)}: it has {sorted(map(str, message))}")
    Message(role=message["role"], content=message["content"])
    try:
        copy: dict[str, object] = json.loads(json.dumps(dict(message)))
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"a message holds a value that JSON cannot represent: {_one_line(error)}") from error
    return copy


def _one_line(error: object) -> str:
    return " ".join(str(error)[:SHOWN].split()) or type(error).__name__
