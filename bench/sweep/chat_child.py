"""The child process of a memory sweep: reads an order as JSON, and returns a plan or the figures of a chat."""

import json
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import cycle
from typing import TypeAlias

from edgedecode.apps.bundled_prompts import bundled_prompts
from edgedecode.apps.verb_options import load_options, open_pair
from edgedecode.engines.child import tell_parent
from edgedecode.errors import ContextExceeded, EdgeDecodeError
from edgedecode.memory.process_memory import peak_nbytes
from edgedecode.options import SessionDetails, SessionOptions, WhenFull
from edgedecode.plan_pack import plan
from edgedecode.sampling.weights import SamplingOptions
from edgedecode.sessions.session import Session

PROMPT_SHARE = 0.75
"""Of a turn's tokens: most of the context is filled with prompts, since prefill is faster than decoding."""
LEAST_ANSWER = 8
"""Tokens."""

Encode: TypeAlias = Callable[[str], Sequence[int]]
Figures: TypeAlias = dict[str, object]


def main() -> None:
    """Run the order from standard input: a bench's arguments. Without a number of turns it asks for a plan."""
    arguments = Namespace(**json.loads(sys.stdin.read()))
    options = SessionOptions(
        sampling=SamplingOptions(),
        context=arguments.ctx_size,
        seed=0,
        details=SessionDetails(ignore_eos=True, when_full=WhenFull.STOP),
    )
    try:
        tell_parent(_planned(arguments, options) if arguments.turns is None else _chatted(arguments, options))
    except EdgeDecodeError as error:
        tell_parent({"failure": error.reason})


def _planned(arguments: Namespace, options: SessionOptions) -> dict[str, int]:
    names = ("runtime", "threads", "kv_type")
    opening = {name: getattr(arguments, name) for name in names}
    how = replace(load_options(arguments), context=arguments.ctx_size, verify=arguments.verify)
    memory = plan(arguments.model, options, options=how, **opening).memory
    return {"least": memory.least_running, "whole": memory.nbytes}


def _chatted(arguments: Namespace, options: SessionOptions) -> Figures:
    with open_pair(arguments) as pair:
        with pair.session(options) as session:
            texts, encode = cycle(prompt.turns[0] for prompt in bundled_prompts()), pair.tokenizer.encode
            found = talk(session, texts, encode=encode, turns=arguments.turns, max_tokens=arguments.max_tokens)
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
