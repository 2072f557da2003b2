"""The command line: finds the verbs, turns errors into one line and an exit code. Knows no verb by name."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from typing import cast

from edgedecode.commands import Command
from edgedecode.errors import BudgetExceeded, EdgeDecodeError
from edgedecode.registry import COMMANDS, installed
from edgedecode.text import shown, shown_lines

__all__ = ["main"]

_INTERRUPTED = 130
_DESCRIPTION = "Run and export small language models: speculative decoding inside a memory budget, never lossy."


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0, 1 for a refused input, 2 for usage, 130 for Ctrl-C."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller: `edgedecode … >&-`
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except EdgeDecodeError as error:
        if debug:
            raise
        print(f"edgedecode: {_one_line(error)}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        _abandon_stdout()
        return 128 + (signal.SIGPIPE if hasattr(signal, "SIGPIPE") else 13)
    except KeyboardInterrupt:
        if debug:
            raise
        print("edgedecode: interrupted", file=sys.stderr)
        return _INTERRUPTED
    except OSError as error:
        if debug:
            raise
        _abandon_stdout()
        print(
            f"edgedecode: {error.strerror or error}{f': {error.filename}' if error.filename else ''}", file=sys.stderr
        )
        return 1
    except MemoryError:
        if debug:
            raise
        print(
            "edgedecode: the machine has no memory left; give a --memory budget or a smaller --ctx-size",
            file=sys.stderr,
        )
        return 1


def _run(arguments: list[str]) -> int:
    from edgedecode import __version__

    parser = argparse.ArgumentParser(prog="edgedecode", description=_DESCRIPTION, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"edgedecode {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    asked = next((word for word in arguments if not word.startswith("-")), None)
    commands: dict[str, Command] = {}
    entries = installed(COMMANDS)
    for name, entry in entries.items():
        if asked == name or asked not in entries:
            commands[name] = command = cast(Command, entry.load())
            verb = verbs.add_parser(name, help=command.help, description=command.help, allow_abbrev=False)
            command.configure(verb)
            verb.add_argument("--debug", action="store_true", help="show tracebacks and the engines' logs")
    namespace = parser.parse_args(arguments)
    return commands[namespace.verb].run(namespace)


def _abandon_stdout() -> None:
    """Point stdout elsewhere once it failed, so that the interpreter's own flush at exit does not complain."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _one_line(error: EdgeDecodeError) -> str:
    """A refusal of the budget shows its table; everything else is one line."""
    return shown_lines(str(error)) if isinstance(error, BudgetExceeded) else shown(" ".join(str(error).split()))


if __name__ == "__main__":
    sys.exit(main())
