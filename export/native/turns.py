"""Turn a chat template into a table for the native library: what it writes before, between and after messages.

The template is rendered with marks in place of the contents, and the table is what stands between them. Whether it
says what the template says is checked on random conversations; a template that is no such pattern is refused.
"""

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product

from edgedecode.errors import EdgeDecodeError, ExportError
from edgedecode.text.arrangement import Arranger, Sent
from edgedecode.text.chat_template import NOTHING, ChatTemplate
from edgedecode.text.template_switches import SWITCHES, template_arguments, template_variables
from edgedecode.user_notices import notice

CONVERSATIONS = 200
_DATE = "\ue000"
"""Around the format of a date, which the library writes on the day."""
_CLOCK = "{%- macro strftime_now(format) -%}" + _DATE + "{{ format }}" + _DATE + "{%- endmacro -%}"
_MARK = "mark{}end"
_FOUND = re.compile(r"mark(\d+)end")
_SEED = 40
_ENDS = ("</think>", "[/THINK]", "</seed:think>")
_LEFT = ("nothing", "newlines", "left")
_THOUGHTS = (("", "nothing"), *product(_ENDS, (*_LEFT, "both")))
"""What ends a thought that a template leaves out of answers, and what is stripped of the text behind it."""
_ROLES = {
    "system": (("system", "user"), 0),
    "user": (("user",), 0),
    "user_behind_system": (("system", "user"), 1),
    "assistant": (("user", "assistant", "user", "assistant", "user"), 1),
    "latest": (("user", "assistant", "user"), 1),
}
"""Whose contents are written in a way of their own: in which conversation, and where in it."""
_WORDS = (
    "frog",
    "pond <b>",
    "</think>",
    "{{ x }}",
    "é🦙",
    "a\n\nb",
    "'quoted' \"twice\"",
    "1,000",
    "<|im_end|>",
    "[INST]",
)
_EDGES = ("", "", "", " ", "\n", "\n\n ", "\t", "\u00a0", "\x1f")


@dataclass(frozen=True, slots=True)
class _Writing:
    """How a role's content is written: stripped, and without a thought. early: stripped before the thought is cut."""

    left: str = "nothing"
    right: bool = False
    early: bool = False
    thought_end: str = ""
    thought_strip: str = "nothing"

    def written(self, content: str) -> str:
        content = self._stripped(content) if self.early else content
        if self.thought_end and self.thought_end in content:
            content = _begun(content.rpartition(self.thought_end)[2], self.thought_strip)
            content = content.rstrip() if self.thought_strip == "both" else content
        return content if self.early else self._stripped(content)

    def _stripped(self, content: str) -> str:
        content = _begun(content, self.left)
        return content.rstrip() if self.right else content


def _begun(content: str, strip: str) -> str:
    """Return a content without the white space at its start that is stripped."""
    if strip == "nothing":
        return content
    return content.lstrip("\n" if strip == "newlines" else None)


@dataclass(frozen=True, slots=True)
class Turns:
    """A template's texts, as runtimes/native/src/text/turns.h reads them. Pairs: in the first turn, in later ones."""

    start: str
    before_system: str
    behind_system: str
    before_last_system: str
    answer: tuple[str, str]
    question: tuple[str, str]
    end: tuple[str, str]
    system_last: bool
    writing: Mapping[str, _Writing]

    def render(self, messages: Sequence[Sent]) -> str:
        """Return a conversation's text, as the library does."""
        first, last = int(messages[0].role == "system"), len(messages) - 1
        system_place = last if first and self.system_last else first
        text = "" if first and system_place == 1 else self.start
        for place, message in enumerate(messages[first:], first):
            later = int(place - first > 1)
            if message.role == "assistant":
                how = "latest" if place == last - 1 else "assistant"
                text += self.answer[later] + self.writing[how].written(message.content)
                text += "" if first and self.system_last and place == last - 1 else self.question[later]
                continue
            behind = first == 1 and place == system_place
            if behind:
                text += self.before_system if place == 1 else self.before_last_system
                text += self.writing["system"].written(messages[0].content) + self.behind_system
            text += self.writing["user_behind_system" if behind else "user"].written(message.content)
        return text + self.end[int(last > first)]

    def as_json(self) -> dict[str, object]:
        """Return what native.json has of it."""
        value = asdict(self)
        for name in ("answer", "question", "end"):
            value[name] = dict(zip(("first", "later"), value[name], strict=True))
        return value


def thinking_turns(template: ChatTemplate, *, name: str) -> dict[str, Turns]:
    """Return the tables with the template's switch for thinking off and on, by `enable_thinking` as JSON has it.

    Empty: it has no switch. A position of it that no table says is left out, and the user is told.
    """
    found = {}
    for think in ("off", "on") if template_variables(template.source) & {*SWITCHES} else ():
        try:
            arguments = template_arguments(template.source, {}, think=think)
            found["true" if think == "on" else "false"] = turns_of(template, name=name, arguments=arguments)
        except ExportError as error:
            notice(f"thinking cannot be turned {think} in the native library: {error}")
    return found


def turns_of(template: ChatTemplate, *, name: str, arguments: Mapping[str, object] = NOTHING) -> Turns:
    """Return a template's table. name: for errors. Raises ExportError for one that no table says."""
    if "strftime_now" in template.source:
        source = _CLOCK + template.source
        template = ChatTemplate(source, bos_token=template.bos_token, eos_token=template.eos_token)
    render = partial(Arranger(template).render, arguments=arguments)
    try:
        turns = _found(render)
        for messages in conversations(CONVERSATIONS, seed=_SEED):
            if (found := turns.render(messages)) != (expected := render(messages)):
                raise ExportError(_difference(found, expected, messages))
    except EdgeDecodeError as error:
        raise ExportError(
            f"{name} has a chat template that the native library cannot have as turns: {error}"
        ) from error
    return turns


def conversations(count: int, *, seed: int) -> Iterator[list[Sent]]:
    """Yield random conversations that end with a user's message, half of them with a system message."""
    chance = random.Random(seed)
    for number in range(count):
        roles = ["system"] * (number % 2) + ["user", "assistant"] * chance.randrange(5) + ["user"]
        yield [Sent(role, _content(chance, role)) for role in roles]


def _content(chance: random.Random, role: str) -> str:
    words = [chance.choice(_WORDS) for _ in range(chance.randint(1, 4))]
    core = chance.choice((" ", "\n", "")).join(words)
    if role == "assistant" and chance.random() < 0.2:
        core = f"<think>\n{core}\n</think>\n\n frog"
    return chance.choice(_EDGES) + ("frog" if core.endswith("</think>") else "") + core + "." + chance.choice(_EDGES)


def _found(render: Callable[[Sequence[Sent]], str]) -> Turns:
    one, three = ["user"], ["user", "assistant"] * 3 + ["user"]
    (start, end), _ = _between(render, one)
    (_, answer, question, later_answer, later_question, _, _, later_end), _ = _between(render, three)
    (before, behind, system_end), _ = _between(render, ["system", *one])
    several, places = _between(render, ["system", *three])
    last = places[0] != 0
    if last and places != [1, 2, 3, 4, 5, 6, 0, 7]:
        raise ExportError("the system message stands neither first nor in the last turn")
    before_last = several[places.index(0)] if last else ""
    if system_end != end:
        raise ExportError("a system message changes what comes after the user's")
    writing = {name: _writing(render, name) for name in _ROLES}
    pairs = (answer, later_answer), (question, later_question), (end, later_end)
    return Turns(start, before, behind, before_last, *pairs, last, writing)


def _between(render: Callable[[Sequence[Sent]], str], roles: Sequence[str]) -> tuple[list[str], list[int]]:
    """Return the texts before, between and after messages of these roles, and the order in which messages are written.

    Raises ExportError unless each is written once.
    """
    parts = _FOUND.split(render([Sent(role, _MARK.format(place)) for place, role in enumerate(roles)]))
    places = [int(place) for place in parts[1::2]]
    if sorted(places) != [*range(len(roles))]:
        raise ExportError("it writes a message twice, or leaves one out")
    return parts[::2], places


def _writing(render: Callable[[Sequence[Sent]], str], name: str) -> _Writing:
    """Return how the template writes the contents of a role."""
    roles, place = _ROLES[name]
    role, (before, _) = roles[place], _between(render, roles)

    def written(content: str) -> str:
        text = render([Sent(each, content if n == place else _MARK.format(n)) for n, each in enumerate(roles)])
        start = "".join(part + _MARK.format(n) for n, part in enumerate(before[:place])) + before[place]
        rest = before[place + 1] + "".join(
            _MARK.format(place + 1 + n) + part for n, part in enumerate(before[place + 2 :])
        )
        if not text.startswith(start) or not text.endswith(rest) or len(text) < len(start) + len(rest):
            raise ExportError(
                f"what it writes around the {role}'s message depends on the message {json.dumps(content)}"
            )
        return text[len(start) : len(text) - len(rest)]

    texts = ("\n a", " \n\x1f\u00a0a b \n\x1f", *(f" <x>a{end}\n\t \n b \n" for end in _ENDS))
    found = [written(text) for text in texts]
    thoughts = _THOUGHTS if role == "assistant" else _THOUGHTS[:1]
    for left, right, early, (end, strip) in product(_LEFT, (False, True), (False, True), thoughts):
        writing = _Writing(left, right, early, end, strip)
        if [writing.written(text) for text in texts] == found:
            return writing
    raise ExportError(f"it changes the {role}'s messages {json.dumps(texts)} to {json.dumps(found)}")


def _difference(found: str, expected: str, messages: Sequence[Sent]) -> str:
    place = next(n for n in range(len(found) + len(expected)) if found[n : n + 1] != expected[n : n + 1])
    return (
        f"of {' '.join(each.role for each in messages)} it writes {expected[max(0, place - 20) : place + 40]!r}, "
        f"the pattern has {found[max(0, place - 20) : place + 40]!r}"
    )
