"""The chat loop: read a line, run it as a command or answer it, until the end.

At a terminal, Ctrl-C stops the current command or answer, not the program, and a line that is not valid text is
refused. Over a pipe, an invalid line ends the program, and so does Ctrl-C outside an answer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from threading import Thread

from edgedecode import ContextExceeded, EdgeDecodeError, FinishReason, InputError, Message, Session, WhenFull
from edgedecode.memory.peaks import PeakSampler
from edgedecode.text.printable import shown, shown_lines

from ..colour import Paint, dim
from ..interrupts import until_interrupted
from ..stats_table import stats_line, stats_table
from .lines import Lines

__all__ = ["Conversation"]


class Conversation:
    """A session with a user. Answers go to standard output, all messages to standard error.

    run_slash: runs a line that begins with a slash and returns False to end the chat.
    """

    def __init__(
        self,
        session: Session,
        lines: Lines,
        *,
        paint: Paint,
        run_slash: Callable[[str, Conversation], bool],
        max_tokens: int | None = None,
        sampler: PeakSampler | None = None,
    ) -> None:
        self.session = session
        self.sampler = sampler
        """Samples this process's memory; None: statistics were not asked for."""
        self.paint = paint
        self.last_finish: FinishReason | None = None
        """How the last answer ended; None before the first."""
        self._lines = lines
        self._run_slash = run_slash
        self._max_tokens = max_tokens

    def run(self) -> int:
        """Run until /quit, the end of the input, or a second Ctrl-C at the prompt; return the exit code."""
        warned = False
        while True:
            try:
                line = self._lines.read()
            except InputError as error:
                if not self._lines.interactive:
                    raise
                self.refuse(" ".join(str(error).split()))
                continue
            except KeyboardInterrupt:
                if not self._lines.interactive:
                    raise
                if warned:
                    print(file=sys.stderr)
                    return 0
                warned = True
                self.say("\n(press Ctrl-C again to quit, or use Ctrl-D or /quit)")
                continue
            warned = False
            if line is None or not self._take(line):
                return 0
            if self._lines.interactive:
                Thread(target=self._prepare, daemon=True).start()

    def _take(self, line: str) -> bool:
        """Run a command or answer one line; return False to end the chat. Ctrl-C at a terminal stops either."""
        try:
            return self._run_or_answer(line)
        except KeyboardInterrupt:
            if not self._lines.interactive:
                raise
            self.say("\n(interrupted)")
            return True

    def _run_or_answer(self, line: str) -> bool:
        """Run a line that begins with a slash as a command, and answer any other; // begins a message with a slash."""
        if line.startswith("/") and not line.startswith("//"):
            return self._run_slash(line, self)
        if line.strip():
            self.answer(line.removeprefix("/") if line.startswith("//") else line)
        return True

    def _prepare(self) -> None:
        """Use the time in which the user reads and types; the next message stops it."""
        with suppress(EdgeDecodeError):  # the next answer meets it again
            self.session.prepare()

    def answer(self, prompt: str) -> None:
        """Stream one answer. On an error, print one line and leave the conversation as it was."""
        try:
            self.last_finish = self._stream(prompt)
        except ContextExceeded:
            context = self.session.context
            stops = self.session.options.when_full is WhenFull.STOP
            if stops and any(message.role != "system" for message in self.session.messages):
                self.refuse(f"this no longer fits the context of {context} tokens: /reset starts over")
            else:
                self.refuse(f"the message is longer than the context of {context} tokens: shorten it")
            return
        except EdgeDecodeError as error:
            self.refuse(" ".join(str(error).split()))
            return
        if self.sampler is None:
            self.say(stats_line(self.session.stats, finish_reason=self.last_finish))
        else:
            self.show_stats(self.last_finish)
        if self.session.stats.context_full:
            self.say("the context is full: /reset starts over")

    def show_stats(self, finish: FinishReason) -> None:
        """Write the statistics table of the last answer."""
        from rich.console import Console

        peak = None if self.sampler is None else self.sampler.peak
        Console(stderr=True).print(stats_table(self.session.stats, finish_reason=finish, peak=peak))

    def start_over(self, messages: list[Message]) -> None:
        """Replace the conversation."""
        self.session.reset(messages)
        self.last_finish = None

    def say(self, text: str) -> None:
        """Write a message, dimmed on a terminal."""
        print(dim(shown_lines(text), sys.stderr), file=sys.stderr, flush=True)

    def refuse(self, text: str) -> None:
        """Write an error in one line."""
        print(f"edgedecode: {shown(text)}", file=sys.stderr, flush=True)

    def _stream(self, prompt: str) -> FinishReason:
        reason = FinishReason.CANCELLED
        last = "\n"
        chunks = self.session.stream(prompt, max_tokens=self._max_tokens)
        try:
            for chunk in until_interrupted(chunks):
                sys.stdout.write(self.paint.paint(chunk.text, chunk.source))
                sys.stdout.flush()
                last = chunk.text or last
                reason = chunk.finish_reason or reason
        except KeyboardInterrupt:
            pass
        if not last.endswith("\n"):
            print(flush=True)
        return reason
