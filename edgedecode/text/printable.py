"""Check and escape untrusted text: bytes and arguments that must be UTF-8, names that are printed to a terminal."""

import re
import sys
from functools import cache
from pathlib import Path

from edgedecode.errors import InputError

_CONTROL = r"\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff"
_NO_LINE = re.compile(rf"[{_CONTROL}\t\n\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Characters that move a terminal's cursor, start its commands, end a line, or change the text direction."""
_NO_ANSWER = re.compile(f"[{_CONTROL}]")
_LARGEST_FILE = 64 << 20
_STANDARD_INPUT = ("-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")


def shown(text: str) -> str:
    """Return untrusted text that is safe to print in one line: characters that control a terminal are escaped."""
    return _NO_LINE.sub(_escape, text)


def counted(number: int, noun: str, many: str = "") -> str:
    """Return a number and its noun: `1 file`, `2 files`. many: the plural, if it is not made with an s."""
    return f"{number} {noun if number == 1 else many or noun + 's'}"


def shown_lines(text: str) -> str:
    """Return a text of several lines, each escaped as in `shown`."""
    return "\n".join(map(shown, text.split("\n")))


def shown_answer(text: str) -> str:
    """Return model output that is safe to print: newlines, tabs and right-to-left marks stay."""
    return _NO_ANSWER.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    return ascii(found[0])[1:-1]


def decoded_text(data: bytes, name: str) -> str:
    """Decode UTF-8. Raises InputError naming the first invalid byte."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{name} is not valid UTF-8: byte 0x{data[error.start]:02x} at offset {error.start}; convert it first"
        ) from None


def is_standard_input(path: str | Path | None) -> bool:
    """Return whether a path names standard input: `-`, or one of the system's names for it."""
    return str(path) in _STANDARD_INPUT


def file_bytes(path: Path) -> bytes:
    """Read a file of at most 64 MiB; `-` is standard input. Raises InputError, OSError.

    A pipe gives its content once: it stays in memory, so that it can be read again, by any of its names.
    """
    if is_standard_input(path):
        return piped_bytes(Path("-"))
    return _read(path) if path.is_file() else piped_bytes(path)


@cache
def piped_bytes(path: Path) -> bytes:
    """Read what is not a regular file. The command line clears the cache when it begins."""
    return _read(path)


def _read(path: Path) -> bytes:
    if str(path) == "-":
        if sys.stdin is None:
            raise InputError("standard input is closed: nothing can be read from it")
        data = sys.stdin.buffer.read(_LARGEST_FILE + 1)
    else:
        with path.open("rb") as file:  # the size that the system states says nothing for devices and pipes
            data = file.read(_LARGEST_FILE + 1)
    if len(data) > _LARGEST_FILE:
        raise InputError(f"{path} is larger than {_LARGEST_FILE >> 20} MiB: pass a part of it")
    return data


def file_text(path: Path) -> str:
    """Read a file that must be text. Raises InputError, OSError."""
    content = decoded_text(file_bytes(path), "standard input" if is_standard_input(path) else str(path))
    if "\0" in content:
        raise InputError(f"{path} is not text: it has a zero byte at character {content.index(chr(0))}")
    return content


def checked_text(text: str, name: str) -> str:
    """Return `text`. Raises InputError for lone surrogates, from invalid UTF-8 in the shell or JSON's \\ud800."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(f"{name} is not valid UTF-8 at character {error.start}") from None
    return text
