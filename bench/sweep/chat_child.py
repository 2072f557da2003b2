"""The child process of a memory sweep: reads an order as JSON, and returns a plan or the figures of a chat."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import cycle
from typing import Any, TypeAlias

from edgedecode.engines.child import tell_parent
from edgedecode.errors import ContextExceeded, EdgeDecodeError
from edgedecode.memory.process_memory import peak_nbytes
from edgedecode.open_pack import load, plan
from edgedecode.options import SessionOptions, WhenFull
from edgedecode.pair import Pair
from edgedecode.sampling.weights import SamplingOptions
from edgedecode.sessions.session import Session

from .sweep_runs import Chat

PROMPT_SHARE = 0.75
"""Share of a turn's tokens for the prompt."""
LEAST_ANSWER = 8
"""Shortest answer in tokens."""
SHORTEST = "a"
"""Prompt that fills the rest of the context with its answer."""

Encode: TypeAlias = Callable[[str], Sequence[int]]


def main() -> None:
    """Run the order from standard input."""
    order = json.loads(sys.stdin.read())
    try:
        tell_parent(_planned(order) if order["turns"] is None else _chatted(order))
    except EdgeDecodeError as error:
        tell_parent({"failure": error.reason})


def _planned(order: dict[str, Any]) -> dict[str, object]:
    memory = plan(order["pack"], _options(order), **order["opening"]).memory
    return {"least": memory.least_running, "whole": memory.nbytes}


def _chatted(order: dict[str, Any]) -> dict[str, object]:
    options = _options(order)
    with load(
        order["pack"],
        memory=order["memory"],
        context=order["context"],
        verify=order["verify"],
        **order["opening"],
    ) as pair:
        with pair.session(options) as session:
            talk = Talk(session, cycle(order["texts"]), encode=pair.tokenizer.encode)
            talk.run(order["turns"], max_tokens=order["max_tokens"])
            context, drafters = session.context, session.drafter_name
            peak = peak_nbytes()
        assert peak is not None, "the sweep has checked it"
        chat = Chat(
            planned_nbytes=talk.planned_nbytes,
            peak_nbytes=peak,
            context=context,
            longest=talk.longest,
            drafters=drafters,
            given_up=_given_up(pair, options),
            tokens_per_second=talk.tokens_per_second,
        )
    return {"chat": asdict(chat)}


class Talk:
    """A chat that fills its context, mostly with prompts, since prefill is faster than decoding.

    Answers ignore end-of-sequence tokens and have their maximum length.
    """

    def __init__(self, session: Session, texts: Iterator[str], *, encode: Encode) -> None:
        self._session, self._texts, self._encode = session, texts, encode
        self._tokens, self._seconds = 0, 0.0
        self.longest = 0
        self.planned_nbytes = 0

    @property
    def tokens_per_second(self) -> float:
        """Speed after the first token of each answer."""
        return self._tokens / self._seconds if self._seconds else 0.0

    def run(self, turns: int, *, max_tokens: int | None) -> None:
        """Run `turns` turns, each with an equal share of the context."""
        share = -(-self._session.context // turns)
        for _ in range(turns):
            prompt, length = prompt_of(self._texts, least=PROMPT_SHARE * share, encode=self._encode)
            self._answer(prompt, max_tokens=max_tokens or max(LEAST_ANSWER, share - length))

    def _answer(self, prompt: str, *, max_tokens: int) -> None:
        """Answer a prompt; if it no longer fits, keep the more recent half of the chat, and if that fails, nothing."""
        session = self._session
        for kept in (len(session.messages) // 4 * 2, 0):
            try:
                return self._generate(prompt, max_tokens=max_tokens)
            except ContextExceeded:
                with suppress(ContextExceeded):
                    self._generate(SHORTEST, max_tokens=session.context)  # fill the rest of the context first
                session.reset(session.messages[len(session.messages) - kept :])
        return self._generate(prompt, max_tokens=max_tokens)

    def _generate(self, prompt: str, *, max_tokens: int) -> None:
        stats = self._session.generate(prompt, max_tokens=max_tokens).stats
        self._seconds += stats.time.total
        self._tokens += max(0, stats.verified_tokens - 1)
        self.longest = max(self.longest, len(self._session.tokens))
        self.planned_nbytes = max(self.planned_nbytes, stats.planned_nbytes)


def prompt_of(texts: Iterator[str], *, least: float, encode: Encode) -> tuple[str, int]:
    """Join texts until the prompt has at least `least` tokens; return it and its length in tokens."""
    prompt = next(texts)
    while (length := len(encode(prompt))) < least:
        prompt += f"\n{next(texts)}"
    return prompt, length


def _given_up(pair: Pair, options: SessionOptions) -> tuple[str, ...]:
    """Return the cuts in the plan of such a session. Call it after the session, since planning takes memory too."""
    footprint = pair.shared.footprint
    if footprint is None:
        return ()
    return tuple(cut.what for cut in footprint.fit(options, pair.budget.limit_nbytes).cuts)


def _options(order: Mapping[str, Any]) -> SessionOptions:
    return SessionOptions(
        sampling=SamplingOptions(),
        context=order["context"],
        seed=0,
        ignore_eos=True,
        when_full=WhenFull.STOP,  # dropping turns would avoid a full context, which takes the most memory
    )
