"""The form of an error in each API."""

from typing import Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType

ErrorType: TypeAlias = Literal["invalid_request_error", "server_error", "requests"]
_ANTHROPIC = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
"""Anthropic's types of errors by status; of others, `api_error` from 500 on and else `invalid_request_error`."""
NO_THREADS = "thread_unsupported_request"
"""Anthropic's code by which clients know to send the whole conversation."""


_LLAMA = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    503: "unavailable_error",
}
"""Likewise llama-server's; of others, `server_error` from 500 on and else `invalid_request_error`."""


class ErrorDetails(Struct):
    """param: the path of the field of the body that is wrong, if known."""

    message: str
    type: ErrorType
    param: str | None = None
    code: str | None = None


class Error(Struct):
    """The reply of every status from 400 on, as OpenAI's API has it."""

    error: ErrorDetails

    @classmethod
    def of(cls, _: int, error: ErrorDetails) -> "Error":
        return cls(error)


class OllamaError(Struct):
    error: str

    @classmethod
    def of(cls, _: int, error: ErrorDetails) -> "OllamaError":
        return cls(error.message)


class AnthropicErrorCode(Struct):
    error_code: str


class AnthropicErrorDetails(Struct):
    type: str
    message: str
    details: AnthropicErrorCode | UnsetType = UNSET


class AnthropicError(Struct, tag_field="type", tag="error"):
    error: AnthropicErrorDetails

    @classmethod
    def of(cls, status: int, error: ErrorDetails) -> "AnthropicError":
        """Return the error with its code, if that is one of Anthropic's."""
        kind = _ANTHROPIC.get(status, "api_error" if status >= 500 else "invalid_request_error")
        details = AnthropicErrorCode(error.code) if error.code == NO_THREADS else UNSET
        return cls(AnthropicErrorDetails(kind, error.message, details))


class LlamaErrorDetails(Struct):
    code: int
    message: str
    type: str


class LlamaError(Struct):
    error: LlamaErrorDetails

    @classmethod
    def of(cls, status: int, error: ErrorDetails) -> "LlamaError":
        kind = _LLAMA.get(status, "server_error" if status >= 500 else "invalid_request_error")
        kind = "exceed_context_size_error" if error.code == "context_length_exceeded" else kind
        return cls(LlamaErrorDetails(status, error.message, kind))


_Kind: TypeAlias = type[Error] | type[OllamaError] | type[AnthropicError] | type[LlamaError]
_KINDS: dict[str, _Kind] = {
    "/api/": OllamaError,
    "/v1/messages": AnthropicError,
    **dict.fromkeys(("/completion", "/infill", "/tokenize", "/detokenize", "/apply-template", "/slots"), LlamaError),
}
"""By what the paths of an API begin with."""


def error_kind(path: str) -> _Kind:
    """Return the form of errors of a path."""
    return next((kind for start, kind in _KINDS.items() if path.startswith(start)), Error)
