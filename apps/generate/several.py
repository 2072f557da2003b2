"""Several answers to one prompt: all of them, or the one that is chosen."""

from argparse import Namespace

from edgedecode import FinishReason, InputError, Session
from edgedecode.commands import print_json
from edgedecode.sessions.choosing import Reader, last_number, likeliest, pattern_reader, vote
from edgedecode.text.printable import checked_text
from edgedecode.user_notices import notice

from ..interrupts import until_interrupted
from .reply import LIKELIEST, VOTE, Reply


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
    replies = [Reply(None, stream=False) for _ in range(count)]
    found: dict[str, object] = {}
    shown = 0
    try:
        for chunk in until_interrupted(answers):
            replies[chunk.number].add(chunk)
            if arguments.json or arguments.choose:
                continue
            while shown < count and replies[shown].finish_reason is not FinishReason.CANCELLED:
                _show(shown, count, answers.every[shown].seed, replies[shown].text)
                shown += 1
        if arguments.choose:
            found = _chosen(arguments, replies)
            if not arguments.json and found["chosen"] is None:
                for number, reply in enumerate(replies):
                    _show(number, count, answers.every[number].seed, reply.text)
    finally:  # what an interrupt leaves still gets its statistics
        if arguments.stats:
            from ..stats_table import show_stats

            show_stats(answers.stats, finish_reason=replies[0].finish_reason, full=arguments.stats == "full")
        if arguments.json:
            every = [reply.value(stats) for reply, stats in zip(replies, answers.every, strict=True)]
            print_json({"answers": every} | found)


def _show(number: int, count: int, seed: int | None, text: str) -> None:
    print(f"--- {number + 1} of {count}, seed {seed}\n{text}", flush=True)


def _chosen(arguments: Namespace, replies: list[Reply]) -> dict[str, object]:
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
    return {"chosen": chosen} | found
