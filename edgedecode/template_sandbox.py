"""The jinja2 environment that chat templates are written for, as transformers sets it up.

Templates come with a pack and are not trusted: the sandbox gives them no attribute that leads to Python, no way to
change what they are given and no long `range`. Knows nothing about messages or models.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import NoReturn

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

__all__ = ["template_sandbox"]


def template_sandbox() -> ImmutableSandboxedEnvironment:
    """Build a fresh environment with the filters, functions and tags that Hugging Face chat templates use."""
    sandbox = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    sandbox.filters["tojson"] = _to_json
    sandbox.globals["raise_exception"] = _raise_exception
    sandbox.globals["strftime_now"] = _strftime_now
    sandbox.globals["dict"] = _DictFunction()
    sandbox.globals["namespace"] = _PublicNamespace
    return sandbox


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's words for training; rendering shows what is inside."""

    tags = {"generation"}  # noqa: RUF012 (declared so by jinja2)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_show"), [], [], body).set_lineno(line)

    def _show(self, caller: Callable[[], str]) -> str:
        return caller()


class _DictFunction:
    """`dict(...)` without the type itself, whose attributes would be reachable."""

    def __call__(self, *args: object, **kwargs: object) -> object:
        return dict(*args, **kwargs)

    def fromkeys(self, keys: Iterable[object], value: object = None) -> object:
        return dict.fromkeys(keys, value)


class _PublicNamespace(Namespace):
    """`namespace(...)` that refuses underscored names, so that nothing private can be planted on it."""

    # jinja2 has no `self` here either: a template may name an attribute `self`.
    def __init__(*args: object, **kwargs: object) -> None:
        self, *rest = args
        assert isinstance(self, _PublicNamespace)
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _refuse_private(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: object) -> None:
        _refuse_private(name)
        Namespace.__setitem__(self, name, value)


def _refuse_private(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace takes no underscored attribute, got {name!r}")


def _raise_exception(message: object) -> NoReturn:
    raise TemplateError(str(message))


# Templates call this with json.dumps' own keywords; jinja2's filter would escape <, > and & for HTML.
def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
