"""The chat loop: read a message, run it as a command or answer it, until the end; and the ways of decoding.

At a terminal, Ctrl-C stops the current command or answer, not the program, and a message that is not valid text is
refused. Over a pipe, an invalid line ends the program, and so does Ctrl-C outside an answer.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from threading import Thread

from edgedecode import (
    CapabilityError,
    ContextExceeded,
    EdgeDecodeError,
    FinishReason,
    InputError,
    Message,
    Pair,
    SessionOptions,
    Stats,
    SwitchOptions,
    WhenFull,
)
from edgedecode.decoding.policy import NO_DRAFTER
from edgedecode.engines.registry import drafter_names
from edgedecode.errors import cause
from edgedecode.pack.integrity import models_digest
from edgedecode.sampling.sampler import answer_seed
from edgedecode.text.printable import shown, shown_lines

from ..colour import Paint, dim
from ..interrupts import until_interrupted
from ..stats_table import show_stats, stats_line
from .lines import PROMPT, Lines

AUTO, PLAIN, SWITCH, FIXED = "auto", "plain", "switch", "fixed"
TREE_NODES = 8
"""Size of draft trees where the chat began without a fixed length."""


@dataclass(frozen=True, slots=True)
class Mode:
    """A way to make answers."""

    help: str
    options: SessionOptions


def chat_modes(pair: Pair, start: SessionOptions) -> dict[str, Mode]:
    """Return the modes that a chat may choose, by name. start: the options it began with, whose other values stay."""
    clear = replace(start, drafter=None, draft_max=None, details=replace(start.details, switch=None))
    modes = {AUTO: Mode("drafts where they pay", clear)}
    if mode_of(start) == FIXED:
        modes[FIXED] = Mode("drafts of the fixed length that the chat started with", start)
    modes[PLAIN] = Mode("no drafts", replace(clear, drafter=NO_DRAFTER))
    if "draft" in pair.manifest.models and not start.details.reproducible:
        details = replace(start.details, switch=start.details.switch or SwitchOptions())
        modes[SWITCH] = Mode("partly by the draft model alone, unverified", replace(clear, details=details))
    for name in drafter_names():
        with suppress(EdgeDecodeError):  # one that cannot be loaded is none
            source = pair.drafter_source(name)
            if "draft" in pair.manifest.models or not source.needs_model:
                length = start.draft_max or (TREE_NODES if source.branches else None)
                modes[name] = Mode(f"only the drafter {name} drafts", replace(clear, drafter=name, draft_max=length))
    return modes


def chosen_mode(name: str, pair: Pair, start: SessionOptions) -> Mode:
    """Return the mode of this name. Raises InputError for an unknown one, CapabilityError for one without calibration.

    Switching without a calibrated curve has an unknown quality: only the options that start a chat may ask for it.
    """
    modes = chat_modes(pair, start)
    if name not in modes:
        raise InputError(f"there is no decoding {name!r}; there are: {', '.join(modes)}")
    curve = pair.manifest.switching
    calibrated = curve is not None and curve.models == models_digest(pair.manifest)
    if name == SWITCH and start.details.switch is None and not calibrated:
        raise CapabilityError(
            "the pack is not calibrated for switching: run `edgedecode calibrate`, or start with --mode switch "
            "--switch-threshold H"
        )
    return modes[name]


def mode_of(options: SessionOptions) -> str:
    """Return the name of the mode that these options are."""
    if options.details.switch is not None:
        return SWITCH
    if options.drafter == NO_DRAFTER or options.draft_max == 0:
        return PLAIN
    if options.drafter is not None:
        return options.drafter
    return FIXED if options.fixed else AUTO


class Conversation:
    """A user's conversation with a pair. Answers go to standard output, all messages to standard error.

    options: of the first session. run_slash: runs a line that begins with a slash and returns False to end the chat.
    The pair closes the sessions.
    """

    def __init__(
        self,
        pair: Pair,
        lines: Lines,
        *,
        options: SessionOptions,
        paint: Paint,
        run_slash: Callable[[str, "Conversation"], bool],
        messages: Sequence[Message] = (),
        max_tokens: int | None = None,
        stats: str | None = None,
    ) -> None:
        self.pair = pair
        self.start = options
        """The options that the chat began with."""
        self.options = options
        """The options of the session, with the adapter chosen since."""
        self.session = pair.session(options, messages=messages)
        self._stats = stats
        """What `--stats` asks for after each answer."""
        self.paint = paint
        self.last_finish: FinishReason | None = None
        """How the last answer ended; None before the first."""
        self._last_stats = Stats()
        self._used: int | None = None if messages else 0
        """Tokens of the conversation; None: it was changed since the last answer."""
        self.lines = lines
        self._run_slash = run_slash
        self.open_model: Callable[[str], tuple[Pair, SessionOptions]] | None = None
        """Opens the pair of another model, with the options of its sessions; None: this chat has one model."""
        self.max_tokens = max_tokens

    @property
    def status(self) -> str:
        """The pack, the mode, the adapter and the use of the context, in one line."""
        used = "context " if self._used is None else f"{self._used} of "
        adapter = self.options.adapter
        parts = [self.pair.manifest.name, mode_of(self.session.options), *([adapter] if adapter else [])]
        return " · ".join([*map(shown, parts), f"{used}{self.session.context} tokens"])

    def run(self, first: str | None = None) -> int:
        """Run until /bye, the end of the input, or a second Ctrl-C at the prompt; return the exit code.

        first: a message that was given already.
        """
        if first is not None:
            if self.lines.interactive:
                print(f"{PROMPT}{first}", file=sys.stderr)
            if not self._take(first):
                return 0
        warned = False
        while True:
            try:
                line = self.lines.read()
            except InputError as error:
                if not self.lines.interactive:
                    raise
                self.refuse(cause(error))
                continue
            except KeyboardInterrupt:
                if not self.lines.interactive:
                    raise
                if warned:
                    return 0
                warned = True
                self.say("(press Ctrl-C again to quit, or use Ctrl-D or /bye)")
                continue
            warned = False
            if line is None or not self._take(line):
                return 0
            if self.lines.interactive:
                Thread(target=self._prepare, daemon=True).start()

    def _take(self, line: str) -> bool:
        """Run a line that begins with a slash as a command, and answer any other; // begins a message with a slash.

        Return False to end the chat. Ctrl-C at a terminal stops the command or the answer.
        """
        try:
            if line.startswith("/") and not line.startswith("//"):
                return self._run_slash(line, self)
            if line.strip():
                self.answer(line.removeprefix("/") if line.startswith("//") else line)
        except KeyboardInterrupt:
            if not self.lines.interactive:
                raise
            self.say("\n(interrupted)")
        return True

    def _prepare(self) -> None:
        """Use the time in which the user reads and types; the next message stops it."""
        with suppress(EdgeDecodeError):  # the next answer reports the same error
            self.session.prepare()

    def answer(self, prompt: str | Message) -> None:
        """Stream one answer. On an error, print one line and leave the conversation as it was."""
        try:
            self.last_finish = self._stream(prompt)
        except ContextExceeded:
            context = self.session.context
            stops = self.session.options.details.when_full is WhenFull.STOP
            if stops and any(message.role != "system" for message in self.session.messages):
                self.refuse(f"this no longer fits the context of {context} tokens: /clear starts over")
            else:
                self.refuse(f"the message is longer than the context of {context} tokens: shorten it")
            return
        except EdgeDecodeError as error:
            self.refuse(cause(error))
            return
        self._last_stats, self._used = self.session.stats, len(self.session.tokens)
        if self._stats:
            self.show_stats(self.last_finish, full=self._stats == "full")
        else:
            self.say(stats_line(self._last_stats, finish_reason=self.last_finish))
        if self.session.stats.context_full:
            self.say("the context is full: /clear starts over")

    def show_stats(self, finish: FinishReason, *, full: bool = True) -> None:
        """Write the statistics of the last answer."""
        show_stats(self._last_stats, finish_reason=finish, full=full)

    def start_over(self, messages: Sequence[Message]) -> None:
        """Replace the conversation."""
        self.session.reset(messages)
        self.last_finish = None
        self._used = None if messages else 0

    def answer_again(self, start: int) -> None:
        """Answer the message at this index again. Without a new answer, the old ones stay."""
        messages = self.session.messages
        self.session.reset(messages[:start])
        try:
            self.answer(messages[start])
        finally:
            if self.session.messages == messages[:start]:
                self.session.reset(messages)

    def use_adapter(self, name: str | None, *, scale: float) -> None:
        """Use an adapter of the pack from the next answer on; None: no adapter. Raises as `Session.use_adapter`."""
        self.session.use_adapter(name, scale=scale)
        self.options = replace(self.options, adapter=name, details=replace(self.options.details, adapter_scale=scale))

    def use_options(self, options: SessionOptions, *, seed: int | None = None) -> None:
        """Continue the conversation in a session with other options, except the adapter, and the seed if none is given.

        The old session is closed first, so that no budget has to hold two KV caches. Raises as `Pair.session`; the
        conversation then continues as before.
        """
        old, before = self.session, self.options
        if seed is None and before.seed is not None:
            seed = answer_seed(old.seed, int(self.last_finish is not None))
        details = replace(options.details, adapter_scale=before.details.adapter_scale)
        options = replace(options, seed=seed, adapter=before.adapter, details=details)
        self.pair.drafter_names(options)  # refuses impossible options before anything is closed
        old.close()
        try:
            self.session = self.pair.session(options, messages=old.messages)
        except BaseException:
            try:
                self.session = self.pair.session(replace(before, seed=seed), messages=old.messages)
            except EdgeDecodeError as error:  # the closed session keeps the messages
                self.refuse(f"{cause(error)}; /set decoding opens the conversation again, /save keeps it")
            raise
        self.options = options

    def use_model(self, name: str) -> None:
        """Continue the conversation with another model, which is opened once the present one is closed.

        Raises InputError if this chat has one model, else as `load`; the conversation then continues as before.
        """
        if self.open_model is None:
            raise InputError("this chat has one model")
        messages, present = self.session.messages, str(self.pair.root)
        self.pair.close()
        try:
            self._open(name, messages)
        except BaseException:
            try:
                self._open(present, messages)
            except EdgeDecodeError as error:  # the closed session keeps the messages
                self.refuse(f"{cause(error)}; /model opens the conversation again, /save keeps it")
            raise

    def _open(self, model: str, messages: Sequence[Message]) -> None:
        assert self.open_model is not None
        pair, options = self.open_model(model)
        try:
            self.session = pair.session(options, messages=messages)
        except BaseException:
            pair.close()
            raise
        self.pair, self.start, self.options = pair, options, options
        self.last_finish, self._used = None, None

    def say(self, text: str) -> None:
        """Write a message, dimmed on a terminal."""
        print(dim(shown_lines(text), sys.stderr), file=sys.stderr, flush=True)

    def say_list(self, rows: Mapping[str, str]) -> None:
        """Write names and their meanings, in two columns."""
        width = max(map(len, rows), default=0)
        for name, meaning in rows.items():
            self.say(f"{name:<{width}}  {shown(meaning)}".rstrip())

    def say_choices(self, names: Mapping[str, str], *, present: str) -> None:
        """Write names with their meanings, the present one marked."""
        self.say_list({f"{'*' if name == present else ' '} {shown(name)}": each for name, each in names.items()})

    def refuse(self, text: str) -> None:
        """Write an error in one line."""
        print(f"edgedecode: {shown(text)}", file=sys.stderr, flush=True)

    def _stream(self, prompt: str | Message) -> FinishReason:
        reason, last = FinishReason.CANCELLED, "\n"
        chunks = self.session.stream(prompt, max_tokens=self.max_tokens)
        try:
            for chunk in until_interrupted(chunks):
                sys.stdout.write(self.paint.paint(chunk.text, chunk.source))
                sys.stdout.flush()
                reason, last = chunk.finish_reason or reason, chunk.text or last
        except KeyboardInterrupt:
            pass
        if not last.endswith("\n"):
            print(flush=True)
        return reason
