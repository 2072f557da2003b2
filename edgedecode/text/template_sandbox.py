"""The jinja2 environment that chat templates are written for, as transformers sets it up.

Templates come with a pack and are not trusted: the sandbox gives them no attribute that leads to Python, no way to
change what they are given, no long `range`, and no more memory or time than a `metered` rendering has. Nothing is
worked out when a template is compiled.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import wraps
from types import GeneratorType
from typing import Any, NoReturn, TypeAlias, TypeGuard

from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import BlockReference, Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from .template_limits import ELEMENT_NBYTES, WIDEST, each, largest, largest_product, meter, steps, text_of

__all__ = ["template_sandbox"]

Untyped: TypeAlias = Any
"""A template's value: JSON, and whatever its operators make of it."""


def template_sandbox() -> ImmutableSandboxedEnvironment:
    """Build a fresh environment with the filters, functions and tags that Hugging Face chat templates use."""
    sandbox = _MeteredSandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationTag, loopcontrols],
        optimized=False,
        finalize=_shown,
    )
    for name in _UNBOUNDED:
        del sandbox.filters[name]
    del sandbox.globals["lipsum"]
    sandbox.filters["tojson"] = _to_json
    sandbox.filters = {name: _metered_filter(name, function) for name, function in sandbox.filters.items()}
    sandbox.filters |= {_EACH: each, _JOINED: _joined, _MADE: _made, _STEPPED: _stepped}
    sandbox.globals["raise_exception"] = _raise_exception
    sandbox.globals["strftime_now"] = _strftime_now
    sandbox.globals["dict"] = _DictFunction()
    sandbox.globals["namespace"] = _PublicNamespace
    return sandbox


_UNBOUNDED = ("pprint", "urlize", "wordwrap", "xmlattr")
"""Filters that no chat template uses, and that can make, or take, many times what they are given."""
_EACH, _JOINED, _MADE, _STEPPED = "_each", "_joined", "_made", "_stepped"
_PLACE_NBYTES = 8


class _MeteredSandbox(ImmutableSandboxedEnvironment):
    """Charges the rendering's meter for operators, calls and filters, for what loops, and for what is put together."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    literals = 0
    """How many pieces of plain text the template has."""

    def _generate(self, source: nodes.Template, *words: Untyped, **options: Untyped) -> str:
        self.literals = _literals(source)
        return super()._generate(_Charges().visit(source), *words, **options)

    def call_binop(self, context: Context, operator: str, left: Untyped, right: Untyped) -> Untyped:
        meter().take(largest_product(operator, left, right))
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, (list, tuple)):
            meter().spelled(result)
        return result

    # Names that no keyword argument of a template can have.
    def call(__self, __context: Context, __obj: Untyped, *args: Untyped, **kwargs: Untyped) -> Untyped:  # noqa: N805
        running, bound = meter(), getattr(__obj, "__wrapped__", __obj)
        args, kwargs = _settled(args), dict(zip(kwargs, _settled([*kwargs.values()]), strict=True))
        if isinstance(__obj, (BlockReference, LoopContext, Macro)):
            running.take(_PLACE_NBYTES * __self.literals)
        if isinstance(__obj, LoopContext):  # the next level of a recursive loop
            args = (each(args[0], _PLACE_NBYTES * __self.literals), *args[1:])
        owner = getattr(bound, "__self__", None)
        words = (owner, *args) if isinstance(owner, (str, bytes, int)) else args
        name, words = getattr(bound, "__name__", ""), (*words, *kwargs.values())
        running.step(steps(name, words))
        running.take(largest(name, words))
        result = super().call(__context, __obj, *args, **kwargs)
        running.keep(result)
        return result

    def concat(self, pieces: Iterable[str]) -> str:
        """Put together what a template, a macro or a block says."""
        running, kept = meter(), list[str]()
        for piece in pieces:
            running.take(_PLACE_NBYTES + len(piece))
            kept.append(piece)
        return "".join(kept)


class _Charges(NodeTransformer):
    """Puts what charges the meter around loops, comparisons, ~, lists and slices."""

    def visit(self, node: nodes.Node, *words: Untyped, **options: Untyped) -> Untyped:
        self.generic_visit(node)
        if isinstance(node, nodes.For) and isinstance(node.iter, nodes.Expr):
            node.iter = _filter(_EACH, node.iter, nodes.Const(_PLACE_NBYTES * _literals(node)))
        elif isinstance(node, nodes.Concat):
            return _filter(_JOINED, *node.nodes)
        elif isinstance(node, (nodes.Compare, nodes.Test)):
            return _filter(_STEPPED, node)
        elif _makes(node):
            return _filter(_MADE, node)
        elif isinstance(node, nodes.EvalContextModifier) and not all(
            isinstance(option.value, nodes.Const) for option in node.options
        ):
            raise SecurityError("autoescape takes true or false")  # anything else would be worked out at once
        return node


def _makes(node: nodes.Node) -> TypeGuard[nodes.Expr]:
    """Tell whether an expression makes a list, a mapping or a piece."""
    if isinstance(node, nodes.Tuple):
        return node.ctx == "load"
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Slice)
    return isinstance(node, (nodes.Dict, nodes.List))


def _filter(name: str, *words: nodes.Expr) -> nodes.Filter:
    made = nodes.Filter(words[0], name, list(words[1:]), [], None, None)
    made.set_lineno(words[0].lineno)
    return made


def _literals(node: nodes.Node) -> int:
    return sum(1 for _ in node.find_all(nodes.TemplateData))


@pass_context
def _shown(context: Context, value: object) -> str:
    """Make the text of what `{{ }}` shows; it takes the context, so that nothing is worked out beforehand."""
    return text_of(value)


def _joined(*parts: object) -> str:
    """Do what the operator ~ does."""
    return "".join([text_of(part) for part in parts])


def _made(value: object) -> object:
    meter().keep(value)
    return value


def _stepped(value: object) -> object:
    meter().step()
    return value


def _metered_filter(name: str, function: Callable[..., Untyped]) -> Callable[..., Untyped]:
    """Return the filter with a charge for what it makes."""
    first = 1 if hasattr(function, "jinja_pass_arg") else 0

    @wraps(function)
    def charged(*words: Untyped, **options: Untyped) -> Untyped:
        running = meter()
        if name in ("join", "sum"):
            words = (*words[:first], *_settled(words[first:]))
        given = (*words[first:], *options.values())
        running.step(steps(name, given))
        running.take(largest(name, given))
        result = function(*words, **options)
        if isinstance(result, GeneratorType):
            return each(result, ELEMENT_NBYTES)
        running.keep(result)
        return result

    return charged


def _settled(words: Sequence[Untyped]) -> tuple[Untyped, ...]:
    """Return the words with generators as lists, whose parts can be looked at twice; those charge for their parts."""
    return tuple(list(word) if isinstance(word, GeneratorType) else word for word in words)


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

    def __repr__(self) -> str:  # not what it holds, which may hold it
        return "namespace()"


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
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    running, pieces = meter(), list[str]()
    running.take(WIDEST * max(indent, 0) if isinstance(indent, int) else 0)
    for piece in encoder.iterencode(value):
        running.take(_PLACE_NBYTES + sys.getsizeof(piece))
        pieces.append(piece)
    return "".join(pieces)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
