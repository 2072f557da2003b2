"""The fields `tools` and `tool_choice`, in the forms of both chats and responses."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct

from edgedecode import InputError

from .fields import enum

CHOICES = ("none", "auto", "required")
"""What `tool_choice` may be besides a choice of functions."""
_NAMESPACE = "namespace"
"""A type of tools: a group of functions, as Codex sends those of an MCP server."""


class _Function(Struct, frozen=True):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Struct, frozen=True):
    """A tool that is no group."""

    type: Annotated[str, Meta(description="function or namespace; others are left out.")] | None = None
    function: _Function | None = None
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @property
    def described(self) -> _Function | None:
        """The function, however it is given."""
        if self.function is not None or self.name is None:
            return self.function
        return _Function(self.name, self.description, self.parameters, self.strict)


class ToolBody(Tool, frozen=True):
    """An item of the field `tools`: a function, in an object of its own as in chats, or without it as in responses.

    tools: those of a namespace.
    """

    tools: list[Tool] | None = None


class _Named(Struct, frozen=True):
    name: str


class _Allowed(Struct, frozen=True, kw_only=True):
    mode: Annotated[str, enum("auto", "required")] = "auto"
    tools: list[ToolBody] | None = None


class ChoiceBody(_Allowed, frozen=True, kw_only=True):
    """The field `tool_choice`, where it names a function, or some that are allowed, or is a word as an object.

    name, mode, tools: in the form of responses.
    """

    type: Annotated[str, enum("function", "allowed_tools", *CHOICES)]
    function: _Named | None = None
    name: str | None = None
    allowed_tools: _Allowed | None = None


def left_out(tools: Sequence[ToolBody]) -> tuple[str, ...]:
    """Return a note about the tools that are no functions, if there are any."""
    inner = [each for tool in tools if tool.type == _NAMESPACE for each in tool.tools or []]
    kinds = sorted({str(tool.type)[:40] for tool in (*tools, *inner)} - {"function", _NAMESPACE})
    return (f"tools of the types {', '.join(kinds)} were left out",) if kinds else ()


def offered_functions(tools: Sequence[ToolBody]) -> Iterator[tuple[Tool, str, str]]:
    """Yield the functions, each with its place and its namespace. Raises InputError for a tool of no type."""
    for number, tool in enumerate(tools):
        place = f"tools[{number}]"
        if tool.type is None:
            raise InputError(f"{place}.type is missing")
        if tool.type == "function":
            yield tool, place, ""
        elif tool.type == _NAMESPACE:
            inside = enumerate(tool.tools or [])
            yield from ((each, f"{place}.tools[{n}]", tool.name or "") for n, each in inside if each.type == "function")
