"""What /set shows and changes: decoding, sources, the limit of an answer, the seed, and the options of sampling."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from edgedecode import InputError
from edgedecode.options import sampling_defaults
from edgedecode.sampling.weights import SamplingOption, sampling_table

from ..colour import Paint
from .conversation import Conversation, chat_modes, chosen_mode, mode_of

DECODING, SOURCES, LIMIT, SEED = "decoding", "sources", "max_tokens", "seed"
DEFAULT = "default"
SWITCH = {"on": "colour tokens by source", "off": "plain text"}


def set_or_show(conversation: Conversation, rest: str) -> None:
    """Run /set with its argument. Raises InputError, and what a new session raises."""
    name, _, value = rest.partition(" ")
    name, value = name.replace("-", "_"), value.strip()
    present = _present(conversation)
    if not name:
        conversation.say_list({f"{each:<20} {shown}": _HELP[each] for each, shown in present.items()})
        return
    if name not in present:
        near = get_close_matches(name, present, 1)
        hint = f"did you mean {near[0]}?" if near else "/set lists the settings"
        raise InputError(f"there is no setting {name!r}: {hint}")
    if name == DECODING:
        _decoding(conversation, value)
    elif name == SOURCES:
        _sources(conversation, value)
    else:
        if value:
            _set_number(conversation, name, value)
        conversation.say(f"{name} is {_present(conversation)[name]}")


def values(conversation: Conversation) -> Mapping[str, str]:
    """Return what may follow /set, and the meanings."""
    chosen = {DECODING: _modes(conversation), SOURCES: SWITCH}
    found = {f"{name} ": help for name, help in _HELP.items() if name not in chosen}
    return found | {f"{name} {each}": help for name, names in chosen.items() for each, help in names.items()}


def _decoding(conversation: Conversation, name: str) -> None:
    if not name:
        conversation.say_choices(_modes(conversation), present=mode_of(conversation.session.options))
        return
    now, mode = conversation.options, chosen_mode(name, conversation.pair, conversation.start)
    details = replace(mode.options.details, think=now.details.think, think_tokens=now.details.think_tokens)
    conversation.use_options(replace(mode.options, details=details, sampling=now.sampling))
    found = mode_of(conversation.session.options)  # not the chosen one if memory is short
    conversation.say(f"decoding {found}: {_modes(conversation)[found]}")


def _sources(conversation: Conversation, value: str) -> None:
    if value not in ("", *SWITCH):
        raise InputError(f"usage: /set {SOURCES} [on|off]")
    if value:
        conversation.paint.on = value == "on"
    conversation.say(f"{SOURCES} are {'shown' if conversation.paint.on else 'not shown'}")
    for line in Paint.for_stream(sys.stderr).legend():
        print(f"  {line}", file=sys.stderr, flush=True)


def _set_number(conversation: Conversation, name: str, value: str) -> None:
    if name == LIMIT:
        conversation.max_tokens = None if value == DEFAULT else _whole(name, value, least=1)
    elif name == SEED:
        conversation.use_options(conversation.options, seed=_whole(name, value, least=0))
    else:
        option = next(each for each in sampling_table() if each.name == name)
        changed: dict[str, Any] = {name: _number(option, value, conversation)}
        sampling = replace(conversation.session.sampling, **changed)
        conversation.use_options(replace(conversation.options, sampling=sampling))


def _number(option: SamplingOption, value: str, conversation: Conversation) -> float:
    if value == DEFAULT:
        default: float = getattr(sampling_defaults(conversation.pair.manifest.generation), option.name)
        return default
    try:
        return int(value) if option.whole else float(value)
    except ValueError:
        raise InputError(f"{option.name} is {value[:40]!r}: give a {'whole ' * option.whole}number") from None


def _whole(name: str, value: str, *, least: int) -> int:
    if not value.isdecimal() or not value.isascii() or int(value[:20]) < least:
        raise InputError(f"{name} is {value[:40]!r}: give a whole number from {least} on")
    return int(value[:20])


def _present(conversation: Conversation) -> dict[str, str]:
    """Return the settings and their values."""
    session, limit = conversation.session, conversation.max_tokens
    return {
        DECODING: mode_of(session.options),
        SOURCES: "on" if conversation.paint.on else "off",
        LIMIT: DEFAULT if limit is None else str(limit),
        SEED: str(session.seed),
        **{each.name: f"{getattr(session.sampling, each.name):g}" for each in sampling_table()},
    }


def _modes(conversation: Conversation) -> Mapping[str, str]:
    return {name: mode.help for name, mode in chat_modes(conversation.pair, conversation.start).items()}


_HELP: Mapping[str, str] = {
    DECODING: "how drafts are made",
    SOURCES: "colour tokens by source",
    LIMIT: "of one answer",
    SEED: "of the next answer",
    **{each.name: each.help for each in sampling_table()},
}
