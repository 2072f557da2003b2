"""The child's side of a memory sweep: an order as JSON in, a plan or a chat with its figures out."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

from edgedecode.chunks import Completion
from edgedecode.decoding.weights import SamplingOptions
from edgedecode.engines.child import tell_parent
from edgedecode.errors import CapabilityError, ContextExceeded, EdgeDecodeError
from edgedecode.memory.sampler import PeakSampler
from edgedecode.open_pack import load, plan
from edgedecode.options import SessionOptions
from edgedecode.pair import Pair
from edgedecode.session import Session

from .sweep_runs import Chat

__all__ = ["main"]


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
            talk = _talk(session, order["prompts"], turns=order["turns"], max_tokens=order["max_tokens"])
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
            tokens_per_second=talk.tokens / talk.seconds,
            samples=sampler.samples,
        )
    return {"chat": asdict(chat)}


@dataclass(slots=True)
class _Talk:
    tokens: int = 0
    seconds: float = 0.0
    longest: int = 0
    planned_nbytes: int = 0


def _talk(session: Session, prompts: Sequence[str], *, turns: int, max_tokens: int | None) -> _Talk:
    """Answer the prompts in turn. Answers are as long as fills the context in all, whatever the model would say."""
    talk = _Talk()
    limit = max_tokens or -(-session.context // turns)
    for turn in range(turns):
        started = perf_counter()
        stats = _answer(session, prompts[turn % len(prompts)], max_tokens=limit).stats
        talk.seconds += perf_counter() - started
        talk.tokens += stats.verified_tokens
        talk.longest = max(talk.longest, len(session.tokens))
        talk.planned_nbytes = max(talk.planned_nbytes, stats.planned_nbytes)
    return talk


def _answer(session: Session, prompt: str, *, max_tokens: int) -> Completion:
    """Answer a prompt; where it no longer fits, after the newer half of the conversation, and else after nothing."""
    for kept in (len(session.messages) // 4 * 2, 0):
        try:
            return session.generate(prompt, max_tokens=max_tokens)
        except ContextExceeded:
            session.reset(session.messages[len(session.messages) - kept :])
    return session.generate(prompt, max_tokens=max_tokens)


def _given_up(pair: Pair, options: SessionOptions) -> tuple[str, ...]:
    """Return what the plan of such a session leaves out under this budget, once none is open: plans take memory too."""
    footprint = pair.shared.footprint
    if footprint is None:
        return ()
    return tuple(cut.what for cut in footprint.fit(options, pair.budget.limit_nbytes).cuts)


def _options(order: Mapping[str, Any]) -> SessionOptions:
    return SessionOptions(sampling=SamplingOptions(), context=order["context"], seed=0, ignore_eos=True)
