"""Shared by the verbs `export`, `import` and `trim`: NAME=PATH options, `--prepare`, and log and signal setup."""

from __future__ import annotations

import logging
import re
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgedecode.commands import print_json
from edgedecode.errors import EdgeDecodeError
from edgedecode.user_notices import NOTICES, NoticeLines

from .signals import ending_on_sigterm

if TYPE_CHECKING:
    from .display import Report

_NAMED = re.compile(r"(?P<name>(draft:)?[A-Za-z0-9][A-Za-z0-9._-]*)=(?P<path>.+)", re.DOTALL)
_ENGINE = "onnx"
"""The engine whose kernels use a separate weight layout."""


@dataclass(frozen=True, slots=True)
class NamedPath:
    """An adapter given on the command line."""

    name: str
    path: Path


def named_path(text: str) -> NamedPath:
    """Parse NAME=PATH or draft:NAME=PATH, where NAME is valid as a file name."""
    found = _NAMED.fullmatch(text)
    if found is None:
        raise ArgumentTypeError(f"{text!r} is not NAME=PATH, with a name of letters, digits, dots and dashes")
    return NamedPath(found["name"], Path(found["path"]))


def check_adapter_names(arguments: Namespace) -> None:
    """Exit with a usage error if two adapters have the same name, or names that differ in case only.

    The folders of such names are the same on some file systems.
    """
    names = [adapter.name for adapter in arguments.adapter]
    lower = [name.lower() for name in names]
    if twice := sorted({name for name in names if lower.count(name.lower()) > 1}):
        arguments.usage_error(f"argument --adapter: the name {twice[0]!r} is given twice")


def add_prepare(parser: ArgumentParser) -> None:
    """Add the option."""
    parser.add_argument(
        "--prepare",
        action="store_true",
        help="then cache the weights in the layout of this machine's kernels, so that the first chat opens quickly",
    )


def finish(arguments: Namespace, report: Report) -> int:
    """Prepare the pack and print the JSON line, if requested; return the exit code."""
    if arguments.prepare:
        report["kernels"] = kernels = _prepare(arguments.out)
        print(_prepared_line(kernels))
    if arguments.json:
        print_json(report)
    return 0


def refuse_others(arguments: Namespace, taken: Collection[str], *, message: str) -> None:
    """Exit with a usage error if options other than `taken` are given; `message` is formatted with their names.

    An option is given if it differs from its default: `configure` stores the parser's `get_default` in `default_of`.
    """
    others = set(vars(arguments)) - {*taken, "verb", "json", "debug"}
    given = [name for name, value in vars(arguments).items() if name in others and value != arguments.default_of(name)]
    if given:
        arguments.usage_error(message.format(", ".join(f"--{name.replace('_', '-')}" for name in given)))


@contextmanager
def pack_is_there(line: str) -> Iterator[None]:
    """Prefix errors with `line`, which tells the user that the pack was made before the failure."""
    try:
        yield
    except EdgeDecodeError as error:
        message, *others = error.args
        error.args = (f"{line}: {message}", *others)
        raise
    except BrokenPipeError:  # the output was closed
        raise
    except OSError as error:
        error.strerror = f"{line}: {error.strerror or error}"
        raise


def _prepare(out: Path) -> Report:
    """Open a pack's models on ONNX Runtime, which caches their weights; return each one's kernels (empty: engine's)."""
    from edgedecode import load

    from ..stages import Stages
    from .display import LiveDisplay

    with (
        pack_is_there(f"the pack {out} is complete; its weights are not prepared"),
        notices_shown(),
        LiveDisplay() as display,
        Stages(display).stage("prepare weights"),
        load(out, runtime=_ENGINE) as pair,
    ):
        models = {"target": pair.target, "draft": pair.draft}
        return {role: model.card.kernels for role, model in models.items() if model is not None}


def _prepared_line(kernels: Report) -> str:
    """Return the line that names the kernels the weights were prepared for."""
    found = sorted({str(name) for name in kernels.values() if name})
    if not found:
        return "nothing to prepare: ONNX Runtime's own kernels run this pack here (`edgedecode devices` shows why)"
    return f"weights prepared for this machine's kernels ({', '.join(found)})"


@contextmanager
def quiet(*, debug: bool) -> Iterator[None]:
    """Silence libraries unless --debug is given, and turn SIGTERM into SystemExit, so that cleanup runs."""
    logging.basicConfig(level=logging.ERROR, format="%(name)s: %(message)s" if debug else "edgedecode: %(message)s")
    logging.getLogger("edgedecode").setLevel(logging.DEBUG if debug else logging.WARNING)
    logging.getLogger("transformers").setLevel(logging.INFO if debug else logging.ERROR)
    with ending_on_sigterm():
        yield


@contextmanager
def notices_shown() -> Iterator[None]:
    """Print the core's notices to standard error, one line each, unless a handler is installed already."""
    logger = logging.getLogger(NOTICES)
    if logger.handlers:
        yield
        return
    lines = NoticeLines()
    level, propagate = logger.level, logger.propagate
    logger.addHandler(lines)
    logger.setLevel(logging.INFO)
    logger.propagate = False  # with --debug, the root logger would print them again
    try:
        yield
    finally:
        logger.removeHandler(lines)
        logger.setLevel(level)
        logger.propagate = propagate
