"""Arrange messages so that a chat template leaves none of them out.

What a template cannot write is folded into messages that it can, or refused. Whether it can is found out by rendering
marks in place of the contents, once for each sequence of roles, and behind contents whose end is not in the text. So a
part of a content that a template strips on purpose, such as the reasoning in earlier answers, is no loss.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from itertools import product

from edgedecode.errors import InputError

from .chat_template import NOTHING, ChatTemplate
from .messages import as_mapping

TOOL_FRAME = "Result of the function call:\n"
"""Begins a user's message that holds a function's result, for templates that know no role for it."""
_TOOL_ROLES = ("ipython", "function", "observation", "tool_response")
"""Other names of the role `tool` in published templates (Llama 3.1, Command-R, GLM-4)."""
_MOST_KEPT = 256
"""Sequences of roles whose arrangement is kept."""
_END = 12
"""Characters at the end of a content that are looked for in the text."""
_MARK = re.compile(r"mark(\d+)end", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Sent:
    """A message as a template gets it."""

    role: str
    content: str
    thought: str = ""

    def joined(self, other: "Sent") -> "Sent":
        """Return a message of this role with both texts."""
        texts = ((self.content, other.content), (self.thought, other.thought))
        return Sent(self.role, *("\n\n".join(filter(None, each)) for each in texts))

    def changed(self, change: Callable[[str], str]) -> "Sent":
        """Return a message with its texts changed."""
        return Sent(self.role, change(self.content), change(self.thought))


@dataclass(frozen=True, slots=True)
class _Arrangement:
    """tool: the role of functions' results. system: "each" as given, "first": one at the start, "user": none.

    alternating: consecutive messages of one role are one. parts: contents are lists of parts.
    """

    tool: str = "tool"
    system: str = "each"
    alternating: bool = False
    parts: bool = False

    def of(self, messages: Sequence[Sent]) -> list[Sent]:
        found = [self._renamed(each) for each in messages]
        if self.system != "each":
            found = [*_with_system_in_user(found, keep_first=self.system == "first")]
        return [*_alternating(found)] if self.alternating else found

    def plain(self, message: Sent) -> dict[str, object]:
        """Return the mapping that the template reads."""
        content: object = [{"type": "text", "text": message.content}] if self.parts else message.content
        return as_mapping(message.role, content, message.thought)

    def _renamed(self, message: Sent) -> Sent:
        if message.role != "tool":
            return message
        return replace(message, role=self.tool, content=(TOOL_FRAME if self.tool == "user" else "") + message.content)


@dataclass(frozen=True, slots=True)
class Arranger:
    """Finds and keeps how conversations are arranged for a template."""

    template: ChatTemplate
    _kept: dict[bytes, _Arrangement] = field(default_factory=dict, repr=False, compare=False)

    def render(
        self, messages: Sequence[Sent], *, arguments: Mapping[str, object] = NOTHING, most_nbytes: int | None = None
    ) -> str:
        """Return the text of a conversation up to the assistant's header. Raises as `ChatTemplate.render`.

        Also raises InputError where the template leaves out a message however they are arranged.
        """
        render = partial(self._rendered, arguments=arguments, most_nbytes=most_nbytes)
        facts = "".join(each.role[0] for each in messages), dict(arguments)
        key = sha256(json.dumps(facts, sort_keys=True).encode()).digest()  # a client's variables may be megabytes
        if (arrangement := self._kept.get(key)) is None:
            arrangement = self._found([each.role for each in messages], render)
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            self._kept[key] = arrangement
        text = render(arrangement, messages)
        if any(each.content.rstrip()[-_END:] not in text for each in messages):
            marked = [replace(each, content=f"{each.content}mark{n}end") for n, each in enumerate(messages)]
            if (lost := _lost(render(arrangement, marked), len(messages))) is not None:
                raise InputError(
                    f"the chat template leaves out a part of message {lost + 1}, the {messages[lost].role}'s"
                )
        return text

    def _rendered(
        self,
        arrangement: _Arrangement,
        messages: Sequence[Sent],
        *,
        arguments: Mapping[str, object],
        most_nbytes: int | None,
    ) -> str:
        plain = [arrangement.plain(each) for each in arrangement.of(messages)]
        return self.template.render_plain(plain, arguments=arguments, most_nbytes=most_nbytes)

    def _found(self, roles: Sequence[str], render: Callable[[_Arrangement, Sequence[Sent]], str]) -> _Arrangement:
        """Return the arrangement closest to the given messages of which the template writes every message."""
        marked, reason = [Sent(role, f"mark{place}end") for place, role in enumerate(roles)], ""
        for arrangement in self._candidates(roles):
            try:
                lost = _lost(render(arrangement, marked), len(roles))
            except InputError as error:
                reason = reason or str(error)
                continue
            if lost is None:
                return arrangement
            reason = reason or f"the chat template leaves out message {lost + 1}, the {roles[lost]}'s"
        raise InputError(f"{reason}, and no other arrangement of these messages helps")

    def _candidates(self, roles: Sequence[str]) -> Iterator[_Arrangement]:
        """Yield the arrangements that differ for these roles, those that change least first."""
        source = self.template.source
        known = [role for role in _TOOL_ROLES if f"'{role}'" in source or f'"{role}"' in source]
        tools = ("tool", *known, "user") if "tool" in roles else ("tool",)
        systems = ("each", "first", "user") if "system" in roles else ("each",)
        for parts, system, tool, alternating in product((False, True), systems, tools, (False, True)):
            yield _Arrangement(tool, system, alternating, parts)


def _lost(text: str, count: int) -> int | None:
    """Return the first missing mark of marks 0 to `count` - 1; None: the text has all of them."""
    written = {int(place) for place in _MARK.findall(text)}
    return next((place for place in range(count) if place not in written), None)


def _with_system_in_user(messages: Sequence[Sent], *, keep_first: bool) -> Iterator[Sent]:
    """Yield the messages with each system message at the start of the next user's message.

    keep_first: those before all others are one system message instead.
    """
    head = next((place for place, each in enumerate(messages) if each.role != "system"), len(messages))
    if keep_first and head:
        yield from _alternating(messages[:head])
        messages = messages[head:]
    waiting = list[Sent]()
    for each in messages:
        if each.role == "system":
            waiting.append(Sent("user", each.content))
        elif waiting and each.role == "user":
            yield from _alternating([*waiting, each])
            waiting = []
        else:
            yield from (*_alternating(waiting), each)
            waiting = []
    yield from _alternating(waiting)


def _alternating(messages: Sequence[Sent]) -> Iterator[Sent]:
    """Yield the messages, consecutive ones of one role as one."""
    last: Sent | None = None
    for each in messages:
        if last is not None and last.role == each.role:
            last = last.joined(each)
            continue
        if last is not None:
            yield last
        last = each
    if last is not None:
        yield last
