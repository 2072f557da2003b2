"""The web page: files that were built from `web/`, served as they are, and the rules that browsers hold them to."""

from pathlib import Path

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

PAGE = Path(__file__).parent / "page"
"""The built files: `make page` builds them again."""
ASSETS = "/assets"
_RULES = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content security policy: nothing is fetched from another host, also if an answer contains an image's address."""


def page_routes() -> list[BaseRoute]:
    """Return the routes of the page, for browsers, and its files, which hold no secrets: no key is asked for them."""
    index = _Files(directory=PAGE)

    async def page(request: Request) -> Response:
        if "text/html" in request.headers.get("accept", ""):
            response = await index.get_response("index.html", request.scope)
        else:
            response = PlainTextResponse("Ollama is running")  # its clients look for a server so
        response.headers["Vary"] = "Accept"
        return response

    return [Route("/", page), Mount(ASSETS, _Files(directory=PAGE / ASSETS.strip("/")))]


class _Files(StaticFiles):
    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers["Content-Security-Policy"] = _RULES
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        response.headers["Cache-Control"] = "no-cache"  # asked for again, and mostly answered by 304
        return response
