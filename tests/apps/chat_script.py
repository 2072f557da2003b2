"""A chat on a toy pair whose input is a script."""

import io
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import pytest

from edgedecode import Pair, SessionDetails, SessionOptions
from edgedecode.apps.chat.conversation import Conversation
from edgedecode.apps.chat.lines import QUITTING, Assistant
from edgedecode.apps.chat.slash import run_slash
from edgedecode.apps.colour import Paint

__all__ = ["OPTIONS", "Script", "conversation_of", "piped", "talk"]

Line = str | type[BaseException] | BaseException | None


class Script:
    """Scripted input lines; an exception in the list is raised instead."""

    interactive = True
    keys: Mapping[str, str] = QUITTING

    def __init__(self, *lines: Line) -> None:
        self._lines = iter(lines)

    def attended(self, assistant: Assistant) -> AbstractContextManager[object]:
        return nullcontext()

    def read(self) -> str | None:
        line = next(self._lines, None)
        if isinstance(line, type | BaseException):
            raise line
        return line


OPTIONS = SessionOptions(seed=1, draft_max=2, details=SessionDetails(ignore_eos=True))


def conversation_of(pair: Pair, options: SessionOptions = OPTIONS, *, max_tokens: int = 12) -> Conversation:
    paint = Paint(on=False)
    return Conversation(pair, Script(), options=options, paint=paint, run_slash=run_slash, max_tokens=max_tokens)


def talk(chat: Conversation, *lines: Line) -> Conversation:
    chat.lines = Script(*lines)
    assert chat.run() == 0
    return chat


def piped(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
