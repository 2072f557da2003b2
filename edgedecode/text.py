"""Text that comes from outside: bytes and arguments that must be UTF-8. Knows no tokens."""

from __future__ import annotations

from edgedecode.errors import InputError

__all__ = ["checked_text", "decoded_text"]


def decoded_text(data: bytes, name: str) -> str:
    """Decode UTF-8. Raises InputError naming the first byte that is none."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{name} is not valid UTF-8: byte 0x{data[error.start]:02x} at offset {error.start}; convert it first"
        ) from None


def checked_text(text: str, name: str) -> str:
    """Return `text`. Raises InputError for lone surrogates: bytes of the shell that are no UTF-8, JSON's \\ud800."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(f"{name} is not valid UTF-8 at character {error.start}") from None
    return text
