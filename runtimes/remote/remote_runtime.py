"""Opens a target on a server, and the device's model on its own engine."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from time import monotonic
from urllib.parse import quote

from edgedecode.decoding.model import LanguageModel, ModelCard
from edgedecode.decoding.wrapped_model import WrappedModel
from edgedecode.engines.interface import ADAPTERS, HIDDEN_ROWS, SQUARES, Device, ModelRequest, Runtime
from edgedecode.engines.target_server import TargetServer
from edgedecode.errors import CapabilityError, IncompatiblePair
from edgedecode.pack.entries import DRAFT
from edgedecode.sampling.row_draw import RowDraw, row_draw_of
from edgedecode.text.tokenizer import PROBE, TextTokens, Tokenizer
from edgedecode.typed_json import JsonValue
from edgedecode.user_notices import notice

from .connection import Connection, Refused, TargetFailed
from .remote_model import RemoteModel
from .servers import KINDS, tokens_of

_HERE = r"localhost$|127\.[\d.]+$|::1$"
"""Addresses of this device."""
_LETTER = 4
"""Tokens of a single letter at most, with those that a tokenizer adds."""
_FAR_SECONDS = 0.02
"""Of a request from which on the way counts more than the rows: passes of several rows then cost about the same,
whichever their number, and a short draft tells the cost of a long one."""
_MOST_ROWS = 17
"""Of a request, with the longest draft that the scheduler chooses."""
_USUAL_CONTEXT = 32768
"""Where a server does not tell its own: the device's draft, and requests that are refused, limit it too."""


class RemoteRuntime:
    """Implements `Runtime`. It has the name of the device's engine, whose kernels draw the tokens.

    draft_place: tells measured costs with this server from those of others.
    """

    def __init__(self, server: TargetServer, device: Runtime, tokenizer: Tokenizer, end: int) -> None:
        self._server, self._device, self._kind = server, device, KINDS[server.kind]
        self._tokenizer, self._end = tokenizer, end
        self._own: LanguageModel | None = None
        self._users = 0
        self.name, self.draft_name = device.name, device.name
        self.draft_place = f"beside {server.kind} {server.url} {server.model}"
        self._connection = Connection(server.url, key_variable=server.key_variable, seconds=server.seconds)
        self._connection.named = {"model": server.model} if server.model else {}

    def devices(self) -> Sequence[Device]:
        return self._device.devices()

    def row_draw(self) -> RowDraw:
        """Return the helper of the device's engine that draws tokens."""
        return row_draw_of(self._device)

    def open(self, request: ModelRequest) -> LanguageModel:
        """Open the draft on the device, or the target on the server.

        Raises TargetFailed if the server does not answer and the device is not to go on alone, IncompatiblePair if its
        tokenizer is another, CapabilityError.
        """
        if request.name != "target":
            return self._device.open(request) if request.entry.own_tokenizer else self._lent(request)
        if wrong := {ADAPTERS, HIDDEN_ROWS, SQUARES} & {*request.needs}:
            raise CapabilityError(f"a target on a server has no {', '.join(sorted(wrong))}: leave it out")
        spare = self._lent(replace(request, name=DRAFT, needs=())) if self._server.offline else None
        try:
            return self._opened(request, spare)
        except BaseException:
            self._connection.close()
            if spare is not None:
                spare.close()
            raise

    def _lent(self, request: ModelRequest) -> LanguageModel:
        """Return the device's model, which drafts and, where the server does not answer, goes on: it is loaded once."""
        if self._own is None:
            self._own = self._device.open(request)
        self._users += 1
        return WrappedModel(self._own, closed=self._returned)

    def _returned(self) -> None:
        self._users -= 1
        if not self._users and self._own is not None:
            own, self._own = self._own, None
            own.close()

    def _opened(self, request: ModelRequest, spare: LanguageModel | None) -> RemoteModel:
        server, connection = self._server, self._connection
        context, away = _USUAL_CONTEXT, 0.0
        try:
            context = _context_in(self._asked_about()) or context
            if self._kind.text:
                away = self._check_tokenizer()
                if away >= _FAR_SECONDS:  # or the server had something to load first
                    away = min(away, self._check_tokenizer())
            secure = connection.parts.scheme == "https" or re.match(_HERE, connection.parts.hostname or "")
            does = "verifies what is drafted here" if self._kind.verifies else "writes what is not written here"
            notice(f"the text leaves this device{'' if secure else ', unencrypted'}: {connection.host} {does}")
        except Refused as error:
            raise Refused(f"{error} (--target-kind is {server.kind})", error.status) from None
        except TargetFailed as error:
            if spare is None:
                raise
            notice(f"{error}: the device's model goes on alone, which may write something else")
        if spare is not None:
            context = min(context, spare.card.context)
        card = ModelCard(
            name=f"{connection.named.get('model', server.kind)} on {connection.host}",
            rows=request.vocabulary_size,
            vocabulary_size=request.vocabulary_size,
            context=context,
            tree=False,
            rollback=self._kind.verifies,
            top_rows=self._kind.most_top,
            draws=self._kind.ask is None,
            widths=(1, _MOST_ROWS) if away >= _FAR_SECONDS else (),
            away_seconds=away if self._kind.verifies and self._kind.write is not None else 0.0,
        )
        pieces, end, budget = TextTokens(self._tokenizer), self._end, request.budget
        return RemoteModel(connection, self._kind, card, pieces=pieces, end=end, budget=budget, spare=spare)

    def _asked_about(self) -> dict[str, JsonValue]:
        """Return what the server tells about its model, and set the name to ask for it with."""
        connection, model = self._connection, self._server.model
        if self._server.kind in ("vllm", "openai", "ollama"):
            listed = connection.ask("/v1/models").get("data")
            every = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
            found = [each for each in every if not model or each.get("id") == model]
            if not found or (len(found) > 1 and self._server.kind != "vllm"):  # which lists its adapters too
                names = ", ".join(str(each.get("id")) for each in every)
                wrong = f"no model {model!r}" if model or not every else "several models: name one with --target-model"
                raise Refused(f"{connection.host} has {wrong}; it has: {names[:200]}", 404)
            connection.named = {"model": str(found[0].get("id"))}
            if self._server.kind == "openai":
                self._check_completions()
            return found[0]
        if self._server.kind == "sglang":
            return connection.ask("/get_server_info")
        return connection.ask(f"/props?model={quote(model, safe='')}" if model else "/props")

    def _check_completions(self) -> None:
        """Raise CapabilityError if the server does not go on with a text as it is, but answers a message with it."""
        try:
            body = {**self._connection.named, "prompt": "a", "max_tokens": 1}
            usage = self._connection.ask("/v1/completions", body).get("usage")
            count = usage.get("prompt_tokens") if isinstance(usage, dict) else None
        except Refused as error:
            if error.status not in (400, 404, 405):
                raise
            raise CapabilityError(f"{error}: where only chats are answered, no answer can go on") from None
        if isinstance(count, int) and count > _LETTER:
            raise CapabilityError(
                f"{self._connection.host} puts a prompt into a chat template ({count} tokens for a letter), so that no "
                f"answer can go on there: for Ollama give --target-kind ollama"
            )

    def _check_tokenizer(self) -> float:
        """Return the seconds of the reply. Raises IncompatiblePair if the server's tokenizer gives other ids."""
        asked = monotonic()
        theirs = tokens_of(self._connection, self._kind, PROBE)
        seconds = monotonic() - asked
        if theirs is None:
            notice(f"{self._connection.host} does not tell its tokenizer: it must be the one of the device's model")
        elif theirs != self._tokenizer.encode(PROBE):
            raise IncompatiblePair(
                f"the model of {self._connection.host} has another tokenizer than the device's: give a file of its "
                f"family with -m, and what drafts, if that is of another, with --draft"
            )
        return seconds


def remote_target(server: TargetServer, device: Runtime, tokenizer: Tokenizer, ends: frozenset[int]) -> Runtime:
    """Implements `TargetFactory`. Raises InputError for an address or a key that cannot be used."""
    written = (id for id in ends if (tokenizer.token_text(id) or "\0") in tokenizer.chat_template.source)
    return RemoteRuntime(server, device, tokenizer, min(written, default=min(ends, default=-1)))


def _context_in(props: dict[str, JsonValue]) -> int | None:
    """Return the positions that a server tells of: edgedecode's, llama-server's, vLLM's or SGLang's."""
    settings = props.get("default_generation_settings")
    inner = settings if isinstance(settings, dict) else {}
    names = "context", "n_ctx", "max_model_len", "context_length", "max_req_input_len"
    named = [props.get(name, inner.get(name)) for name in names]
    return next((each for each in named if isinstance(each, int) and each > 1), None)
