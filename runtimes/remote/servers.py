"""What each kind of server is asked, and how its reply is read: rows of the likeliest tokens after a token.

A function each. SGLang's shape is that of its documents and source: it was not run here; the others were.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from edgedecode.arrays import FloatArray, IntArray

from .connection import Connection, Refused
from .token_stream import Asked, Write, in_session, write_ids, write_ollama, write_session, write_text

_MOST_PARTS = 16
"""Parts of characters that llama-server may put first, one after the other, before its row is given up."""
Rows: TypeAlias = list[tuple[IntArray, FloatArray]]
"""The ids after each token, likeliest first, and their logits up to a constant of the row, float32."""


Ask: TypeAlias = Callable[[Connection, Asked], Rows]
"""Raises TargetFailed, and LookupError, TypeError, ValueError or AttributeError for a reply of another shape."""


def ask_edgedecode(connection: Connection, asked: Asked) -> Rows:
    """Ask `edgedecode serve --verify-drafts`. What its session does not hold is sent."""
    body = connection.named | {"rows": asked.rows, "top": asked.top}
    found: Any = in_session(asked, lambda held: connection.ask("/v1/verify", held | body))
    asked.session = str(found["session"])
    connection.answers(found["model"])
    return [
        _row([(id, -gap) for id, gap in zip(ids, [0.0, *gaps], strict=True)])
        for ids, gaps in zip(found["ids"], found["gaps"], strict=True)
    ]


def ask_sglang(connection: Connection, asked: Asked) -> Rows:
    """Ask SGLang's /generate, whose cache of prefixes holds what comes before `logprob_start_len`.

    Its row of an input token predicts that token, so that the last row is the generated token's.
    """
    told = {"return_logprob": True, "top_logprobs_num": asked.top}
    body = {"input_ids": asked.tokens, "sampling_params": {"max_new_tokens": 1, "temperature": 0}, **told}
    found: Any = connection.ask("/generate", {**body, "logprob_start_len": len(asked.tokens) - asked.rows})
    meta = found["meta_info"]
    inputs = meta["input_top_logprobs"] if asked.rows > 1 else []
    rows = [*inputs[len(inputs) - (asked.rows - 1) :], meta["output_top_logprobs"][0]]
    return [_row([(id, logprob) for logprob, id, _ in each]) for each in rows]


def ask_vllm(connection: Connection, asked: Asked) -> Rows:
    """Ask vLLM's /v1/completions, which computes the whole prompt again for `prompt_logprobs`.

    A prompt token that is not among the likeliest is in its row too, with its rank.
    """
    told = {"logprobs": asked.top, "prompt_logprobs": asked.top, "return_tokens_as_token_ids": True}
    body = {**connection.named, "prompt": asked.tokens, "max_tokens": 1, "temperature": 0, **told}
    found: Any = connection.ask("/v1/completions", body)
    connection.answers(found["model"])
    (choice,) = found["choices"]
    rows = [
        _row((int(id), entry["logprob"]) for id, entry in each.items() if entry["rank"] <= asked.top)
        for each in choice["prompt_logprobs"][len(asked.tokens) - asked.rows + 1 :]
    ]
    last: Mapping[str, float] = choice["logprobs"]["top_logprobs"][0]
    return [*rows, _row((int(name.removeprefix("token_id:")), logprob) for name, logprob in last.items())]


def ask_llama_server(connection: Connection, asked: Asked) -> Rows:
    """Ask llama-server's /completion, which tells the likeliest tokens after the last one only.

    It tells nothing beside a part of a character: the same row, which is that before sampling, beside another token.
    """
    body = {"prompt": asked.tokens, "n_predict": 1, "n_probs": asked.top, "temperature": 0, "cache_prompt": True}
    excluded: list[list[int | bool]] = []
    for _ in range(_MOST_PARTS):
        found: Any = connection.ask("/completion", {**body, "return_tokens": True, "logit_bias": excluded})
        if told := found.get("completion_probabilities"):
            return [_row((top["id"], top["logprob"]) for top in told[0]["top_logprobs"])]
        excluded = [*excluded, [found["tokens"][0], False]]
    raise LookupError("no probabilities beside any token")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of server. ask: for rows; None: it tells none, and draws every token itself. write: for what it writes on
    alone; None: it is not asked.

    verifies: whether it tells several rows in one reply, and writes with the noise of a session. most_top: likeliest
    tokens of a row. text: the field of /tokenize with the text; empty: it is not asked for ids.
    """

    ask: Ask | None
    write: Write | None = None
    verifies: bool = False
    most_top: int = 64
    text: str = ""


KINDS = {
    "edgedecode": Kind(ask_edgedecode, write_session, verifies=True, text="content"),
    "sglang": Kind(ask_sglang, verifies=True, text="prompt"),
    "vllm": Kind(ask_vllm, verifies=True, most_top=20, text="prompt"),
    "llama-server": Kind(ask_llama_server, write_ids, text="content"),
    "openai": Kind(None, write_text, most_top=1),
    "ollama": Kind(None, write_ollama, most_top=1),
}


def rows_of(connection: Connection, kind: Kind, asked: Asked, *, size: int) -> Rows:
    """Return the rows asked for. size: of the vocabulary. Raises TargetFailed, also for what are no such rows."""
    assert kind.ask is not None
    try:
        found = kind.ask(connection, asked)
        if len(found) != asked.rows:
            raise ValueError(f"{len(found)} rows for {asked.rows}")
        if any(not len(ids) or ids.min() < 0 or ids.max() >= size for ids, _ in found):
            raise ValueError("tokens that the vocabulary lacks")
        if any(not np.isfinite(logits[0]) or np.isnan(logits).any() for _, logits in found):
            raise ValueError("log probabilities that are no numbers")
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise connection.misread(error) from None
    return found


def tokens_of(connection: Connection, kind: Kind, text: str) -> object:
    """Return the server's ids of a text; None: it does not tell. Raises TargetFailed."""
    special = "add_special_tokens" if kind.text == "prompt" else "add_special"
    body = {kind.text: text, special: False, **connection.named}
    try:
        return connection.ask("/tokenize", body).get("tokens")
    except Refused as error:
        if error.status in (404, 405):
            return None
        raise


def _row(pairs: Iterable[tuple[int, float]]) -> tuple[IntArray, FloatArray]:
    """Return ids and their logits, likeliest first, of equal ones the smaller id."""
    ranked = sorted(pairs, key=lambda pair: (-pair[1], pair[0]))
    return np.array([id for id, _ in ranked], np.int64), np.array([logit for _, logit in ranked], np.float32)
