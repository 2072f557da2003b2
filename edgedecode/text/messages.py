"""One message of a conversation."""

from __future__ import annotations

from dataclasses import dataclass

from edgedecode.errors import InputError

__all__ = ["ROLES", "Message"]

ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class Message:
    """A role (one of `ROLES`) and its text. Raises `InputError` for anything else."""

    role: str
    content: str

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise InputError(f"message role {self.role!r} is unknown: use one of {', '.join(ROLES)}")
        if not isinstance(self.content, str):
            raise InputError(f"the content of a {self.role} message is {type(self.content).__name__}: use a string")
