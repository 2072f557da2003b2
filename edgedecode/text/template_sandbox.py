"""The jinja2 environment that chat templates are written for, set up as in transformers.

Templates come with a pack and are not trusted. The sandbox hides attributes that lead to Python's internals, makes
arguments immutable, refuses a long `range`, and limits memory and time to those of a `metered` rendering. Compiling a
template evaluates no expression of it.
"""

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

Untyped: TypeAlias = Any
"""A template's value: JSON, or a result of its operators."""


def template_sandbox() -> ImmutableSandboxedEnvironment:
    """Build a fresh environment with the filters, functions and tags that Hugging Face chat templates use."""
    sandbox = _MeteredSandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationTag, loopcontrols],
        optimized=False,
        finalize=_printed,
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
"""Filters that no chat template uses, and whose output or run time can be many times their input."""
_EACH, _JOINED, _MADE, _STEPPED = "_each", "_joined", "_made", "_stepped"
_PLACE_NBYTES = 8
"""A pointer in a list."""


class _MeteredSandbox(ImmutableSandboxedEnvironment):
    """Charges the rendering's meter for operators, calls, filters, loops and concatenation."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    literals = 0
    """Number of literal text pieces in the template."""

    def _generate(self, source: nodes.Template, *args: Untyped, **options: Untyped) -> str:
        self.literals = _literals(source)
        return super()._generate(_Charges().visit(source), *args, **options)

    def call_binop(self, context: Context, operator: str, left: Untyped, right: Untyped) -> Untyped:
        meter().take(largest_product(operator, left, right))
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, (list, tuple)):
            meter().text_bound(result)
        return result

    # Underscored parameter names, which no keyword argument of a template can have.
    def call(__self, __context: Context, __obj: Untyped, *args: Untyped, **kwargs: Untyped) -> Untyped:  # noqa: N805
        running, bound = meter(), getattr(__obj, "__wrapped__", __obj)
        args, kwargs = _materialized(args), dict(zip(kwargs, _materialized([*kwargs.values()]), strict=True))
        if isinstance(__obj, (BlockReference, LoopContext, Macro)):
            running.take(_PLACE_NBYTES * __self.literals)
        if isinstance(__obj, LoopContext):  # the next level of a recursive loop
            args = (each(args[0], _PLACE_NBYTES * __self.literals), *args[1:])
        owner = getattr(bound, "__self__", None)
        operands = (owner, *args) if isinstance(owner, (str, bytes, int)) else args
        name, operands = getattr(bound, "__name__", ""), (*operands, *kwargs.values())
        running.step(steps(name, operands))
        running.take(largest(name, operands))
        result = super().call(__context, __obj, *args, **kwargs)
        running.keep(result)
        return result

    def concat(self, pieces: Iterable[str]) -> str:
        """Concatenate the output of a template, a macro or a block."""
        running, kept = meter(), list[str]()
        for piece in pieces:
            running.take(_PLACE_NBYTES + len(piece))
            kept.append(piece)
        return "".join(kept)


class _Charges(NodeTransformer):
    """Wraps loops, comparisons, ~, lists and slices in filters that charge the meter."""

    def visit(self, node: nodes.Node, *args: Untyped, **options: Untyped) -> Untyped:
        self.generic_visit(node)
        if isinstance(node, nodes.For) and isinstance(node.iter, nodes.Expr):
            node.iter = _filter(_EACH, node.iter, nodes.Const(_PLACE_NBYTES * _literals(node)))
        elif isinstance(node, nodes.Concat):
            return _filter(_JOINED, *node.nodes)
        elif isinstance(node, (nodes.Compare, nodes.Test)):
            return _filter(_STEPPED, node)
        elif _is_constructor(node):
            return _filter(_MADE, node)
        elif isinstance(node, nodes.EvalContextModifier) and not all(
            isinstance(option.value, nodes.Const) for option in node.options
        ):
            raise SecurityError("autoescape takes true or false")  # anything else would be evaluated at compile time
        return node


def _is_constructor(node: nodes.Node) -> TypeGuard[nodes.Expr]:
    """Return whether an expression creates a list, a tuple, a mapping or a slice."""
    if isinstance(node, nodes.Tuple):
        return node.ctx == "load"
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Slice)
    return isinstance(node, (nodes.Dict, nodes.List))


def _filter(name: str, *args: nodes.Expr) -> nodes.Filter:
    node = nodes.Filter(args[0], name, list(args[1:]), [], None, None)
    node.set_lineno(args[0].lineno)
    return node


def _literals(node: nodes.Node) -> int:
    return sum(1 for _ in node.find_all(nodes.TemplateData))


@pass_context
def _printed(context: Context, value: object) -> str:
    """Return the text that `{{ }}` prints. It takes the context so that jinja2 evaluates nothing at compile time."""
    return text_of(value)


def _joined(*parts: object) -> str:
    """Implement the operator ~."""
    return "".join([text_of(part) for part in parts])


def _made(value: object) -> object:
    meter().keep(value)
    return value


def _stepped(value: object) -> object:
    meter().step()
    return value


def _metered_filter(name: str, function: Callable[..., Untyped]) -> Callable[..., Untyped]:
    """Wrap a filter so that its result is charged."""
    first = 1 if hasattr(function, "jinja_pass_arg") else 0

    @wraps(function)
    def charged(*args: Untyped, **options: Untyped) -> Untyped:
        running = meter()
        if name in ("join", "sum"):
            args = (*args[:first], *_materialized(args[first:]))
        given = (*args[first:], *options.values())
        running.step(steps(name, given))
        running.take(largest(name, given))
        result = function(*args, **options)
        if isinstance(result, GeneratorType):
            return each(result, ELEMENT_NBYTES)
        running.keep(result)
        return result

    return charged


def _materialized(args: Sequence[Untyped]) -> tuple[Untyped, ...]:
    """Turn generators into lists, which can be iterated twice; the generators charge for their elements."""
    return tuple(list(value) if isinstance(value, GeneratorType) else value for value in args)


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's text for training; rendering prints its content."""

    tags = {"generation"}  # noqa: RUF012 (declared so by jinja2)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_show"), [], [], body).set_lineno(line)

    def _show(self, caller: Callable[[], str]) -> str:
        return caller()


class _DictFunction:
    """`dict(...)` that does not expose the type and its attributes."""

    def __call__(self, *args: object, **kwargs: object) -> object:
        return dict(*args, **kwargs)

    def fromkeys(self, keys: Iterable[object], value: object = None) -> object:
        return dict.fromkeys(keys, value)


class _PublicNamespace(Namespace):
    """`namespace(...)` that refuses underscored names, so that no private attribute can be set."""

    # As in jinja2, there is no `self` parameter: a template may name an attribute `self`.
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

    def __repr__(self) -> str:  # without its content, which may be circular
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
