"""Several answers to one prompt: all of them, or the one that is chosen."""

from argparse import Namespace
from collections.abc import Sequence

from edgedecode import Chunk, Completion, InputError, Session
from edgedecode.commands import print_json
from edgedecode.sessions.choosing import Reader, last_number, likeliest, pattern_reader, vote
from edgedecode.sessions.chunks import completion_of
from edgedecode.text.printable import checked_text
from edgedecode.user_notices import notice

from ..interrupts import until_interrupted
from ..verb_options import LIKELIEST, VOTE


def check_choice(arguments: Namespace) -> Reader:
    """Return what reads an answer for a vote. Raises InputError for options that need others."""
    if arguments.choose is not None and arguments.samples == 1:
        raise InputError("--choose needs several answers: give --samples N, 2 or more")
    if arguments.answer_pattern is None:
        return last_number
    if arguments.choose != VOTE:
        raise InputError(f"--answer-pattern is what a vote is about: give --choose {VOTE}")
    return pattern_reader(arguments.answer_pattern)


def answer_often(arguments: Namespace, session: Session, prompt: str) -> None:
    """Print several answers, each once it and those before it have ended, or the chosen one."""
    stop = [checked_text(text, "--stop") for text in arguments.stop]
    count, most, top = arguments.samples, arguments.max_tokens, 0 if arguments.choose == LIKELIEST else None
    answers = session.samples(prompt, count, raw=arguments.raw, max_tokens=most, stop=stop, top_logprobs=top)
    chunks: list[list[Chunk]] = [[] for _ in range(count)]
    chosen: dict[str, object] = {}
    shown = 0
    if session.sampling.greedy:
        notice("greedy answers are all the same: give --temp 0.8 for different ones")

    def replies() -> list[Completion]:
        return [completion_of(each, stats) for each, stats in zip(chunks, answers.every, strict=True)]

    try:
        for chunk in until_interrupted(answers):
            chunks[chunk.number].append(chunk)
            waits = arguments.json or arguments.choose
            while not waits and shown < count and chunks[shown] and chunks[shown][-1].finish_reason is not None:
                _show(shown, replies())
                shown += 1
        if arguments.choose:
            chosen = _chosen(arguments, replies())
    finally:  # what an interrupt leaves still gets its statistics
        found = replies()
        if arguments.stats:
            from ..stats_table import show_stats

            show_stats(answers.stats, finish_reason=found[0].finish_reason, full=arguments.stats == "full")
        if arguments.json:
            print_json({"answers": [_value(reply) for reply in found]} | chosen)


def _show(number: int, replies: Sequence[Completion]) -> None:
    reply = replies[number]
    print(f"--- {number + 1} of {len(replies)}, seed {reply.stats.seed}\n{reply.text}", flush=True)


def _value(reply: Completion) -> dict[str, object]:
    value = {"text": reply.text, "tokens": reply.tokens, "finish_reason": reply.finish_reason.value}
    return value | {"seed": reply.stats.seed, "stats": reply.stats.as_dict()}


def _chosen(arguments: Namespace, replies: Sequence[Completion]) -> dict[str, object]:
    """Choose one of the answers and print it, unless as JSON; return which, and the votes."""
    chosen: int | None = None
    found: dict[str, object] = {}
    if arguments.choose == LIKELIEST:
        chosen = likeliest([reply.logprobs for reply in replies])
    else:
        made = vote([reply.text for reply in replies], check_choice(arguments))
        found["votes"] = {} if made is None else made.votes
        if made is None:
            notice("no answer has what the vote is about: all are given")
        else:
            chosen = made.chosen
    if chosen is not None and not arguments.json:
        print(replies[chosen].text, flush=True)
    for number in range(len(replies)) if chosen is None and not arguments.json else ():
        _show(number, replies)
    return {"chosen": chosen} | found
