"""The verb `chat`: a conversation in the terminal, or over piped lines. Engines are imported only when it runs."""

import os
import sys
from argparse import ArgumentParser, Namespace

from edgedecode import InputError, Pair, SessionOptions, WhenFull
from edgedecode.commands import Command, add_color, add_prompt, add_stats, positive_count
from edgedecode.text.printable import checked_text

from ..colour import Paint
from ..verb_options import (
    add_pack_options,
    add_session_options,
    add_target_options,
    open_pair,
    session_options,
    system_messages,
)
from .input_history import InputHistory, kept_history
from .lines import Lines, PipedLines, TerminalLines


class ChatCommand:
    """Answers go to standard output, messages and figures to standard error."""

    name = "chat"
    help = "chat with a pack in the terminal"

    def configure(self, parser: ArgumentParser) -> None:
        parser.add_argument("--system", metavar="TEXT", help="system message at the start of the conversation")
        parser.add_argument(
            "-n", "--max-tokens", type=positive_count, metavar="N", help="end each answer after N tokens"
        )
        parser.add_argument(
            "--when-full",
            choices=[each.value for each in WhenFull],
            default=WhenFull.DROP.value,
            help="what to do when the conversation outgrows the context; drop: drop the oldest turns, keep the system "
            "message and prefill the rest again; stop: end the answer (default: %(default)s)",
        )
        add_stats(parser)
        parser.add_argument(
            "--no-history",
            action="store_true",
            help="neither keep the messages typed at a terminal, to recall them in later chats, nor read earlier ones; "
            "they are in the user's cache, see `edgedecode cache`",
        )
        add_color(parser)
        add_pack_options(parser)
        add_target_options(parser)
        add_prompt(parser, "the first message")
        add_session_options(parser)

    def run(self, arguments: Namespace) -> int:
        from .conversation import Conversation
        from .slash import SlashAssistant, run_slash

        messages = system_messages(arguments.system)
        lines = open_lines(keep_history=not arguments.no_history)  # first, so that its memory counts as the process's
        first = None
        if arguments.prompt_text not in (None, "-"):  # it reads standard input anyway
            first = checked_text(arguments.prompt_text, "the first message")

        def open_model(name: str) -> tuple[Pair, SessionOptions]:
            other = Namespace(**vars(arguments) | {"model": name, "draft": None, "adapter": None})
            pair = open_pair(other, swaps=True)
            try:
                return pair, session_options(other, pair)
            except BaseException:
                pair.close()
                raise

        with open_pair(arguments, swaps=True) as pair:
            conversation = Conversation(
                pair,
                lines,
                options=session_options(arguments, pair),
                messages=messages,
                paint=Paint.for_stream(sys.stdout, when=arguments.color),
                run_slash=run_slash,
                max_tokens=arguments.max_tokens,
                stats=arguments.stats,
            )
            conversation.open_model = open_model
            if lines.interactive:
                session = conversation.session
                conversation.say(
                    f"{pair.manifest.name}, drafter {session.drafter_name}, context {session.context} tokens"
                )
                conversation.say("/help lists the commands, Ctrl-C stops an answer, Ctrl-D quits")
            try:
                with lines.attended(SlashAssistant(conversation)):
                    return conversation.run(first)
            finally:
                conversation.pair.close()  # of the last /model


def open_lines(*, keep_history: bool) -> Lines:
    """Return the lines of standard input. Raises InputError when it is closed.

    keep_history: inputs from a terminal are kept in the user's cache, and earlier ones can be recalled.
    """
    if sys.stdin is None:
        raise InputError("standard input is closed: chat reads the conversation from it")
    if not sys.stdin.isatty():
        return PipedLines()
    history = kept_history() if keep_history else InputHistory()
    if sys.stdout.isatty() and os.environ.get("TERM") not in (None, "", "dumb"):
        try:
            from .editor import EditedLines
        except ImportError:  # the extra `chat` is not installed
            pass
        else:
            return EditedLines(history)
    return TerminalLines(history)


command: Command = ChatCommand()
