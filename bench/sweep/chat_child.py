"""The child's side of a memory sweep: an order as JSON in, a plan or a chat with its figures out."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import cycle
from typing import Any, TypeAlias

from edgedecode.engines.child import tell_parent
from edgedecode.errors import CapabilityError, ContextExceeded, EdgeDecodeError
from edgedecode.memory.peaks import PeakSampler
from edgedecode.open_pack import load, plan
from edgedecode.options import SessionOptions, WhenFull
from edgedecode.pair import Pair
from edgedecode.sampling.weights import SamplingOptions
from edgedecode.sessions.session import Session

from .sweep_runs import Chat

__all__ = ["Talk", "main", "prompt_of"]

PROMPT_SHARE = 0.75
"""Of a turn's tokens."""
LEAST_ANSWER = 8
SHORTEST = "a"

Encode: TypeAlias = Callable[[str], Sequence[int]]


def main() -> None:
    """Do what standard input orders."""
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
    with (
        PeakSampler() as sampler,
        load(
            order["pack"],
            memory=order["memory"],
            context=order["context"],
            verify=order["verify"],
            **order["opening"],
        ) as pair,
    ):
        with pair.session(options) as session:
            talk = Talk(session, cycle(order["texts"]), encode=pair.tokenizer.encode)
            talk.run(order["turns"], max_tokens=order["max_tokens"])
            context, drafters = session.context, session.drafter_name
            sampler.close()
        if (peak := sampler.peak) is None:
            raise CapabilityError(f"memory cannot be sampled: {sampler.why_not}")
        chat = Chat(
            planned_nbytes=talk.planned_nbytes,
            peak=peak,
            context=context,
            longest=talk.longest,
            drafters=drafters,
            given_up=_given_up(pair, options),
            tokens_per_second=talk.tokens_per_second,
            samples=sampler.samples,
        )
    return {"chat": asdict(chat)}


class Talk:
    """A chat that fills its context: mostly by prompts, which are read faster than answers are made.

    Answers are as long as they may be, whatever the model would say.
    """

    def __init__(self, session: Session, texts: Iterator[str], *, encode: Encode) -> None:
        self._session, self._texts, self._encode = session, texts, encode
        self._tokens, self._seconds = 0, 0.0
        self.longest = 0
        self.planned_nbytes = 0

    @property
    def tokens_per_second(self) -> float:
        """After the first token of each answer."""
        return self._tokens / self._seconds if self._seconds else 0.0

    def run(self, turns: int, *, max_tokens: int | None) -> None:
        """Take turns that each have an equal share of the context."""
        share = -(-self._session.context // turns)
        for _ in range(turns):
            prompt, length = prompt_of(self._texts, least=PROMPT_SHARE * share, encode=self._encode)
            self._answer(prompt, max_tokens=max_tokens or max(LEAST_ANSWER, share - length))

    def _answer(self, prompt: str, *, max_tokens: int) -> None:
        """Answer a prompt; where it no longer fits, after the newer half of what was said, and else after nothing."""
        session = self._session
        for kept in (len(session.messages) // 4 * 2, 0):
            try:
                return self._generate(prompt, max_tokens=max_tokens)
            except ContextExceeded:
                with suppress(ContextExceeded):
                    self._generate(SHORTEST, max_tokens=session.context)  # what is left of it
                session.reset(session.messages[len(session.messages) - kept :])
        return self._generate(prompt, max_tokens=max_tokens)

    def _generate(self, prompt: str, *, max_tokens: int) -> None:
        stats = self._session.generate(prompt, max_tokens=max_tokens).stats
        self._seconds += stats.time.total
        self._tokens += max(0, stats.verified_tokens - 1)
        self.longest = max(self.longest, len(self._session.tokens))
        self.planned_nbytes = max(self.planned_nbytes, stats.planned_nbytes)


def prompt_of(texts: Iterator[str], *, least: float, encode: Encode) -> tuple[str, int]:
    """Return as many of the texts as make a prompt of at least so many tokens, and its length."""
    prompt = next(texts)
    while (length := len(encode(prompt))) < least:
        prompt += f"\n{next(texts)}"
    return prompt, length


def _given_up(pair: Pair, options: SessionOptions) -> tuple[str, ...]:
    """Return what the plan of such a session leaves out under this budget, once none is open: plans take memory too."""
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
        when_full=WhenFull.STOP,  # turns would be dropped before the context is full, which is the dearest state
    )
