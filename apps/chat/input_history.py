"""The user's past inputs, kept in the cache so that a later chat can recall them."""

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from edgedecode.cache import cache_folder, close_to_others, open_private, replace_text

AREA = "history"
_FILE = "inputs.jsonl"
MOST_ENTRIES = 1000
"""Inputs kept; the file has up to twice as many before the oldest are deleted."""
_LONGEST = 1 << 16
"""Characters of the longest input that is kept."""
_MOST_NBYTES = 1 << 24
"""Larger files are not read: no chat wrote them."""


class InputHistory:
    """Inputs of this chat and, with a path, of earlier ones: `entries`, oldest first.

    path: a file with one JSON string per line, which only this user may read; None: nothing is read or written. Chats
    in several terminals append to the same file. A file that cannot be read or written is ignored.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        found = [] if path is None else list(_entries(path))
        self.entries = found[-MOST_ENTRIES:]
        if path is not None and len(found) > 2 * MOST_ENTRIES:
            _replace(path, self.entries)

    def add(self, text: str) -> None:
        """Keep an input, unless it is blank, repeats the last one, is too long, or is not valid text."""
        if not text.strip() or len(text) > _LONGEST or text in self.entries[-1:] or not _is_text(text):
            return
        self.entries.append(text)
        if self._path is None:
            return
        with suppress(OSError), open(self._path, "a", encoding="utf-8", opener=open_private) as file:
            close_to_others(self._path)
            file.write(_line(text))


def kept_history() -> InputHistory:
    """Return the history in the user's cache; one without a file if the cache cannot be written."""
    folder = cache_folder(AREA, private=True)
    return InputHistory(None if folder is None else folder / _FILE)


def _line(text: str) -> str:
    return json.dumps(text) + "\n"


def _entries(path: Path) -> Iterable[str]:
    """Yield the inputs in a file; other lines are skipped."""
    try:
        if not path.is_file() or path.stat().st_size > _MOST_NBYTES:
            return
        lines = path.read_bytes().splitlines()
    except OSError:
        return
    for line in lines:
        with suppress(ValueError, RecursionError):
            text = json.loads(line)
            if isinstance(text, str) and _is_text(text):
                yield text


def _is_text(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _replace(path: Path, entries: Iterable[str]) -> None:
    with suppress(OSError):
        replace_text(path, "".join(map(_line, entries)), private=True)
