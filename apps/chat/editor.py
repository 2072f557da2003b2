"""The line editor of a chat at a terminal, with prompt_toolkit: multi-line messages, history, completion, status."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import has_focus
from prompt_toolkit.history import History
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.styles import Style

from edgedecode.text.printable import checked_text

from .input_history import InputHistory
from .lines import BLOCKS, CONTINUED, PROMPT, QUITTING, Assistant, is_open, unquoted

_STYLE = Style.from_dict({"bottom-toolbar": "noreverse", "bottom-toolbar.text": "dim"})


class EditedLines:
    """Messages from a terminal, of one or several lines each.

    Enter sends. Alt-Enter, Ctrl-J, or Enter after a backslash begins a new line. Pasted lines stay one message.
    """

    interactive = True
    keys: Mapping[str, str] = {
        "Alt-Enter, Ctrl-J": "begin a new line of the message; so does Enter after \\",
        **BLOCKS,
        "Tab": "complete a command, a name or a file",
        "Up, Ctrl-R": "recall earlier messages, search in them",
        **QUITTING,
    }

    def __init__(self, history: InputHistory) -> None:
        self._assistant: Assistant | None = None
        self._session: PromptSession[str] = PromptSession(
            PROMPT,
            multiline=True,
            prompt_continuation=lambda width, _, wraps: " " * width if wraps else CONTINUED,  # wraps: of a long line
            history=_KeptHistory(history),
            key_bindings=_key_bindings(),
            complete_while_typing=False,
            bottom_toolbar=self._status,
            style=_STYLE,
            include_default_pygments_style=False,
            enable_suspend=True,
        )

    @contextmanager
    def attended(self, assistant: Assistant) -> Iterator[None]:
        self._assistant = assistant
        self._session.completer = SlashCompleter(assistant)
        with _unseen(sys.stdin.fileno()):
            yield

    def read(self) -> str | None:
        try:
            return unquoted(checked_text(self._session.prompt(), "the message"))
        except EOFError:
            return None

    def _status(self) -> str:
        return "" if self._assistant is None else self._assistant.status()


@contextmanager
def _unseen(terminal: int) -> Iterator[None]:
    """While entered, what is typed during an answer goes unseen to the next message, with Enter as Enter."""
    if sys.platform == "win32":
        yield
        return
    import termios

    before, mode = termios.tcgetattr(terminal), termios.tcgetattr(terminal)
    mode[0] &= ~termios.ICRNL
    mode[3] = mode[3] & ~(termios.ECHO | termios.ICANON) | termios.NOFLSH  # Ctrl-C would discard what was typed
    termios.tcsetattr(terminal, termios.TCSANOW, mode)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


class SlashCompleter(Completer):
    """Completes the names of slash commands and their arguments. Other messages are not completed."""

    def __init__(self, assistant: Assistant) -> None:
        self._assistant = assistant
        self._files = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        text = document.text_before_cursor
        if not text.startswith("/") or "\n" in text:
            return
        command, space, argument = text[1:].partition(" ")
        if not space:
            yield from _beginning(command, {f"{name} ": help for name, help in self._assistant.commands().items()})
            return
        values = self._assistant.arguments(command)
        if values is None:
            yield from self._files.get_completions(Document(argument), complete_event)
        else:
            yield from _beginning(argument, values)


def _beginning(begun: str, values: Mapping[str, str]) -> Iterator[Completion]:
    return (
        Completion(value, -len(begun), display=value.strip(), display_meta=meaning)
        for value, meaning in values.items()
        if value.startswith(begun)
    )


class _KeptHistory(History):
    """The chat's history, as the editor reads it."""

    def __init__(self, history: InputHistory) -> None:
        super().__init__()
        self._history = history

    def load_history_strings(self) -> Iterable[str]:
        return list(reversed(self._history.entries))

    def store_string(self, string: str) -> None:
        self._history.add(string)


def _key_bindings() -> KeyBindings:
    bindings = KeyBindings()
    typing = has_focus(DEFAULT_BUFFER)  # not while the history is searched, where Enter ends the search

    @bindings.add("enter", filter=typing)
    def send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.complete_state is not None and buffer.complete_state.current_completion is not None:
            buffer.complete_state = None  # the chosen completion stays, and the menu closes
        elif buffer.document.text_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        elif is_open(buffer.text):
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @bindings.add("c-j", filter=typing)
    @bindings.add("escape", "enter", filter=typing)
    @bindings.add("escape", "c-j", filter=typing)
    def begin_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return bindings
