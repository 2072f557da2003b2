"""What the verbs of this ring share: named paths, `--prepare`, and silence of libraries while they work."""

from __future__ import annotations

import _thread
import json
import logging
import re
import signal
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Timer, main_thread
from types import FrameType
from typing import TYPE_CHECKING

from edgedecode.errors import EdgeDecodeError
from edgedecode.user_notices import NOTICES, NoticeLines

if TYPE_CHECKING:
    from .display import Report

__all__ = [
    "add_prepare",
    "check_adapter_names",
    "finish",
    "named_path",
    "notices_shown",
    "pack_is_there",
    "quiet",
    "refuse_others",
]

_NAMED = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)=(?P<path>.+)", re.DOTALL)
_NEXT_TRY_S = 0.05
_ENGINE = "onnx"
"""The engine whose kernels read weights in a layout of their own."""


@dataclass(frozen=True, slots=True)
class NamedPath:
    """An adapter as the command line names it."""

    name: str
    path: Path


def named_path(text: str) -> NamedPath:
    """Parse NAME=PATH; the name can be a file's."""
    found = _NAMED.fullmatch(text)
    if found is None:
        raise ArgumentTypeError(f"{text!r} is not NAME=PATH, with a name of letters, digits, dots and dashes")
    return NamedPath(found["name"], Path(found["path"]))


def check_adapter_names(arguments: Namespace) -> None:
    """End with a usage error where two adapters share a name."""
    names = [adapter.name for adapter in arguments.adapter]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        arguments.usage_error(f"argument --adapter: the name {twice[0]!r} is given twice")


def add_prepare(parser: ArgumentParser) -> None:
    """Add the option."""
    parser.add_argument(
        "--prepare",
        action="store_true",
        help="then lay the weights out for this machine's kernels, in the cache, so that the first chat opens at once",
    )


def finish(arguments: Namespace, report: Report) -> int:
    """Prepare the pack that was made where that was asked for, end with the JSON line, and return the exit code."""
    if arguments.prepare:
        report["kernels"] = kernels = _prepare(arguments.out)
        print(_prepared_line(kernels))
    if arguments.json:
        print(json.dumps(report))
    return 0


def refuse_others(arguments: Namespace, taken: Collection[str], *, message: str) -> None:
    """End with a usage error where options are given that are not `taken`; `message` has a place for their names.

    An option is given where it differs from its default: `configure` leaves the parser's `get_default` in `default_of`.
    """
    others = set(vars(arguments)) - {*taken, "verb", "json", "debug"}
    given = [name for name, value in vars(arguments).items() if name in others and value != arguments.default_of(name)]
    if given:
        arguments.usage_error(message.format(", ".join(f"--{name.replace('_', '-')}" for name in given)))


@contextmanager
def pack_is_there(line: str) -> Iterator[None]:
    """Begin errors with `line`, which says that the pack was made: what failed came after that."""
    try:
        yield
    except EdgeDecodeError as error:
        said, *others = error.args
        error.args = (f"{line}: {said}", *others)
        raise
    except BrokenPipeError:  # the output was closed
        raise
    except OSError as error:
        error.strerror = f"{line}: {error.strerror or error}"
        raise


def _prepare(out: Path) -> Report:
    """Open a pack's models once on ONNX Runtime and return which kernels they have; empty: the engine's own."""
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
    """Return the line on which kernels the weights were prepared for."""
    found = sorted({str(name) for name in kernels.values() if name})
    if not found:
        return "nothing to prepare: ONNX Runtime's own kernels run this pack here (`edgedecode devices` says why)"
    return f"weights prepared for this machine's kernels ({', '.join(found)})"


@contextmanager
def quiet(*, debug: bool) -> Iterator[None]:
    """Let libraries speak only with --debug, and make a polite kill an exception, so that nothing is left behind."""
    logging.basicConfig(level=logging.ERROR, format="%(name)s: %(message)s" if debug else "edgedecode: %(message)s")
    logging.getLogger("edgedecode").setLevel(logging.DEBUG if debug else logging.WARNING)
    logging.getLogger("transformers").setLevel(logging.INFO if debug else logging.ERROR)
    before, hook = signal.getsignal(signal.SIGTERM), sys.unraisablehook
    try:
        signal.signal(signal.SIGTERM, _terminate)
    except ValueError:  # not the main thread, where no signal ends anything
        yield
        return
    sys.unraisablehook = _interrupted_again
    try:
        yield
    finally:
        sys.unraisablehook = hook
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


@contextmanager
def notices_shown() -> Iterator[None]:
    """Show the core's notices on standard error, a line each, as errors are shown, unless something does already."""
    logger = logging.getLogger(NOTICES)
    if logger.handlers:
        yield
        return
    lines = NoticeLines()
    level, propagate = logger.level, logger.propagate
    logger.addHandler(lines)
    logger.setLevel(logging.INFO)
    logger.propagate = False  # with --debug, the root shows these too
    try:
        yield
    finally:
        logger.removeHandler(lines)
        logger.setLevel(level)
        logger.propagate = propagate


def _terminate(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _interrupted_again(dropped: sys.UnraisableHookArgs) -> None:
    """Send a signal once more whose exception was raised where Python drops it: in a destructor or a weak reference."""
    ended = {SystemExit: signal.SIGTERM, KeyboardInterrupt: signal.SIGINT}.get(dropped.exc_type)
    if ended is None:
        sys.__unraisablehook__(dropped)
        return
    Timer(_NEXT_TRY_S, _signal_main_thread, [ended]).start()


def _signal_main_thread(number: signal.Signals) -> None:
    ident = main_thread().ident
    if hasattr(signal, "pthread_kill") and ident is not None:
        signal.pthread_kill(ident, number)  # wakes a system call, too
    else:
        _thread.interrupt_main(number)
