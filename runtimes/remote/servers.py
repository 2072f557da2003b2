"""What each kind of server is asked, and how its reply is read: rows of the likeliest tokens after a token.

A function each. The shapes of requests and replies are those of SGLang 0.5, vLLM 0.11 and llama-server of 2025.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeAlias, TypeVar

import numpy as np
from msgspec import Meta, Struct, ValidationError, convert

from edgedecode.arrays import FloatArray, IntArray
from edgedecode.typed_json import JsonValue

from .connection import Connection, Refused, TargetFailed

_LOST = 409
_Reply = TypeVar("_Reply", bound=Struct)
Rows: TypeAlias = list[tuple[IntArray, FloatArray]]
"""The ids after each token, likeliest first, and their logits up to a constant of the row, float32."""


@dataclass(slots=True)
class Asked:
    """A request: the last `rows` rows of `tokens`, of which the server has the first `keep` by its last reply.

    session: of the server, which it names; empty: none. model: as the user names it; empty: the server's own. answered:
    the name that the server gives the model, since its first reply.
    """

    tokens: Sequence[int]
    keep: int
    rows: int
    top: int
    model: str = ""
    session: str = ""
    answered: str = ""


Ask: TypeAlias = Callable[[Connection, Asked], Rows]
Ids = list[Annotated[int, Meta(ge=0)]]


class _Verified(Struct):
    session: str
    model: str
    ids: list[Ids]
    gaps: list[list[Annotated[float, Meta(ge=0)]]]


def ask_edgedecode(connection: Connection, asked: Asked) -> Rows:
    """Ask `edgedecode serve --verify-drafts`. What its session does not hold is sent; a lost one begins again."""
    for last in (False, True):
        body = {"session": asked.session, "keep": asked.keep} if asked.session else {}
        new = asked.tokens[asked.keep :] if asked.session else asked.tokens
        given = {"model": asked.model} if asked.model else {}
        try:
            value = connection.post(
                "/v1/verify", {**given, **body, "tokens": list(new), "rows": asked.rows, "top": asked.top}
            )
            break
        except Refused as error:
            if error.status != _LOST or last:
                raise
            asked.session, asked.keep = "", 0
    found = _typed(connection, value, _Verified)
    if asked.session and asked.session != found.session:
        raise TargetFailed(f"{connection.host} answers for another session than it was asked for")
    asked.session = found.session
    _same_model(connection, asked, found.model)
    pairs = list(zip(found.ids, found.gaps, strict=False))
    if len(found.gaps) != len(found.ids) or any(len(gaps) != len(ids) - 1 for ids, gaps in pairs):
        raise TargetFailed(f"{connection.host} answers with rows of different lengths")
    return [_row(ids, [0.0, *(-gap for gap in gaps)]) for ids, gaps in pairs]


_Top: TypeAlias = list[tuple[float, Annotated[int, Meta(ge=0)], str | None]]


class _Meta(Struct):
    output_top_logprobs: list[_Top]
    input_top_logprobs: list[_Top | None] = []


class _Generated(Struct):
    meta_info: _Meta


def ask_sglang(connection: Connection, asked: Asked) -> Rows:
    """Ask SGLang's /generate, whose cache of prefixes holds what comes before `logprob_start_len`.

    Its row for an input token predicts that token, so that the last row is the generated token's.
    """
    first = len(asked.tokens) - asked.rows
    value = connection.post(
        "/generate",
        {
            "input_ids": list(asked.tokens),
            "sampling_params": {"max_new_tokens": 1, "temperature": 0},
            "return_logprob": True,
            "logprob_start_len": first,
            "top_logprobs_num": asked.top,
        },
    )
    found = _typed(connection, value, _Generated).meta_info
    inputs = found.input_top_logprobs[len(found.input_top_logprobs) - (asked.rows - 1) :] if asked.rows > 1 else []
    rows = [each for each in (*inputs, *found.output_top_logprobs[:1]) if each]
    return [_row([id for _, id, _ in each], [logprob for logprob, _, _ in each]) for each in rows]


class _Logprob(Struct):
    logprob: float
    rank: int | None = None


class _VllmLogprobs(Struct):
    top_logprobs: list[dict[str, float] | None]


class _VllmChoice(Struct):
    prompt_logprobs: list[dict[str, _Logprob] | None]
    logprobs: _VllmLogprobs


class _VllmCompletion(Struct):
    model: str
    choices: list[_VllmChoice]


def ask_vllm(connection: Connection, asked: Asked) -> Rows:
    """Ask vLLM's /v1/completions, which computes the whole prompt again for `prompt_logprobs`.

    A prompt token that is not among the likeliest is in its row too, with its rank.
    """
    value = connection.post(
        "/v1/completions",
        {
            "model": asked.model,
            "prompt": list(asked.tokens),
            "max_tokens": 1,
            "temperature": 0,
            "logprobs": asked.top,
            "prompt_logprobs": asked.top,
            "return_tokens_as_token_ids": True,
        },
    )
    found = _typed(connection, value, _VllmCompletion)
    _same_model(connection, asked, found.model)
    choice = found.choices[0] if found.choices else None
    if choice is None or len(choice.prompt_logprobs) != len(asked.tokens):
        raise TargetFailed(f"{connection.host} answers without the rows of the prompt's tokens")
    rows = []
    for each in choice.prompt_logprobs[len(asked.tokens) - asked.rows + 1 :] if asked.rows > 1 else []:
        likeliest = {id: entry.logprob for id, entry in (each or {}).items() if (entry.rank or 1) <= asked.top}
        rows.append(_ranked(connection, likeliest))
    last = (choice.logprobs.top_logprobs or [None])[0] or {}
    rows.append(_ranked(connection, {name.removeprefix("token_id:"): logprob for name, logprob in last.items()}))
    return rows


class _LlamaTop(Struct):
    id: Annotated[int, Meta(ge=0)]
    logprob: float


class _LlamaToken(Struct):
    top_logprobs: list[_LlamaTop]


class _LlamaCompletion(Struct):
    completion_probabilities: list[_LlamaToken]


def ask_llama_server(connection: Connection, asked: Asked) -> Rows:
    """Ask llama-server's /completion, which tells the likeliest tokens after the last one only."""
    value = connection.post(
        "/completion",
        {
            "prompt": list(asked.tokens),
            "n_predict": 1,
            "n_probs": asked.top,
            "temperature": 0,
            "cache_prompt": True,
        },
    )
    found = _typed(connection, value, _LlamaCompletion).completion_probabilities
    return [
        _row([top.id for top in each.top_logprobs], [top.logprob for top in each.top_logprobs]) for each in found[:1]
    ]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of server. verifies: whether it tells several rows in one reply. most_top: likeliest tokens of a row.

    tokenize: the path that encodes a text, with the field of the text; None: there is none.
    """

    ask: Ask
    verifies: bool
    most_top: int
    tokenize: tuple[str, str] | None


KINDS = {
    "edgedecode": Kind(ask_edgedecode, verifies=True, most_top=64, tokenize=("/tokenize", "content")),
    "sglang": Kind(ask_sglang, verifies=True, most_top=64, tokenize=("/tokenize", "prompt")),
    "vllm": Kind(ask_vllm, verifies=True, most_top=20, tokenize=("/tokenize", "prompt")),
    "llama-server": Kind(ask_llama_server, verifies=False, most_top=64, tokenize=("/tokenize", "content")),
}


def tokens_of(connection: Connection, kind: Kind, text: str, *, model: str) -> list[int] | None:
    """Return the server's ids of a text; None: it does not tell. Raises TargetFailed."""
    if kind.tokenize is None:
        return None
    path, name = kind.tokenize
    body = {name: text, "add_special_tokens" if name == "prompt" else "add_special": False}
    try:
        value = connection.post(path, body | ({"model": model} if model else {}))
    except Refused as error:
        if error.status in (404, 405):
            return None
        raise
    return _typed(connection, value, _Tokens).tokens


class _Tokens(Struct):
    tokens: Ids


def _typed(connection: Connection, value: dict[str, JsonValue], kind: type[_Reply]) -> _Reply:
    try:
        return convert(value, kind)
    except ValidationError as error:
        raise TargetFailed(f"{connection.host} does not answer as this kind of server does: {error}") from None


def _same_model(connection: Connection, asked: Asked, name: str) -> None:
    """Remember the model that answers first. Raises TargetFailed once another one does."""
    if asked.answered and asked.answered != name:
        raise TargetFailed(f"{connection.host} answers with {name[:40]!r} and no longer with {asked.answered[:40]!r}")
    asked.answered = name


def _ranked(connection: Connection, likeliest: dict[str, float]) -> tuple[IntArray, FloatArray]:
    """Return a row of logarithms by id, likeliest first, of equal ones the smaller id."""
    try:
        pairs = sorted((-logprob, int(id)) for id, logprob in likeliest.items())
    except ValueError:
        raise TargetFailed(f"{connection.host} names tokens by their text, not by their ids") from None
    return _row([id for _, id in pairs], [-each for each, _ in pairs])


def _row(ids: Sequence[int], logits: Sequence[float]) -> tuple[IntArray, FloatArray]:
    return np.array(ids, np.int64), np.array(logits, np.float32)
