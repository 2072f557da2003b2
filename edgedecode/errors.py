"""The errors that callers may get.

    EdgeDecodeError
    ├── InputError            a prompt, message, number or option that cannot be used
    │   └── ContextExceeded   the prompt is longer than the model's context
    ├── ManifestError         a pack, or a file in it, that is missing, damaged, invalid or of a newer format
    ├── IncompatiblePair      a target and a draft that cannot work together
    ├── BudgetExceeded        an allocation that does not fit the memory budget (carries the table)
    ├── CapabilityError       an explicit request for what a model or engine cannot do
    ├── RuntimeUnavailable    an engine that is not installed or does not start (includes the pip command)
    └── ExportError           an export that cannot start, or whose result is wrong

A message states what happened, with the values, and what to do. The command line prints it as one line and exits 1.
"""

__all__ = [
    "BudgetExceeded",
    "CapabilityError",
    "ContextExceeded",
    "EdgeDecodeError",
    "ExportError",
    "IncompatiblePair",
    "InputError",
    "ManifestError",
    "RuntimeUnavailable",
    "cause",
    "stand_in",
]


def cause(error: BaseException) -> str:
    """Return an error's reason in one line, for use inside another message that names the file."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split())


def stand_in(start: bytes) -> str:
    """Return what is in the place of a file that was not downloaded, and what to do; empty: nothing is known.

    start: how the file begins, 64 bytes or more.
    """
    if start.startswith(b"version https://git-lfs"):
        return "is Git LFS's pointer to the file, not the file: run `git lfs pull` there, or download it itself"
    if start.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
        return "is a web page, not the file: download the file itself, which may need a login"
    if start and not any(start):
        return "begins with zeros: its download did not finish, download it again"
    return ""


class EdgeDecodeError(Exception):
    """The base class of all errors that edgedecode raises on purpose."""

    @property
    def reason(self) -> str:
        """The message in one line, without advice, for use inside another message."""
        return " ".join(str(self).split())


class InputError(EdgeDecodeError, ValueError):
    """A prompt, message, number or option that cannot be used as given."""


class ContextExceeded(InputError):
    """The prompt does not fit the model's context."""

    @classmethod
    def of(cls, found: str, context: int, *, remedy: str, room: int = 1) -> "ContextExceeded":
        """Return the error of a prompt of `found`, which leaves no room, in tokens, for an answer in such a context.

        Clients retry with a shorter prompt if they find a sentence that they know: Anthropic's ("prompt is too long: …
        tokens > … maximum"), or OpenAI's ("this model's maximum context length is … tokens").
        """
        limit = f"this model's maximum context length is {context} tokens"
        return cls(f"prompt is too long: {found} > {context - room} maximum ({limit}): {remedy}")


def room_for(tokens: int, *, context: int, longest: int) -> str:
    """Return the advice for a prompt that is too long. tokens: its length. longest: the model's longest context."""
    raised = context < longest and tokens < longest
    return "shorten it, or " + (
        f"raise --ctx-size (up to {longest})" if raised else "use a model with a longer context"
    )


class ManifestError(EdgeDecodeError):
    """A pack, or a file in it, is missing, damaged, invalid, or of a newer format."""


class IncompatiblePair(EdgeDecodeError):
    """Target and draft do not share a tokenizer, or cannot run together."""


class BudgetExceeded(EdgeDecodeError):
    """An allocation was refused before it was made; `table` lists every lease and the request.

    advice: what the user can do. needed_nbytes: the budget that would have been sufficient; 0: unknown.
    """

    def __init__(self, message: str, advice: str = "", *, table: str, needed_nbytes: int = 0) -> None:
        super().__init__(message)
        self.advice = advice
        self.table = table
        self.needed_nbytes = needed_nbytes

    @property
    def reason(self) -> str:
        return str(self.args[0])

    def __str__(self) -> str:
        return f"{self.args[0]}{f': {self.advice}' if self.advice else ''}" + (f"\n{self.table}" if self.table else "")


class CapabilityError(EdgeDecodeError):
    """An explicit request for something that this model, graph or engine does not support."""


class RuntimeUnavailable(EdgeDecodeError):
    """An engine is not installed, or does not start here; the message includes how to install it."""


class ExportError(EdgeDecodeError):
    """An export was refused, or its result failed a check."""
