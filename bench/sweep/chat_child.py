"""The child process of a memory sweep: reads an order as JSON, and returns a plan or the figures of a chat."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import cycle
from typing import Any, TypeAlias

from edgedecode.engines.child import tell_parent
from edgedecode.errors import ContextExceeded, EdgeDecodeError
from edgedecode.memory.process_memory import peak_nbytes
from edgedecode.open_pack import LoadOptions, load, plan
from edgedecode.options import SessionDetails, SessionOptions, WhenFull
from edgedecode.sampling.weights import SamplingOptions
from edgedecode.sessions.session import Session

PROMPT_SHARE = 0.75
"""Of a turn's tokens: most of the context is filled with prompts, since prefill is faster than decoding."""
LEAST_ANSWER = 8
"""Tokens."""

Encode: TypeAlias = Callable[[str], Sequence[int]]
Figures: TypeAlias = dict[str, object]


def main() -> None:
    """Run the order from standard input. Without a number of turns it asks for a plan."""
    order = json.loads(sys.stdin.read())
    options = SessionOptions(
        sampling=SamplingOptions(),
        context=order["context"],
        seed=0,
        details=SessionDetails(ignore_eos=True, when_full=WhenFull.STOP),
    )
    try:
        tell_parent(_planned(order, options) if order["turns"] is None else _chatted(order, options))
    except EdgeDecodeError as error:
        tell_parent({"failure": error.reason})


def _planned(order: dict[str, Any], options: SessionOptions) -> dict[str, int]:
    memory = plan(order["pack"], options, options=LoadOptions(**order["options"]), **order["opening"]).memory
    return {"least": memory.least_running, "whole": memory.nbytes}


def _chatted(order: dict[str, Any], options: SessionOptions) -> Figures:
    opening = {"memory": order["memory"], "options": LoadOptions(**order["options"]), **order["opening"]}
    with load(order["pack"], **opening) as pair:
        with pair.session(options) as session:
            texts, encode = cycle(order["texts"]), pair.tokenizer.encode
            found = talk(session, texts, encode=encode, turns=order["turns"], max_tokens=order["max_tokens"])
            found |= {"context": session.context, "drafters": session.drafter_name, "peak_nbytes": peak_nbytes()}
        footprint = pair.shared.footprint  # planning takes memory too: it comes after the session and the peak
        cuts = () if footprint is None else footprint.fit(options, pair.budget.limit_nbytes).cuts
        return {**found, "given_up": [cut.what for cut in cuts]}


def talk(session: Session, texts: Iterator[str], *, encode: Encode, turns: int, max_tokens: int | None) -> Figures:
    """Chat in turns that share the context equally; where it is full, fill the rest, keep the later half and go on."""
    share = -(-session.context // turns)
    longest = planned = 0
    for _ in range(turns):
        prompt, length = prompt_of(texts, least=PROMPT_SHARE * share, encode=encode)
        full = False
        try:
            session.generate(prompt, max_tokens=max_tokens or max(LEAST_ANSWER, share - length))
        except ContextExceeded:
            full = True
            with suppress(ContextExceeded):
                session.generate("a", max_tokens=session.context)
        longest, planned = max(longest, len(session.tokens)), max(planned, session.stats.planned_nbytes)
        if full:
            session.reset(session.messages[len(session.messages) // 4 * 2 :])
    return {"longest": longest, "planned_nbytes": planned}


def prompt_of(texts: Iterator[str], *, least: float, encode: Encode) -> tuple[str, int]:
    """Join texts until the prompt has at least `least` tokens; return it and its length in tokens."""
    prompt = next(texts)
    while (length := len(encode(prompt))) < least:
        prompt += f"\n{next(texts)}"
    return prompt, length
