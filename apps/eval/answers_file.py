"""The file of answers: written as they come, one JSON object a line, and read again to continue after an interruption.

The first line says what the answers belong to. A last line without its end, from a process that was killed, is dropped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from edgedecode import InputError
from edgedecode.locks import Lock, take_lock
from edgedecode.text.printable import shown
from edgedecode.typed_json import typed

from ..tasks.arms import Answered

__all__ = ["AnswersFile", "Judged"]

_DIFFERENT = {
    "packs": "of other packs",
    "arms": "of other arms",
    "tasks": "to other tasks",
    "max_tokens": "of another length (-n)",
    "sampling": "with other sampling options",
    "seed": "with another seed",
    "runtime": "on another runtime",
    "kv_type": "with another KV type",
}
"""What a difference in the first line means, by its field."""


@dataclass(frozen=True, slots=True)
class Judged(Answered):
    """An answer with its judgement. correct: None: not judged."""

    family: str = ""
    correct: bool | None = None
    reason: str = ""


class AnswersFile:
    """Answers in memory and, with a path, in a file. Use it as a context manager.

    header: what the answers belong to. expected: the tasks and arms that it may have. Raises InputError if the file
    exists and may not be continued, is of something else, or cannot be read or written.
    """

    def __init__(
        self, path: Path | None, header: dict[str, Any], *, resume: bool, expected: Collection[tuple[str, str]]
    ) -> None:
        self._path, self._file, self._lock = path, None, Lock(-1)
        self.answers: list[Judged] = []
        self._first = json.dumps({"edgedecode": "answers", **header}).encode() + b"\n"
        self._expected = set(expected)
        if path is None:
            return
        try:
            self._file = self._opened(path, resume=resume)
        except OSError as error:
            raise self._failure(error) from None

    @property
    def done(self) -> set[tuple[str, str]]:
        """The task and arm of every answer."""
        return {(answer.task, answer.arm) for answer in self.answers}

    def add(self, answer: Judged) -> None:
        """Keep an answer. Raises InputError if it cannot be written."""
        if self._file is not None:
            try:
                self._file.write(json.dumps(asdict(answer)).encode() + b"\n")
                self._file.flush()
            except OSError as error:
                raise self._failure(error) from None
        self.answers.append(answer)

    def __enter__(self) -> AnswersFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()
        if self._file is not None:
            self._file.close()

    def _opened(self, path: Path, *, resume: bool) -> BinaryIO:
        """Open the file for appending, after reading what is in it."""
        if not path.exists():
            file = path.open("x+b", buffering=0)
        elif not path.is_file():
            raise InputError(f"--answers {path} is not a file: name one")
        else:
            if path.stat().st_size and not resume:
                raise InputError(f"{path} exists: give --resume to continue it, or another --answers file")
            file = path.open("r+b", buffering=0)
        try:
            self._lock = _locked(path)
            content = file.read() if resume else b""
            whole = content.rpartition(b"\n")[0] + b"\n" if b"\n" in content else b""
            if whole:
                self._read(whole.decode("utf-8", "replace").split("\n")[:-1])
            elif not self._first.startswith(content):
                raise InputError(f"{path} is not a file of answers: give another --answers file")
            file.truncate(len(whole))
            file.seek(len(whole))
            if not whole:
                file.write(self._first)
        except BaseException:
            self._lock.release()
            file.close()
            raise
        return file

    def _read(self, lines: list[str]) -> None:
        """Read the lines of a file that is continued. Raises InputError."""
        self._check_header(lines[0])
        done: set[tuple[str, str]] = set()
        for number, line in enumerate(lines[1:], start=2):
            try:
                answer = typed(json.loads(line), Judged, "answer")
            except (ValueError, RecursionError) as error:
                why = " ".join(str(error).split())
                raise InputError(f"{self._path}, line {number} is damaged ({why}): remove that line") from None
            if (answer.task, answer.arm) not in self._expected or (answer.task, answer.arm) in done:
                raise InputError(f"{self._path}, line {number} is an answer of another run: remove that line")
            done.add((answer.task, answer.arm))
            self.answers.append(answer)

    def _check_header(self, line: str) -> None:
        expected: dict[str, Any] = json.loads(self._first)
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict) or found.get("edgedecode") != expected["edgedecode"]:
            raise InputError(f"{self._path} is not a file of answers: give another --answers file")
        different = [name for name in expected if found.get(name) != expected[name]]
        if different:
            what = " and ".join(_DIFFERENT.get(name, f"with another {name}") for name in different)
            raise InputError(f"{self._path} has answers {shown(what)}: give another --answers file")

    def _failure(self, error: OSError) -> InputError:
        return InputError(f"the answers {self._path} cannot be written or read: {error.strerror or error}")


def _locked(path: Path) -> Lock:
    """Lock the file. Raises InputError if another process writes it. No lock where the system has none for files."""
    if os.name == "nt":  # a lock would keep this process from writing too
        return Lock(-1)
    try:
        lock = take_lock(path)
    except OSError:
        return Lock(-1)
    if lock is None:
        raise InputError(f"another process writes answers to {path}: wait for it, or name another file")
    return lock
