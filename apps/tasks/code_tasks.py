"""Code tasks: the message that asks for a function, and the program in an answer, fenced or as a bare continuation."""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from edgedecode.errors import InputError

__all__ = ["CodeTests", "code_tests", "message_of", "program_of"]

_FENCE = re.compile(
    r"^[ \t]*(?:```|~~~)[^\n]*\n(?P<code>.*?)(?:^[ \t]*(?:```|~~~)[ \t]*$|\Z)", re.MULTILINE | re.DOTALL
)
_CODE_LINE = re.compile(r"(?:def|async def|class|import|from|@)\b|@")
_NO_CODE = (SyntaxError, ValueError, RecursionError, MemoryError)
"""Raised by the parser."""
_MOST_LINES = 400
"""Lines of an answer that are searched for the end of its code."""


@dataclass(frozen=True, slots=True)
class CodeTests:
    """How a code task is judged. start: the code that an answer continues, with the header of the function; or empty.

    names: the functions that the tests call; the first is passed to the tests' `check`. prelude: code of the task that
    both the answer and the tests need, such as imports and helpers.
    """

    start: str
    names: tuple[str, ...]
    tests: str
    prelude: str = ""


def message_of(text: str, code: CodeTests) -> str:
    """Return the user's message for a task: the code to complete, or its text with the tests."""
    if code.start:
        return f"Complete this Python function. Answer with the code.\n```python\n{code.start.rstrip()}\n```"
    return f"{text.strip()}\nThe code must pass these tests:\n```python\n{code.tests.strip()}\n```"


def code_tests(tests: str, *, start: str = "", entry_point: str = "", prelude: str = "") -> CodeTests:
    """Return how a task is judged whose tests call `entry_point`, or whichever functions they use.

    Standard modules that the tests use without importing them are added to the prelude. Raises InputError for tests
    that are not Python or call no function.
    """
    if entry_point:
        header = _header(entry_point).search(start)
        prelude = start[: header.start()] if header else start
    used, known = _names(tests), _names(prelude)
    unknown = [name for name in used.loaded if name not in used.stored | known.stored and not hasattr(builtins, name)]
    modules = [name for name in unknown if name in sys.stdlib_module_names and name != entry_point]
    imports = "".join(f"import {name}\n" for name in modules)
    others = [name for name in unknown if name not in modules]
    names = tuple(dict.fromkeys([entry_point, *others] if entry_point else others))
    if not names:
        raise InputError("its tests call no function of the answer")
    return CodeTests(start, names, tests, prelude + ("\n" if prelude and imports else "") + imports)


@dataclass(frozen=True, slots=True)
class _Names:
    loaded: tuple[str, ...]
    stored: frozenset[str]


def _names(text: str) -> _Names:
    """Return the names that a text uses, in order, and those that it defines. Raises InputError if it is not Python."""
    try:
        tree = ast.parse(text)
    except _NO_CODE as error:
        raise InputError(f"its tests or its prompt are not Python: {' '.join(str(error).split())}") from None
    stored: set[str] = set()
    loaded = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load):
                loaded.append(node)
            else:
                stored.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
            stored.add(node.name)
        elif isinstance(node, ast.arg):
            stored.add(node.arg)
        elif isinstance(node, ast.alias):
            stored.add(node.asname or node.name.partition(".")[0])
    loaded.sort(key=lambda node: (node.lineno, node.col_offset))
    return _Names(tuple(dict.fromkeys(node.id for node in loaded)), frozenset(stored))


def program_of(answer: str, code: CodeTests) -> str:
    """Return the program of an answer: its fenced block with the function, its code among prose, or a continuation."""
    blocks = [found["code"] for found in _FENCE.finditer(answer)]
    header = _header(code.names[0])
    text = next((block for block in blocks if header.search(block)), blocks[0] if blocks else answer)
    continues = code.start and text.lstrip("\n")[:1] in (" ", "\t")
    if header.search(text) and not continues:
        return f"{code.prelude}\n{text if blocks else _among_prose(text)}"
    if code.start:
        return code.start.rstrip("\n") + "\n" + _continuation(text.split("\n"))
    return f"{code.prelude}\n{text}"


def _header(name: str) -> re.Pattern[str]:
    return re.compile(rf"^(?:async )?def {re.escape(name)}\b", re.MULTILINE)


def _among_prose(text: str) -> str:
    """Return the lines from the first one of code, without the last ones that are no code."""
    lines = text.split("\n")[:_MOST_LINES]
    first = next((number for number, line in enumerate(lines) if _CODE_LINE.match(line)), 0)
    lines = lines[first:]
    for end in range(len(lines), 0, -1):
        if _is_code(kept := "\n".join(lines[:end])):
            return kept
    return text


def _is_code(text: str) -> bool:
    try:
        ast.parse(text)
    except _NO_CODE:
        return False
    return True


def _continuation(lines: Sequence[str]) -> str:
    """Return the body of a function, indented by 4, and further functions after it.

    Without an indented first line, only that line is indented: tokenizers drop the leading space of an answer.
    """
    start = next((number for number, line in enumerate(lines) if line.strip()), 0)
    first, *others = lines[start:] or [""]
    indent = first[: len(first) - len(first.lstrip())]
    kept, body = [f"    {first.strip()}"], True
    for line in others:
        if line.strip() and not line[:1].isspace():
            if not _CODE_LINE.match(line):
                break
            body = False
        inside = body and indent and line.startswith(indent)
        kept.append(f"    {line[len(indent) :]}" if inside else line)
    return "\n".join(kept) + "\n"
