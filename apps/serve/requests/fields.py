"""Reads a body's JSON, and checks which fields it has."""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from math import isfinite
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from msgspec import Meta, MsgspecError, Struct
from msgspec.json import decode

from edgedecode import InputError
from edgedecode.duplicate_names import unique_keys
from edgedecode.structured.grammar import is_text
from edgedecode.typed_json import JsonValue, typed

_Kind = TypeVar("_Kind")
_Body = TypeVar("_Body", bound=Struct)
_MOST_LEVELS = 200
"""Of a body's JSON: a schema may have 120. What reads it calls itself for each level."""
NO_EFFECT = (
    *("user", "metadata", "client_metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
    *("service_tier", "guided_decoding_backend"),  # there is one of each
    *("cache_prompt", "id_slot", "priority", "request_id"),  # llama.cpp's and vLLM's: every prompt is cached
    "prediction",  # of other APIs than those of completions, which draft from it
    "max_tool_calls",  # of tools that a server runs itself
    *("timings_per_token", "return_progress", "backend_sampling"),
    "dynatemp_exponent",  # of a sampler that has to be off
)
"""Fields that are accepted: no answer depends on them."""
_SAMPLERS = ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]
"""llama.cpp's default."""
UNSUPPORTED: Mapping[str, tuple[object, ...]] = {
    "functions": ([],),
    "function_call": ("none", "auto"),
    "audio": ({},),
    "modalities": (["text"],),
    "best_of": (1,),
    "echo": (False,),
    "top_logprobs": (0,),
    **dict.fromkeys(("web_search_options", "guided_whitespace_pattern"), ()),
    # of llama.cpp's and vLLM's clients
    **dict.fromkeys(("min_tokens", "dynatemp_range", "n_probs"), (0,)),
    **dict.fromkeys(("stop_token_ids", "bad_words"), ([],)),
    "tfs_z": (1,),
    "length_penalty": (1,),
    "adaptive_target": (-1,),
    "samplers": ("edskypmxt", "edkypmxt", _SAMPLERS),
    "reasoning_format": ("auto", "deepseek"),
    **dict.fromkeys(("use_beam_search", "include_stop_str_in_output", "continue_final_message"), (False,)),
    **dict.fromkeys(("skip_special_tokens", "spaces_between_special_tokens", "add_generation_prompt"), (True,)),
}
"""Fields that this server does not offer, with their neutral values, which are accepted like null."""

_NOT_ONE = re.compile(r"(\S+) is (.*): invalid enum value .*")
_INSTEAD = {"functions": "tools", "function_call": "tool_choice"}
"""Newer fields for the same."""


def enum(*values: str) -> Meta:
    """Describe the allowed values; where they are read, an error names them."""
    return Meta(extra_json_schema={"enum": [*values]})


def made_of(body: Struct, kind: type[_Body], **others: Any) -> _Body:  # noqa: ANN401  (any field)
    """Return a body with the fields of another API's body that have the same names, and with `others`."""
    same = {name: getattr(body, name) for name in body.__struct_fields__ if name in kind.__struct_fields__}
    return kind(**same | others)


def check_fields(
    value: Mapping[str, JsonValue],
    body: Struct,
    unsupported: Mapping[str, tuple[object, ...]] = UNSUPPORTED,
    *,
    also: Collection[str] = (),
) -> None:
    """Refuse what a body has besides the fields that were read from it, and `also`. Raises InputError."""
    known = [*body.__struct_fields__, *also]
    for name, each in value.items():
        if each is None or name in known or name in NO_EFFECT:
            continue
        if name not in unsupported:
            close = get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]}?" if close else "leave it out"
            raise InputError(f"unknown field {name[:80]!r}: {hint}")
        if (type(each), each) not in [(type(same), same) for same in unsupported[name]]:  # True == 1
            hint = f"give {_INSTEAD[name]}" if name in _INSTEAD else "leave it out"
            raise InputError(f"{name} is not supported by this server: {hint}")


class _Named(Struct):
    model: str = ""


def named_in(data: bytes) -> str:
    """Return the model that a body names; empty: none, or the body is wrong, which is told when it is read."""
    try:
        return decode(data, type=_Named).model
    except (MsgspecError, UnicodeDecodeError, RecursionError):
        return ""


def unfollowed(
    given: Mapping[str, JsonValue], body: Struct | type[Struct], *, also: Collection[str] = (), place: str = ""
) -> list[str]:
    """Return a note for each field besides those that were read, and `also`, unless it asks for nothing.

    place: what the names begin with.
    """
    known = {*body.__struct_fields__, *also, *NO_EFFECT}
    return [
        f"{place}{name[:80]} was not followed"
        for name, value in given.items()
        if value and name not in known and value not in UNSUPPORTED.get(name, ())
    ]


def read_body(data: bytes, kind: type[_Kind]) -> tuple[dict[str, JsonValue], _Kind]:
    """Return a body's JSON, and what was read of it. Raises InputError."""
    value = read_object(data)
    return value, typed_body(value, kind)


def read_object(data: bytes) -> dict[str, JsonValue]:
    """Parse a body. Raises InputError for anything but a JSON object."""
    try:
        value: Any = json.loads(data, object_pairs_hook=unique_keys, parse_constant=_number, parse_float=_number)
    except (ValueError, RecursionError) as error:
        raise InputError(f"the body is not JSON: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(value, dict):
        raise InputError("the body is not a JSON object")
    level: list[Any] = [value]
    for _ in range(_MOST_LEVELS):
        inner = [each.values() if isinstance(each, dict) else each for each in level]
        level = [each for values in inner for each in values if isinstance(each, dict | list)]
    if level:
        raise InputError(f"the body is nested more than {_MOST_LEVELS} levels deep")
    if not is_text(json.dumps(value, ensure_ascii=False)):  # no answer or error could repeat it
        raise InputError("the body has half of a surrogate pair, which is no character")
    return value


def _number(text: str) -> float:
    """Return a number with a fraction or an exponent; 8.0 is an integer, as in JSON Schema. Raises ValueError."""
    value = float(text)
    if not isfinite(value):
        raise ValueError(f"{text[:40]} is not a finite number")
    return int(value) if value.is_integer() and abs(value) <= 1 << 53 else value


def typed_part(value: JsonValue, kind: type[_Kind], place: str) -> _Kind:
    """Convert a part of a body, which is at `place`. Raises InputError."""
    try:
        return typed(value, kind, place)
    except ValueError as error:
        raise InputError(str(error)[:300]) from None


def typed_body(value: dict[str, JsonValue], kind: type[_Kind]) -> _Kind:
    """Convert a body to its dataclass. Raises InputError that begins with the field's name."""
    try:
        return typed(value, kind, "body")
    except ValueError as error:
        message = str(error).removeprefix("body.").removeprefix("body: ")
        message = message.replace(" is '[]': expected array of length >= 1", " is empty: give one or more")
        if (wrong := _NOT_ONE.fullmatch(message)) is not None:
            allowed = filter(None, _allowed(kind, re.findall(r"\w+", wrong[1])))
            message = f"{wrong[1]} must be one of {', '.join(allowed)}, not {wrong[2]}"
        missing = message.removeprefix("object missing required field ")
        raise InputError(f"{missing} is missing" if missing != message else message[:300]) from None


def _allowed(kind: Any, steps: Sequence[str]) -> Iterator[str]:  # noqa: ANN401  (any type)
    """Yield the values that the field of a path may have, which begins in a value of this type."""
    if get_origin(kind) is Literal:
        yield from get_args(kind)
    elif inner := get_args(kind):  # a list, or some types of which the value has one
        for each in inner:
            yield from _allowed(each, steps[1:] if get_origin(kind) is list else steps)
    elif steps and issubclass(kind, Struct) and steps[0] in kind.__struct_fields__:
        yield from _allowed(get_type_hints(kind)[steps[0]], steps[1:])
