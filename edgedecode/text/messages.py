"""One message of a conversation."""

from dataclasses import dataclass

from edgedecode.errors import InputError

ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class Message:
    """A role (one of `ROLES`) and its text. Raises `InputError` for anything else.

    thought: what the model thought before an answer of its own, for templates that read `reasoning_content`.
    """

    role: str
    content: str
    thought: str = ""

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise InputError(f"message role {self.role!r} is unknown: use one of {', '.join(ROLES)}")
        if not isinstance(self.content, str):
            raise InputError(f"the content of a {self.role} message is {type(self.content).__name__}: use a string")
        if not isinstance(self.thought, str):
            raise InputError(f"the thought of a message is {type(self.thought).__name__}: use a string")


def as_mapping(role: str, content: object, thought: str) -> dict[str, object]:
    """Return a message as chat templates read it."""
    return {"role": role, "content": content, **({"reasoning_content": thought} if thought else {})}
