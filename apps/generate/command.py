"""The verb `generate`: stream one answer to one prompt. Engines and rich are imported only when it runs."""

import sys
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from edgedecode import Chunk, EdgeDecodeError, FinishReason, InputError, Session
from edgedecode.commands import Command, add_color, add_json, add_prompt, add_stats, positive_count, print_json
from edgedecode.text.printable import checked_text, decoded_text, file_bytes, file_text, is_standard_input

from ..interrupts import until_interrupted
from ..verb_options import (
    add_choice,
    add_pack_options,
    add_samples,
    add_session_options,
    add_target_options,
    open_pair,
    session_options,
    system_messages,
)

if TYPE_CHECKING:
    from ..colour import Paint


@dataclass(slots=True)
class Reply:
    """The answer so far. With `stream`, each chunk is written and flushed as it arrives."""

    paint: "Paint | None"
    stream: bool
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    finish_reason: FinishReason = FinishReason.CANCELLED

    def add(self, chunk: Chunk) -> None:
        """Append a chunk, and write it if streaming. Raises BrokenPipeError when the reader is gone."""
        self.text += chunk.text
        self.tokens += chunk.tokens
        self.finish_reason = chunk.finish_reason or self.finish_reason
        if self.stream and chunk.text:
            sys.stdout.write(chunk.text if self.paint is None else self.paint.paint(chunk.text, chunk.source))
            sys.stdout.flush()

    def end(self) -> None:
        """End the last line of streamed text."""
        if self.stream and not self.text.endswith("\n"):
            print(flush=True)


def read_prompt(arguments: Namespace) -> str:
    """Return the prompt, without the final newline of a file or of standard input. Raises InputError or OSError.

    A chat message must not be blank; with --raw the text may consist of white space.
    """
    text = _given(arguments)
    if not (text if arguments.raw else text.strip()):
        give = "give some text with -p TEXT, --file PATH, or -p - for standard input"
        raise InputError(f"the prompt is empty{'' if text else _taken(arguments)}: {give}")
    return text


def _taken(arguments: Namespace) -> str:
    """Return what the only word was taken for, which may have been meant as the prompt."""
    model = getattr(arguments, "pack", None)
    return f" ({model} is taken for the model)" if model else ""


def _given(arguments: Namespace) -> str:
    prompt = arguments.prompt_text if arguments.prompt is None else arguments.prompt
    if arguments.file is None and prompt not in (None, "-"):
        return checked_text(prompt, "the prompt")
    if arguments.file is None and prompt is None and sys.stdin is not None and sys.stdin.isatty():
        wanted = "as a word, with -p TEXT or --file PATH, or on standard input"
        arguments.usage_error(f"give a prompt{_taken(arguments)}: {wanted}")
    path = "-" if arguments.file is None else arguments.file
    piped = is_standard_input(path)
    if piped and is_standard_input(arguments.json_schema or arguments.grammar):
        raise InputError("standard input holds the schema or grammar: give the prompt as a word, or --file PATH")
    text = decoded_text(file_bytes(Path(path)), "standard input" if piped else path).removeprefix("\ufeff")
    return text[:-2] if text.endswith("\r\n") else text.removesuffix("\n")


class GenerateCommand:
    """Text goes to standard output, statistics to standard error; with --json one line goes to standard output."""

    name = "generate"
    help = "answer one prompt, streaming the text"

    def configure(self, parser: ArgumentParser) -> None:
        source = parser.add_mutually_exclusive_group()
        source.add_argument("-p", "--prompt", metavar="TEXT", help="PROMPT as an option, also where it begins with -")
        source.add_argument("--file", metavar="PATH", help="read the user's message from a UTF-8 file")
        framing = parser.add_mutually_exclusive_group()
        framing.add_argument("--system", metavar="TEXT", help="system message before the prompt")
        framing.add_argument("--raw", action="store_true", help="complete the text without the chat template")
        parser.add_argument("-n", "--max-tokens", type=positive_count, metavar="N", help="stop after N tokens")
        parser.add_argument("--stop", action="append", default=[], metavar="TEXT", help="stop before TEXT; repeatable")
        parser.add_argument(
            "--expect", type=Path, metavar="FILE", help="draft from this text too, which the answer may be or repeat"
        )
        parser.add_argument("--ignore-eos", action="store_true", help="continue past end-of-sequence tokens")
        add_samples(parser)
        add_choice(parser)
        add_stats(parser)
        add_json(parser)
        add_color(parser)
        add_pack_options(parser)
        add_target_options(parser)
        add_prompt(parser, "the user's message (default, and -: standard input)")
        add_session_options(parser)
        parser.set_defaults(usage_error=parser.error)

    def run(self, arguments: Namespace) -> int:
        prompt = read_prompt(arguments)
        if arguments.choose is not None or arguments.answer_pattern is not None:
            from .several import check_choice

            check_choice(arguments)
        messages, expected = system_messages(arguments.system), _expected(arguments)
        with open_pair(arguments) as pair, pair.session(session_options(arguments, pair), messages=messages) as session:
            if arguments.samples > 1:
                from .several import answer_often

                answer_often(arguments, session, prompt)
            else:
                _answer(arguments, session, prompt, expected)
        return 0


def _expected(arguments: Namespace) -> str | None:
    """Return the text to draft from too. Raises InputError where none would be, or for a file that is no text."""
    if arguments.expect is None:
        return None
    fixed = arguments.drafter is not None or arguments.draft_max is not None or arguments.mode == "switch"
    if fixed or arguments.samples > 1:
        raise InputError(
            "--expect drafts one answer, where the scheduler chooses: leave out --drafter, --draft-max, --mode switch "
            "and --samples, or --expect"
        )
    return file_text(arguments.expect)


def _answer(arguments: Namespace, session: Session, prompt: str, expected: str | None) -> None:
    reply = Reply(_paint(arguments.color), stream=not arguments.json)
    stop = [checked_text(text, "--stop") for text in arguments.stop]
    start = session.complete if arguments.raw else session.stream
    try:
        for chunk in until_interrupted(start(prompt, max_tokens=arguments.max_tokens, stop=stop, expected=expected)):
            reply.add(chunk)
    except KeyboardInterrupt:  # the partial answer still gets its statistics
        _finish(arguments, session, reply)
        raise
    except EdgeDecodeError:  # a server went away: the message has a line of its own
        if reply.text:
            reply.end()
        raise
    _finish(arguments, session, reply)


def _paint(when: str) -> "Paint | None":
    """Return what changes the text for standard output; None: nothing does."""
    if when == "never" and not sys.stdout.isatty():
        return None
    from ..colour import Paint

    return Paint.for_stream(sys.stdout, when=when)


def _finish(arguments: Namespace, session: Session, reply: Reply) -> None:
    reply.end()
    if arguments.stats:
        from ..stats_table import show_stats

        show_stats(session.stats, finish_reason=reply.finish_reason, full=arguments.stats == "full")
    if arguments.json:
        value: dict[str, object] = {
            "text": reply.text,
            "tokens": reply.tokens,
            "finish_reason": reply.finish_reason.value,
        }
        value |= {"seed": session.seed, "stats": session.stats.as_dict()}
        if arguments.stats:
            stats = session.stats
            value["memory"] = {"planned_nbytes": stats.planned_nbytes, "peak_resident_nbytes": stats.peak_nbytes}
        print_json(value)


command: Command = GenerateCommand()
