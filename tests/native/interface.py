"""The native library's C interface, called from Python as an app calls it."""

import ctypes
import json
from collections.abc import Callable, Sequence
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_char,
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_void_p,
)
from pathlib import Path
from typing import Any

ON_TEXT = CFUNCTYPE(c_int, c_void_p, POINTER(c_char), c_size_t)
CANCELLED, BAD_INPUT, FAILED, OVER_BUDGET = -1, -2, -3, -4


class NativeError(Exception):
    """What `edgedecode_last_error` says after a call that failed."""


class Constraint(Structure):
    """`edgedecode_constraint`; callbacks as functions of Python, or of another library, with `user` as their data."""

    _fields_ = (
        ("user", c_void_p),
        ("mask", c_void_p),
        ("commit", c_void_p),
        ("allows", c_void_p),
        ("forced", c_void_p),
    )


class Library:
    """The loaded library."""

    def __init__(self, path: Path) -> None:
        self.c = ctypes.CDLL(str(path))
        for name in ("open", "session_open", "plan", "info", "stats"):
            getattr(self.c, f"edgedecode_{name}").restype = c_void_p
        for name in ("last_error", "version"):
            getattr(self.c, f"edgedecode_{name}").restype = c_char_p
        for name in ("close", "session_close", "cancel", "info", "stats", "free"):
            getattr(self.c, f"edgedecode_{name}").argtypes = [c_void_p]
        self.c.edgedecode_session_open.argtypes = [c_void_p, c_char_p]
        self.c.edgedecode_generate.argtypes = [c_void_p, c_char_p, ON_TEXT, c_void_p]
        self.c.edgedecode_rewind.argtypes = [c_void_p, c_int32]
        self.c.edgedecode_trim_memory.argtypes = [c_void_p, c_int32]
        self.c.edgedecode_trim_memory.restype = c_int64
        self.c.edgedecode_token_bytes.argtypes = [c_void_p, c_int32, c_char_p, c_int32]
        self.c.edgedecode_tokenize.argtypes = [c_void_p, c_char_p, c_size_t, POINTER(c_uint32), c_size_t]
        self.c.edgedecode_tokenize.restype = c_size_t
        self.c.edgedecode_constrain.argtypes = [c_void_p, POINTER(Constraint)]

    @property
    def error(self) -> str:
        found: bytes = self.c.edgedecode_last_error()
        return found.decode()

    def text(self, at: int | None) -> Any:
        """Return the JSON of a string that the caller frees."""
        if not at:
            raise NativeError(self.error)
        value = json.loads(ctypes.string_at(at))
        self.c.edgedecode_free(at)
        return value

    def plan(self, folder: Path, **options: object) -> Any:
        return self.text(self.c.edgedecode_plan(str(folder).encode(), json.dumps(options).encode()))

    def open(self, folder: Path, **options: object) -> "NativePack":
        handle = self.c.edgedecode_open(str(folder).encode(), json.dumps(options).encode())
        if not handle:
            raise NativeError(self.error)
        return NativePack(self, handle)


class NativePack:
    """An open pack."""

    def __init__(self, library: Library, handle: int) -> None:
        self.library, self.handle = library, handle

    def info(self) -> Any:
        return self.library.text(self.library.c.edgedecode_info(self.handle))

    def session(self, **options: object) -> "NativeSession":
        handle = self.library.c.edgedecode_session_open(self.handle, json.dumps(options).encode())
        if not handle:
            raise NativeError(self.library.error)
        return NativeSession(self.library, handle)

    def token_bytes(self, token: int) -> bytes:
        found = ctypes.create_string_buffer(4096)
        size = self.library.c.edgedecode_token_bytes(self.handle, token, found, 4096)
        return found.raw[:size]

    def tokenize(self, text: str, most: int = 4096) -> list[int]:
        found, data = (c_uint32 * most)(), text.encode()
        return found[: self.library.c.edgedecode_tokenize(self.handle, data, len(data), found, most)]

    def trim(self, level: int) -> int:
        return int(self.library.c.edgedecode_trim_memory(self.handle, level))

    def close(self) -> None:
        self.library.c.edgedecode_close(self.handle)


class NativeSession:
    """An open conversation. pieces: what the callback was given in the last answer."""

    def __init__(self, library: Library, handle: int) -> None:
        self.library, self.handle = library, handle
        self.pieces: list[str] = []

    def generate(self, on_text: Callable[[str], int | None] = lambda text: 0, /, **request: object) -> int:
        """Answer; return what the library does."""
        self.pieces = []

        def take(user: int, text: "ctypes._Pointer[c_char]", size: int) -> int:
            self.pieces.append(ctypes.string_at(text, size).decode())
            return on_text(self.pieces[-1]) or 0

        asked = json.dumps(request).encode()
        return int(self.library.c.edgedecode_generate(self.handle, asked, ON_TEXT(take), None))

    def stats(self) -> Any:
        return self.library.text(self.library.c.edgedecode_stats(self.handle))

    def tokens(self) -> Sequence[int]:
        found: list[int] = self.stats()["tokens"]
        return found

    def constrain(self, constraint: Constraint | None) -> int:
        given = None if constraint is None else ctypes.byref(constraint)
        return int(self.library.c.edgedecode_constrain(self.handle, given))

    def cancel(self) -> None:
        self.library.c.edgedecode_cancel(self.handle)

    def rewind(self, turns: int) -> int:
        return int(self.library.c.edgedecode_rewind(self.handle, turns))

    def close(self) -> None:
        self.library.c.edgedecode_session_close(self.handle)
