"""Which error has which status, and what is said where there is nothing to answer."""

import re
from difflib import get_close_matches

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from edgedecode import BudgetExceeded, ContextExceeded, EdgeDecodeError
from edgedecode.errors import cause
from edgedecode.structured.matching import GrammarFailed

from ..anthropic.bodies import NoThreads
from ..embeddings.endpoints import EmbeddingBody
from ..guards import error_response
from ..models.one import UnknownModel
from ..models.places import Busy
from ..requests.fields import UNSUPPORTED
from ..requests.openai import ChatBody, CompletionBody
from ..responses.bodies import UNSUPPORTED_RESPONSES, ResponseBody
from ..verify.states import Lost
from .forms import NO_THREADS

_FIELDS = (
    frozenset(UNSUPPORTED)
    | frozenset(UNSUPPORTED_RESPONSES)
    | {name for kind in (ChatBody, CompletionBody, EmbeddingBody, ResponseBody) for name in kind.__struct_fields__}
)
_NOT_OFFERED = ("/api/create", "/api/copy", "/api/push", "/api/blobs")
_PATH = re.compile(r"([a-z_]+)[\w.\[\]$-]*")


class AnswerFailed(EdgeDecodeError):
    """An answer failed after it had begun, which is no fault of the request."""


async def refused(_: Request, error: Exception) -> Response:
    """Answer a request that raised EdgeDecodeError."""
    message = cause(error)
    if isinstance(error, UnknownModel):
        return error_response(404, message, code="model_not_found", param="model")
    if isinstance(error, Lost):
        return error_response(409, message, code="session_lost", param="session")
    if isinstance(error, Busy):
        return error_response(503, message, kind="server_error", code="busy")
    if isinstance(error, AnswerFailed | GrammarFailed):
        return error_response(500, message, kind="server_error")
    if isinstance(error, ContextExceeded):
        return error_response(400, message, code="context_length_exceeded")
    if isinstance(error, NoThreads):
        return error_response(400, message, code=NO_THREADS, param="thread")
    if isinstance(error, BudgetExceeded):
        return error_response(507, message, kind="server_error", code="memory")
    path = _PATH.match(message)  # messages about a field begin with its path
    return error_response(400, message, param=path[0] if path is not None and path[1] in _FIELDS else None)


async def not_found(request: Request, _: Exception) -> Response:
    path, known = request.url.path[:80], [each.path for each in request.app.routes if isinstance(each, Route)]
    near = get_close_matches(path, known, 1, 0.8)
    offered = ", ".join(each for each in known if each.startswith("/v1/") and "{" not in each)
    hint = f"did you mean {near[0]}?" if near else f"this server has {offered}"
    hint = "this server makes, copies and uploads no models" if path.startswith(_NOT_OFFERED) else hint
    return error_response(404, f"there is no {path}: {hint}", code="not_found")


async def not_allowed(request: Request, error: Exception) -> Response:
    reply = error_response(405, f"{request.method} is not allowed on {request.url.path[:80]}", code="method")
    reply.headers.update(getattr(error, "headers", None) or {})  # Allow
    return reply


async def broken(request: Request, error: Exception) -> Response:
    message = f"the server failed ({type(error).__name__}): please report it"
    return error_response(500, message, kind="server_error")
