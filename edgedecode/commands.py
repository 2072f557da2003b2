"""The interface of CLI verbs, and parsers of their options' values. Verbs register under the entry-point group
`edgedecode.commands` and are loaded by name."""

import json
import math
import os
import re
import sys
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, Namespace, _ArgumentGroup
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from typing import Protocol, TextIO

from edgedecode.text.thinking import MOST_THOUGHT, NO_LIMIT

__all__ = [
    "MOST",
    "Command",
    "add_color",
    "add_json",
    "add_pack",
    "add_prompt",
    "add_stats",
    "answer_seed",
    "biased_token",
    "count",
    "json_alone",
    "name_list",
    "positive_count",
    "print_json",
    "real_number",
    "scaled_name",
    "seed",
    "template_argument",
    "whole_number",
]

MOST = 10**9 - 1
"""The largest count that any option takes."""
_WHOLE = re.compile(r"-?[0-9]+")
_REAL = re.compile(r"-?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_BIAS = re.compile(r"([0-9]{1,9})(?:=|(?=[+-]))(.+)")
_SHOWN = 40
"""Longest argument that a message quotes in full, in characters."""


def whole_number(text: str, *, least: int = -MOST, most: int = MOST) -> int:
    """Parse a whole number in plain digits. Raises ArgumentTypeError with what is expected."""
    if not _WHOLE.fullmatch(text):
        raise ArgumentTypeError(f"{_shown(text)} is not a whole number: write it in digits, for example 64")
    value = int(text) if len(text) <= len(str(2**64)) else math.copysign(math.inf, -1 if text[0] == "-" else 1)
    if value < least:
        raise ArgumentTypeError(f"{_shown(text)} is too small: the minimum is {least}")
    if value > most:
        raise ArgumentTypeError(f"{_shown(text)} is too large: the maximum is {most}")
    return int(value)


def count(text: str) -> int:
    """Parse a whole number of 0 or more."""
    return whole_number(text, least=0)


def positive_count(text: str) -> int:
    """Parse a whole number of 1 or more."""
    return whole_number(text, least=1)


def thinking_budget(text: str) -> int:
    """Parse the most tokens of a thought; -1: no limit."""
    return whole_number(text, least=NO_LIMIT, most=MOST_THOUGHT)


def seed(text: str) -> int:
    """Parse a seed: 64 bits."""
    return whole_number(text, least=0, most=2**64 - 1)


def answer_seed(text: str) -> int | None:
    """Parse a seed of answers; None for -1, which means a random one, as it does to llama.cpp."""
    return None if text == "-1" else seed(text)


def template_argument(text: str) -> tuple[str, object]:
    """Read `name=value`; a value that is not JSON is a text."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ArgumentTypeError(f"{_shown(text)} is not NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def name_list(text: str) -> list[str]:
    """Parse a comma-separated list of names."""
    names = [name for part in text.split(",") if (name := part.strip())]
    if not names:
        raise ArgumentTypeError("give at least one name, or a list such as A,B")
    return names


def real_number(text: str) -> float:
    """Parse a number such as 0.7 or 1e-3. Raises ArgumentTypeError with what is expected."""
    value = float(text) if _REAL.fullmatch(text) else math.inf
    if not math.isfinite(value):
        raise ArgumentTypeError(f"{_shown(text)} is not a number: write it as, for example, 0.7")
    return value


def biased_token(text: str) -> tuple[int, float]:
    """Parse ID=X, or llama.cpp's ID+X and ID-X. Raises ArgumentTypeError with what is expected."""
    found = _BIAS.fullmatch(text)
    if found is None:
        raise ArgumentTypeError(f"{_shown(text)} is no bias of a token: write ID=X, for example 50=-100")
    return int(found[1]), real_number(found[2].removeprefix("+"))


def scaled_name(text: str) -> tuple[str, float]:
    """Parse NAME or NAME:SCALE; the scale defaults to 1."""
    name, colon, scale = text.partition(":")
    if not name.strip():
        raise ArgumentTypeError(f"{_shown(text)} has no name: write NAME or NAME:SCALE")
    return name.strip(), real_number(scale.strip()) if colon else 1.0


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")


def add_pack(parser: ArgumentParser, group: ArgumentParser | _ArgumentGroup) -> None:
    """Add the pack as a word, and to `group` as an option; the command line puts either into `model`."""
    what = "the model: a pack or a GGUF file, a name of `edgedecode list`, a hub id (owner/name) or `demo`"
    parser.add_argument("pack", nargs="?", metavar="PACK", help=what)
    group.add_argument("-m", "--model", metavar="PACK", help="the same, as an option (default: demo, the bundled one)")


def add_prompt(parser: ArgumentParser, help: str) -> None:
    """Add a prompt, after `add_pack`: a single word is the pack if it can only mean one, else the prompt."""
    parser.add_argument("prompt_text", nargs="?", metavar="PROMPT", help=help)


def add_stats(parser: ArgumentParser) -> None:
    """Add --stats. The command line writes `--stats=short` for it alone, since a prompt may follow."""
    parser.add_argument(
        "--stats",
        choices=("short", "full"),
        metavar="[full]",
        help="show speed, drafts and peak memory after each answer; `--stats full`: all that was counted",
    )


def add_color(parser: ArgumentParser) -> None:
    """Add --color."""
    parser.add_argument(
        "--color",
        choices=["auto", "always", "never"],
        default="never",
        help="colour tokens by source: green for accepted ones of a draft model, cyan for lookups, yellow for "
        "unverified ones; auto: only on a terminal (default: never)",
    )


def add_json(parser: ArgumentParser, *, inner: bool = False) -> None:
    """Add `--json`, with which standard output carries what `print_json` prints and nothing else.

    inner: the parser is one of an action of a verb that has the option too.
    """
    default = SUPPRESS if inner else False
    parser.add_argument("--json", action="store_true", default=default, help="print one line of JSON, and nothing else")


_JSON_OUTPUT: ContextVar[TextIO | None] = ContextVar("standard output, while only JSON is printed to it", default=None)


@contextmanager
def json_alone() -> Iterator[None]:
    """While entered, drop what is printed to standard output except by `print_json`."""
    token = _JSON_OUTPUT.set(sys.stdout)
    try:
        with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
            yield
    finally:
        _JSON_OUTPUT.reset(token)


def print_json(value: object) -> None:
    """Print a value in one line. Numbers that JSON lacks, which are infinite or undefined, become null."""
    print(json.dumps(_finite(value), allow_nan=False), file=_JSON_OUTPUT.get() or sys.stdout, flush=True)


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


class Command(Protocol):
    """One verb of the command line. Importing its module must stay light: engines load inside `run`."""

    @property
    def name(self) -> str: ...
    @property
    def help(self) -> str:
        """One line for the list of verbs."""
        ...

    def configure(self, parser: ArgumentParser) -> None:
        """Add the verb's arguments."""
        ...

    def run(self, arguments: Namespace) -> int:
        """Do the work and return the exit code. EdgeDecodeError becomes one line on stderr and exit code 1."""
        ...
