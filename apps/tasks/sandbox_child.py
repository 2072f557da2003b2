"""The two processes of a code task, behind the walls of `sandbox_walls.py`: one has the answer, the other the tests.

Executed by its path in an interpreter without the package (`python -I -S`). The tests call the answer's functions
through two pipes that carry plain values, so that the code under test never runs in the process that decides. It can
fake no verdict: it can only return values, which the tests then check.
"""

from __future__ import annotations

import builtins
import json
import math
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any, NoReturn, cast

__all__ = ["decoded", "encoded", "main"]

LONGEST_NBYTES = 8 << 20
"""Most bytes of a line between the processes."""
_ITEMS = 100_000
"""Most items that are taken from an iterator, which may be endless."""
_EXACT = 1 << 53
_SHOWN = 160


def main() -> None:
    """Run one of the roles `answer` and `tests`: read the job from standard input, then confine this process."""
    role = sys.argv[1]
    job = json.loads(sys.stdin.buffer.read())
    null = os.open(os.devnull, os.O_RDWR)
    report = os.dup(1)
    for place in (0, 1, 2):
        os.dup2(null, place)
    os.close(null)
    walls: dict[str, Any] = {"__name__": "sandbox_walls"}
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sandbox_walls.py")
    with open(path, "rb") as file:
        exec(compile(file.read(), path, "exec"), walls)
    sys.argv[:] = [""]
    sys.set_int_max_str_digits(0)
    requests, replies = job["requests"], job["replies"]
    line = replies if role == "answer" else report
    walls["raise_walls"](job["folder"], limits=job["limits"], report=line)
    if role == "answer":
        _answer(job, requests, replies)
    _tests(job, requests, replies, report)


def _answer(job: dict[str, Any], requests: int, replies: int) -> NoReturn:
    """Execute the program, then call its functions as asked, until the tests close their pipe."""
    module = sys.modules["answer"] = ModuleType("answer")  # some decorators look for the module
    space = vars(module)
    _reply(replies, lambda: exec(compile(job["program"], "<answer>", "exec"), space))
    for line in _lines(requests):
        _reply(replies, partial(_called, space, line))
    os._exit(0)


def _called(space: dict[str, Any], line: bytes) -> object:
    request = json.loads(line)
    arguments = cast("tuple[object, ...]", decoded(request["arguments"]))
    named = cast("dict[str, object]", decoded(request["named"]))
    if (name := request["name"]) not in space:
        raise NameError(f"the answer does not define {name}")
    return space[name](*arguments, **named)


def _reply(pipe: int, work: Callable[[], object]) -> None:
    """Do the work, and send its result or what it raised."""
    try:
        line = json.dumps({"value": encoded(work())}).encode()
    except BaseException as error:  # SystemExit and KeyboardInterrupt are answers of the program too
        line = json.dumps({"raised": type(error).__name__, "message": _message(error)}).encode()
    if len(line) >= LONGEST_NBYTES:
        line = json.dumps({"raised": "ValueError", "message": "the value is too large"}).encode()
    _send(pipe, line)


def _message(error: BaseException) -> str:
    try:
        return " ".join(str(error).split())[:_SHOWN]
    except BaseException:
        return ""


def _tests(job: dict[str, Any], requests: int, replies: int, report: int) -> NoReturn:
    """Run the tests against the other process, and report how that went."""
    lines = _lines(replies)
    try:
        _value(lines)  # the program was executed
        space: dict[str, Any] = {"__name__": "tests"}
        if job["prelude"]:
            exec(compile(job["prelude"], "<prompt>", "exec"), space)
        for name in job["names"]:
            space[name] = _remote(name, requests, lines)
        exec(compile(job["tests"], "<tests>", "exec"), space)
        if callable(check := space.get("check")):
            check(space[job["names"][0]])
        verdict: dict[str, object] = {"passed": True}
    except BaseException as error:
        verdict = {"passed": False, **_reason(error)}
    _send(report, json.dumps(verdict).encode())
    os._exit(0)


def _reason(error: BaseException) -> dict[str, str]:
    if isinstance(error, _EndedError):
        return {"ended": str(error)}
    if isinstance(error, AssertionError):
        return {"reason": f"a test failed: {_message(error) or _tested_line(error)}"}
    if isinstance(error, _AnswerError):
        return {"reason": _message(error)}
    return {"reason": f"{type(error).__name__}: {_message(error)}".rstrip(": ")}


def _tested_line(error: BaseException) -> str:
    """Return the number of the line of the tests that failed."""
    trace, number = error.__traceback__, 0
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<tests>":
            number = trace.tb_lineno
        trace = trace.tb_next
    return f"line {number} of the tests"


class _EndedError(BaseException):
    """The process with the answer has ended, with what it was refused if that is known."""


def _remote(name: str, requests: int, lines: Iterator[bytes]) -> Callable[..., object]:
    """Return a function that calls the answer's function of this name."""

    def call(*arguments: object, **named: object) -> object:
        request = {"name": name, "arguments": encoded(arguments), "named": encoded(named)}
        try:
            _send(requests, json.dumps(request).encode())
        except OSError:
            raise _EndedError from None
        return _value(lines)

    return call


def _value(lines: Iterator[bytes]) -> object:
    """Return the value of the next reply, or raise what the answer's function raised."""
    line = next(lines, None)
    if line is None:
        raise _EndedError
    reply = json.loads(line)
    if "refused" in reply:
        raise _EndedError(f"{reply['refused']}"[:_SHOWN])
    if "raised" in reply:
        raise _raised(str(reply["raised"])[:_SHOWN], str(reply["message"])[:_SHOWN])
    return decoded(reply["value"])


class _AnswerError(Exception):
    """The answer raised something that the tests have no class for."""


def _raised(name: str, message: str) -> Exception:
    """Return the exception for the tests to see: of the same class if that is one of Python's own."""
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception) and kind is not AssertionError:
        try:
            return kind(message)
        except TypeError:  # a class that needs more than a message
            pass
    return _AnswerError(f"{name}: {message}".rstrip(": "))


class _Match:
    """Stands for the match of a regular expression, which is true."""


def _send(pipe: int, line: bytes) -> None:
    rest = memoryview(line + b"\n")
    while rest:
        rest = rest[os.write(pipe, rest) :]


def _lines(pipe: int) -> Iterator[bytes]:
    """Yield the lines that arrive; stop at the end, or at a line that is too long."""
    kept = b""
    while len(kept) <= LONGEST_NBYTES and (data := os.read(pipe, 1 << 16)):
        *whole, kept = (kept + data).split(b"\n")
        yield from whole


# -- plain values as JSON --------------------------------------------------------------------------------------------


def encoded(value: object) -> object:
    """Return a plain value as JSON's types; what JSON lacks becomes an object of one name. Raises TypeError."""
    if value is None or isinstance(value, (bool, str)):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, int):
        return int(value) if abs(value) < _EXACT else {"int": hex(value)}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": repr(float(value))}
    if isinstance(value, list):
        return [encoded(item) for item in value]
    if isinstance(value, dict):
        return {"dict": [[encoded(key), encoded(item)] for key, item in value.items()]}
    for kind in (tuple, set, frozenset, deque):
        if isinstance(value, kind):
            return {kind.__name__: [encoded(item) for item in value]}
    if isinstance(value, complex):
        return {"complex": [encoded(value.real), encoded(value.imag)]}
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": value.hex()}
    if isinstance(value, range):
        return {"range": [value.start, value.stop, value.step]}
    if isinstance(value, Iterator):
        return {"iterator": [encoded(item) for item, _ in zip(value, range(_ITEMS), strict=False)]}
    if type(value).__name__ == "Match":  # what it is tested for is whether there is one
        return {"match": bool(value)}
    raise TypeError(f"a value of type {type(value).__name__} cannot be passed between the tests and the answer")


def decoded(value: object) -> object:
    """Return the value that `encoded` has made into this."""
    if isinstance(value, list):
        return [decoded(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    return _MAKERS[kind](content)


_MAKERS: dict[str, Callable[[Any], object]] = {
    "tuple": lambda items: tuple(map(decoded, items)),
    "set": lambda items: set(map(decoded, items)),
    "frozenset": lambda items: frozenset(map(decoded, items)),
    "deque": lambda items: deque(map(decoded, items)),
    "iterator": lambda items: iter([decoded(item) for item in items]),
    "dict": lambda pairs: {decoded(key): decoded(item) for key, item in pairs},
    "complex": lambda parts: complex(*[float(cast(float, decoded(part))) for part in parts]),
    "range": lambda parts: range(*parts),
    "int": lambda digits: int(digits, 16),
    "float": float,
    "bytes": bytes.fromhex,
    "match": lambda _: _Match(),
}


if __name__ == "__main__":
    main()
