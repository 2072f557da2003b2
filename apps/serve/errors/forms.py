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


class OllamaError(Struct):
    error: str


class AnthropicErrorCode(Struct):
    error_code: str


class AnthropicErrorDetails(Struct):
    type: str
    message: str
    details: AnthropicErrorCode | UnsetType = UNSET


class AnthropicError(Struct, tag_field="type", tag="error"):
    error: AnthropicErrorDetails


class LlamaErrorDetails(Struct):
    code: int
    message: str
    type: str


class LlamaError(Struct):
    error: LlamaErrorDetails


def llama_error(status: int, message: str, code: str | None) -> LlamaError:
    """Return an error in llama-server's form. code: as in OpenAI's."""
    kind = _LLAMA.get(status, "server_error" if status >= 500 else "invalid_request_error")
    kind = "exceed_context_size_error" if code == "context_length_exceeded" else kind
    return LlamaError(LlamaErrorDetails(status, message, kind))


_Kind: TypeAlias = type[Error] | type[OllamaError] | type[AnthropicError] | type[LlamaError]


def error_kind(path: str) -> _Kind:
    """Return the form of errors of a path."""
    return next((kind for start, kind in _KINDS.items() if path.startswith(start)), Error)


def error_form(path: str, status: int, error: ErrorDetails) -> Error | OllamaError | AnthropicError | LlamaError:
    """Return an error as the API of a path has it."""
    kind = error_kind(path)
    if kind is OllamaError:
        return OllamaError(error.message)
    if kind is LlamaError:
        return llama_error(status, error.message, error.code)
    return Error(error) if kind is Error else anthropic_error(status, error.message, error.code)


def anthropic_error(status: int, message: str, code: str | None = None) -> AnthropicError:
    """Return an error in Anthropic's form. code: is left out but where it is one of Anthropic's."""
    kind = _ANTHROPIC.get(status, "api_error" if status >= 500 else "invalid_request_error")
    details = AnthropicErrorCode(code) if code == NO_THREADS else UNSET
    return AnthropicError(AnthropicErrorDetails(kind, message, details))


_KINDS: dict[str, _Kind] = {
    "/api/": OllamaError,
    "/v1/messages": AnthropicError,
    **dict.fromkeys(("/completion", "/infill", "/tokenize", "/detokenize", "/apply-template", "/slots"), LlamaError),
}
"""By what the paths of an API begin with."""
