"""The slash commands of a chat: a function each, listed in SLASHES."""

from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from edgedecode import EdgeDecodeError, InputError, Message
from edgedecode.adapters.adapter_change import NO_ADAPTER
from edgedecode.commands import scaled_name, thinking_budget
from edgedecode.pack.entries import DRAFT_ADAPTER
from edgedecode.text.printable import counted
from edgedecode.text.template_switches import idle_switch
from edgedecode.text.thinking import AUTO, EFFORTS, thought_limit
from edgedecode.text.transcript import turn_starts

from ..stats_table import memory_table
from .conversation import Conversation
from .models import choose_model, model_names, pull_model
from .saved_messages import load_messages, save_messages
from .settings import set_or_show, values

_SHOWN = 60
"""Characters of a message that /undo quotes."""


@dataclass(frozen=True, slots=True)
class Slash:
    """A command: its argument's name, its help, and its function, which raises EOFError to end the chat.

    argument: in brackets if it may be left out; empty if there is none. values: the arguments to complete,
    and their meanings; None: files.
    """

    argument: str
    help: str
    run: Callable[[Conversation, str], None]
    values: Callable[[Conversation], Mapping[str, str]] | None = lambda _: {}

    def takes(self, argument: str) -> bool:
        """Return whether an argument may be given, or left out if it is empty."""
        return self.argument.startswith("[") or bool(argument) == bool(self.argument)


class SlashAssistant:
    """Tells a line editor the commands, their arguments and the state of the chat while the user types."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation

    def status(self) -> str:
        return self._conversation.status

    def commands(self) -> Mapping[str, str]:
        return {name: slash.help for name, slash in SLASHES.items()}

    def arguments(self, command: str) -> Mapping[str, str] | None:
        slash = SLASHES.get(command)
        if slash is None:
            return {}
        return None if slash.values is None else slash.values(self._conversation)


def run_slash(line: str, conversation: Conversation) -> bool:
    """Run the command in `line`; return False to end the chat. Errors are shown in one line."""
    name, _, rest = line[1:].strip().partition(" ")
    slash, rest = SLASHES.get(_SAME.get(name, name)), rest.strip()
    try:
        if slash is None:
            near = get_close_matches(name, SLASHES, 1)
            hint = f"did you mean /{near[0]}?" if near else "/help lists the commands"
            raise InputError(f"there is no command /{name}: {hint} (begin a message with // to send a slash)")
        if not slash.takes(rest):
            raise InputError(f"usage: /{name} {slash.argument}".rstrip())
        slash.run(conversation, rest)
    except EOFError:
        return False
    except EdgeDecodeError as error:
        conversation.refuse(" ".join(str(error).split()))
    except OSError as error:
        conversation.refuse(f"{error.strerror or error}: {error.filename or rest}")
    return True


def _help(conversation: Conversation, rest: str) -> None:
    commands = {f"  /{name} {slash.argument}".rstrip(): slash.help for name, slash in SLASHES.items()}
    conversation.say_list(commands | {f"  {key}": effect for key, effect in conversation.lines.keys.items()})


def _clear(conversation: Conversation, rest: str) -> None:
    conversation.start_over([each for each in conversation.session.messages[:1] if each.role == "system"])
    conversation.say("the conversation was cleared")


def _set_system(conversation: Conversation, rest: str) -> None:
    if not rest:
        first = conversation.session.messages[:1]
        conversation.say(first[0].content if first and first[0].role == "system" else "there is no system message")
        return
    conversation.start_over([Message("system", rest)])
    conversation.say("the conversation was cleared, with this system message")


def _undo(conversation: Conversation, rest: str) -> None:
    messages = conversation.session.messages
    start = _last_turn(messages)
    text = " ".join(messages[start].content.split())
    conversation.start_over(messages[:start])
    conversation.say(f"dropped the last turn: {text if len(text) <= _SHOWN else f'{text[:_SHOWN]}…'}")


def _retry(conversation: Conversation, rest: str) -> None:
    messages = conversation.session.messages
    _last_turn(messages)
    answered = [place for place, message in enumerate(messages) if message.role in ("user", "tool")]
    if not answered:
        raise InputError("there is no message to answer again")
    if conversation.session.sampling.greedy:
        conversation.say("greedy: expect the same answer unless mode or adapter changed; --temp 0.8 samples")
    conversation.answer_again(answered[-1])


def _last_turn(messages: Sequence[Message]) -> int:
    """Return the index where the last turn begins. Raises InputError if there is none."""
    starts = turn_starts(messages)
    if not starts:
        raise InputError("the conversation is empty")
    return starts[-1]


def _stats(conversation: Conversation, rest: str) -> None:
    if conversation.last_finish is None:
        raise InputError("there is no answer yet")
    conversation.show_stats(conversation.last_finish)


def _memory(conversation: Conversation, rest: str) -> None:
    from rich.console import Console

    budget = conversation.pair.budget
    conversation.say(f"planned:\n{budget.table()}\nthis process:")
    Console(stderr=True).print(memory_table(budget.used_nbytes))


def _think(conversation: Conversation, rest: str) -> None:
    options = conversation.options
    if rest.removeprefix("-").isdecimal():
        try:
            details = replace(options.details, think_tokens=thinking_budget(rest))
        except ArgumentTypeError as error:
            raise InputError(str(error)) from None
    else:
        details = replace(options.details, think=rest, think_tokens=conversation.start.details.think_tokens)
    if rest:
        conversation.use_options(replace(options, details=details))
    details, shared = conversation.options.details, conversation.pair.shared
    word = details.template_think
    said = f"thinking is {word}" if word not in ("", AUTO) else "thinking is as the chat template has it"
    most = thought_limit(details.think, details.think_tokens) if shared.thinking is not None else None
    idle = "" if shared.thinking is not None else idle_switch(shared.tokenizer.chat_template.source, word)
    conversation.say(idle or (f"{said}, for {most} tokens at most" if most else said))


def _adapter(conversation: Conversation, rest: str) -> None:
    names = _adapters(conversation)
    if not rest:
        conversation.say_choices(names, present=conversation.options.adapter or NO_ADAPTER)
        return
    try:
        name, scale = (None, 1.0) if rest == NO_ADAPTER else scaled_name(rest)
    except ArgumentTypeError as error:
        raise InputError(str(error)) from None
    if name is not None and len(names) == 1:
        raise InputError("the pack has no adapters: `edgedecode adapter` adds one to a pack")
    conversation.use_adapter(name, scale=scale)
    conversation.say("the next answer uses no adapter" if name is None else f"the next answer uses the adapter {name}")


def _save(conversation: Conversation, rest: str) -> None:
    messages = conversation.session.messages
    save_messages(_path(rest), messages)
    conversation.say(f"{counted(len(messages), 'message')} saved to {rest}")


def _load(conversation: Conversation, rest: str) -> None:
    messages = load_messages(_path(rest), context=conversation.session.context)
    conversation.start_over(messages)
    conversation.say(f"{counted(len(messages), 'message')} loaded from {rest}")


def _bye(conversation: Conversation, rest: str) -> None:
    raise EOFError


def _path(name: str) -> Path:
    if "\0" in name:
        raise InputError(f"{name!r} is not a file name: it contains a NUL character")
    try:
        return Path(name).expanduser()
    except RuntimeError:  # ~ names a user that the system does not know
        return Path(name)


def _adapters(conversation: Conversation) -> Mapping[str, str]:
    """Return the names of the target's adapters; those of the draft model follow them."""
    names = [name for name in conversation.pair.manifest.adapters if not name.startswith(DRAFT_ADAPTER)]
    present, scale = conversation.options.adapter, conversation.options.details.adapter_scale
    meanings = {name: f"scale {scale:g}" if name == present and scale != 1 else "" for name in names}
    return {NO_ADAPTER: "the target without an adapter", **meanings}


_EFFORTS = dict.fromkeys(EFFORTS, "")
_SAME = {"exit": "bye", "quit": "bye", "?": "help"}
"""Words of other programs, and ours."""
SLASHES = {
    "model": Slash("[NAME]", "list the models on this machine, or answer with another one", choose_model, model_names),
    "pull": Slash("NAME", "download a model", pull_model),
    "set": Slash("[NAME [VALUE]]", "show the settings, or change one", set_or_show, values),
    "system": Slash("[TEXT]", "show the system message, or start over with another one", _set_system),
    "think": Slash(
        "[on|off|auto|low|N]",
        "show whether the model thinks first, or change it; N: for N tokens at most",
        _think,
        lambda chat: _EFFORTS,
    ),
    "adapter": Slash(
        "[NAME]",
        f"list the pack's adapters, or use one, NAME or NAME:SCALE; {NO_ADAPTER}: use none",
        _adapter,
        _adapters,
    ),
    "clear": Slash("", "start over, keep the system message", _clear),
    "undo": Slash("", "drop the last message and its answer", _undo),
    "retry": Slash("", "answer the last message again", _retry),
    "stats": Slash("", "show statistics of the last answer", _stats),
    "memory": Slash("", "show planned memory by holder, and measured memory", _memory),
    "save": Slash("FILE", "save the conversation to a file", _save, None),
    "load": Slash("FILE", "load a saved conversation and continue it", _load, None),
    "help": Slash("", "show this list", _help),
    "bye": Slash("", "end the chat", _bye),
}
