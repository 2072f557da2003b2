"""Functions that a request offers to the model, and the calls that an answer makes.

A call is a JSON object, `{"name": …, "arguments": …}`, which a grammar holds to the function's schema, so it works with
any pack. The functions are described in the system message.
"""

import json
import re
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from edgedecode import InputError, Message
from edgedecode.structured.grammar import Grammar, is_text
from edgedecode.structured.guidance import schema_fault
from edgedecode.structured.loosening import OPEN, Change, in_json_schema, nearest
from edgedecode.structured.one_schema import SCALARS
from edgedecode.typed_json import JsonValue

from .tool_fields import CHOICES, ChoiceBody, Tool, ToolBody, offered_functions

_MOST_FUNCTIONS, _MOST_CALLS = 128, 8
"""Of a request, and of an answer: a small model may not stop by itself."""
_DECODER = json.JSONDecoder()
_OPENING = '{"name":"'
_OPENING_MOST = 64
"""Characters of an answer in which a call's opening is looked for, with the white space in it."""
_BEGUN = re.compile(r'\{\s*"name"\s*:\s*"([\w.:/-]*)("?)(?:\s*,\s*"arguments"\s*:\s*(.*))?', re.DOTALL)
"""The beginning of a call: the name, whether it is complete, and the arguments so far."""
_NAME = re.compile(r"[\w.:/-]{1,128}")  # MCP allows dots too, and servers write paths


@dataclass(frozen=True, slots=True)
class Function:
    """parameters: the JSON Schema of its arguments, as given. followed: the nearest one that a grammar can follow.

    name: begins with the namespace, if it has one, and a dot.
    """

    name: str
    description: str
    parameters: dict[str, JsonValue]
    followed: dict[str, JsonValue]
    changes: tuple[Change, ...] = ()
    namespace: str = ""

    def opened(self, number: int) -> "Function":
        """Return the function with a grammar that takes any object as its arguments."""
        reason = "all functions together are too large for a grammar"
        return replace(
            self, followed=OPEN, changes=(*self.changes, Change(f"tools[{number}].function.parameters", reason))
        )


@dataclass(frozen=True, slots=True)
class Call:
    """A call that an answer makes. arguments: JSON, as the model wrote it. fault: why they do not follow the schema.

    cut: the limit or a stop string ended the answer within it.
    """

    name: str
    arguments: str
    fault: str | None = None
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Tools:
    """What an answer may call. required: it has to be a call; else the model decides, by its first character.

    several: it may be up to 8 calls. form: the JSON Schema of an answer that is not a call; None: any text.
    """

    functions: tuple[Function, ...]
    required: bool = False
    several: bool = False
    form: dict[str, JsonValue] | None = None

    @property
    def grammar(self) -> Grammar:
        """The grammar of an answer: calls, or if none is required also its form, or any text that does not begin with
        a brace."""
        lines = _MOST_CALLS if self.several else 1
        return Grammar.of_schema(self._schema(), or_text=not self.required and self.form is None, lines=lines)

    def _schema(self) -> dict[str, JsonValue]:
        calls: list[JsonValue] = [
            {
                "type": "object",
                "properties": {
                    "name": {"const": each.name},
                    "arguments": _moved(each.followed, f"#/anyOf/{number}/properties/arguments"),
                },
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
            for number, each in enumerate(self.functions)
        ]
        if self.form is not None and not self.required:
            calls.append(_moved(self.form, f"#/anyOf/{len(calls)}"))
        return {"anyOf": calls}

    def fitting(self) -> "Tools":
        """Return tools with a grammar that can be compiled: the largest functions take any object if needed."""
        places = sorted(range(len(self.functions)), key=lambda place: -len(json.dumps(self.functions[place].followed)))

        def opened(count: int) -> Tools:
            large = {*places[:count]}
            found = enumerate(self.functions)
            return replace(self, functions=tuple(each.opened(n) if n in large else each for n, each in found))

        counts = range(len(places))
        return opened(bisect_left(counts, True, key=lambda count: schema_fault(opened(count)._schema()) is None))

    @property
    def changes(self) -> tuple[Change, ...]:
        """What of the functions' schemas is not followed, and is checked after decoding."""
        return tuple(change for each in self.functions for change in each.changes)

    def introduced(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Return the messages with a description of the functions in the system message."""
        may = "Call" if self.required else "If it helps, call"
        lines = [
            json.dumps({"name": each.name, "description": each.description, "parameters": each.parameters})
            for each in self.functions
        ]
        call = 'A call is one line, {"name": ..., "arguments": ...}'
        if self.several:
            rule = f"{may} some of these functions. {call}; write the calls one below the other, and nothing else."
        else:
            rule = f"{may} one of these functions. {call}, and nothing else."
        text = "\n".join([rule, *lines])
        if messages and messages[0].role == "system":
            return (Message("system", f"{messages[0].content}\n\n{text}"), *messages[1:])
        return (Message("system", text), *messages)

    def may_call(self, answer: str) -> bool:
        """Return whether an answer that begins so may be a call."""
        begun = "".join(answer[:_OPENING_MOST].split())
        return bool(begun) and (begun.startswith(_OPENING) or _OPENING.startswith(begun))

    def is_call(self, answer: str) -> bool:
        """Return whether the grammar makes an answer that begins so a call, of whichever function."""
        return answer.startswith("{") and (self.required or self.form is None)

    def calls(self, answer: str, *, ended: bool = False) -> tuple[Call, ...]:
        """Return the calls that an answer makes; none if it is text.

        ended: nothing follows, so that the last call may be cut off.
        """
        found: list[Call] = []
        rest = answer.strip()
        while rest.startswith("{") and (self.several or not found):
            try:
                value, end = _DECODER.raw_decode(rest)
                found.append(self._checked(_call(value, rest[:end])))
            except (ValueError, KeyError, TypeError, RecursionError):
                return (*found, *self._begun(rest)) if ended else ()
            rest = rest[end:].lstrip()
        known = {each.name for each in self.functions}
        return () if rest or any(each.name not in known for each in found) else tuple(found)

    def _begun(self, text: str) -> tuple[Call, ...]:
        """Return the call whose beginning a text is; none if it does not tell the function."""
        begin = _BEGUN.match(text)
        name, complete, arguments = begin.groups() if begin is not None else ("", "", None)
        if arguments is None and not self.is_call(text):  # the form may begin so too
            return ()
        names = [each.name for each in self.functions if each.name == name]
        if not names and not complete:  # the name itself is cut off
            names = [each.name for each in self.functions if each.name.startswith(name)]
        return (Call(names[0], arguments or "", cut=True),) if len(names) == 1 else ()

    def _checked(self, call: Call) -> Call:
        """Return a call with what is wrong about its arguments, where the grammar did not follow the whole schema."""
        function = next((each for each in self.functions if each.name == call.name), None)
        if function is None or not function.changes:
            return call
        return replace(call, fault=arguments_fault(in_json_schema(function.parameters), call.arguments))


def arguments_fault(schema: dict[str, JsonValue], arguments: str) -> str | None:
    """Return why arguments do not follow a schema; None: they do, or the schema itself is wrong."""
    import jsonschema_rs  # of the extra `serve`; rarely needed, so it is not loaded before

    try:
        found = jsonschema_rs.validator_for(schema, retriever=_retrieved)
    except (ValueError, jsonschema_rs.ReferencingError):  # such as a reference that leads nowhere
        return None
    fault = next(iter(found.iter_errors(json.loads(arguments))), None)
    if fault is None:
        return None
    place = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in fault.instance_path)
    return f"arguments{place}: {' '.join(str(fault.message).split())[:300]}"


def _retrieved(uri: str) -> None:
    """Refuse to fetch what a schema refers to: a request must not make this machine read files or other servers."""
    raise ValueError(f"{uri[:80]} is not read")


def _call(value: dict[str, JsonValue], text: str) -> Call:
    """Return the call that a value is, which the model wrote as `text`. Raises KeyError and TypeError for another."""
    name, arguments = str(value["name"]), value["arguments"]
    if len(value) != 2:
        raise KeyError(name)
    start = _opening(name)
    return Call(name, text[len(start) : -1] if text.startswith(start) else _spelled(arguments))


def call_text(call: Call) -> str:
    """Return the text of a call in an earlier message, as models spell it; arguments that are no JSON as they are.

    Such are the arguments of a call that its answer's limit cut off.
    """
    start = _opening(call.name)
    try:
        return f"{start}{_spelled(_given(call.arguments))}}}"
    except (ValueError, RecursionError):
        return start + call.arguments


def _opening(name: str) -> str:
    """Return what a call of a function begins with, up to its arguments."""
    return f'{{"name": {_spelled(name)}, "arguments": '


def _given(arguments: str) -> JsonValue:
    """Return arguments, which some clients encode several times; an empty text means none. Raises ValueError."""
    value: JsonValue = json.loads(arguments) if arguments.strip() else {}
    if isinstance(value, str):
        with suppress(ValueError):  # it is a text
            return _given(value)
    return value


def _spelled(value: JsonValue) -> str:
    """Return JSON as models spell it: on one line, with a space after each colon and comma, and letters as they are."""
    text = json.dumps(value, ensure_ascii=False)
    return text if is_text(text) else json.dumps(value)


def read_tools(
    tools: Sequence[ToolBody],
    asked: str | ChoiceBody | None,
    *,
    several: bool = False,
    form: dict[str, JsonValue] | None = None,
) -> Tools | None:
    """Read the fields `tools` and `tool_choice`; None: nothing may be called. Raises InputError.

    several: an answer may make several calls. form: as in `Tools`.
    """
    if isinstance(asked, ChoiceBody):
        for place, each in (("", asked), (".allowed_tools", asked.allowed_tools)):
            if each is not None and each.mode not in ("auto", "required"):
                raise InputError(f"tool_choice{place}.mode must be auto or required")
        if asked.type in CHOICES and asked.function is None:
            asked = asked.type
    offered = [*offered_functions(tools)]
    if len(offered) > _MOST_FUNCTIONS:
        raise InputError(f"tools has {len(offered)} functions, the most is {_MOST_FUNCTIONS}")
    functions = tuple(_function(tool, place, namespace) for tool, place, namespace in offered)
    names = [each.name for each in functions]
    if len({*names}) < len(names):
        raise InputError("tools has two functions of one name")
    if isinstance(asked, ChoiceBody):
        allowed, required = _allowed(asked, names)
        functions = tuple(each for each in functions if each.name in allowed)
    elif asked in (None, *CHOICES):
        required = asked == "required"
    else:
        raise InputError("tool_choice must be none, auto, required, or name a function")
    if required and not functions:
        raise InputError("tool_choice is required and there are no tools")
    if not functions or asked == "none":
        return None
    return Tools(functions, required=required, several=several, form=form).fitting()


def _allowed(choice: ChoiceBody, names: Sequence[str]) -> tuple[list[str | None], bool]:
    """Return which functions a choice allows, and whether one of them has to be called. Raises InputError."""
    found, required = list[str | None](), False
    if choice.type == "function":
        found, required = [choice.name if choice.function is None else choice.function.name], True
    elif choice.type == "allowed_tools":
        given = choice.allowed_tools or choice
        found = [function.name for each in given.tools or [] if (function := each.described) is not None]
        required = given.mode == "required"
    if not found or not {*found} <= {*names}:
        raise InputError("tool_choice names no function of tools")
    return found, required


def _function(tool: Tool, place: str, namespace: str) -> Function:
    found = tool.described
    if found is None:
        raise InputError(f"{place} is no function: this server offers functions only")
    name = f"{namespace}.{found.name}" if namespace else found.name
    if not _NAME.fullmatch(name):
        raise InputError(f"{place} has the name {name[:80]!r}: use up to 128 letters, digits and _ . : / -")
    parameters = found.parameters or {}
    given = {"type": "object", **({} if parameters else {"properties": {}}), **parameters}
    path = f"{place}{'.function' if tool.function else ''}.parameters"
    kind = in_json_schema(given)["type"]
    kinds = kind if isinstance(kind, list) else [kind]
    if kinds and all(each in ("array", *SCALARS) for each in kinds):
        raise InputError(f"{path}.type is {str(given['type'])[:40]!r}: what a function is given is an object")
    near = nearest(given, path=path)
    if near.changes and found.strict:
        raise InputError(f"{near.changes[0]} (of the function {found.name!r}, which has strict set)")
    return Function(name, found.description or "", given, near.schema, near.changes, namespace)


def _moved(schema: JsonValue, root: str) -> JsonValue:
    """Return a schema with its references to its own root, which is now inside another schema, at `root`."""
    if isinstance(schema, dict):
        moved = {name: _moved(value, root) for name, value in schema.items()}
        target = schema.get("$ref")
        if isinstance(target, str) and target.startswith("#"):
            moved["$ref"] = f"{root}{target[1:]}"
        return moved
    return [_moved(value, root) for value in schema] if isinstance(schema, list) else schema
