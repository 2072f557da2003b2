"""Reads the bodies of OpenAI's endpoints. What this server cannot do is refused, never ignored."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from math import isfinite
from typing import Annotated, Any, TypeVar

from msgspec import Meta

from edgedecode import InputError, Message, Rule, SamplingOptions, SessionOptions, SwitchOptions, WhenFull
from edgedecode.decoding.policy import NO_DRAFTER
from edgedecode.duplicate_names import unique_keys
from edgedecode.sampling.log_probabilities import MOST_TOP_LOGPROBS
from edgedecode.structured.grammar import Grammar, is_text
from edgedecode.text.messages import ROLES
from edgedecode.typed_json import JsonValue, typed

from .tools import Call, ChoiceBody, ToolBody, Tools, call_text, read_tools

__all__ = [
    "MOST_ANSWERS",
    "NO_EFFECT",
    "PLAIN",
    "SWITCH",
    "TRUNCATION",
    "UNSUPPORTED",
    "Asked",
    "ChatBody",
    "CompletionBody",
    "ModelName",
    "Seed",
    "Stop",
    "check_fields",
    "read_chat",
    "read_completion",
    "read_object",
    "typed_body",
]

PLAIN, SWITCH = MODES = ("plain", "switch")
"""Modes of a model's name: decoding without drafts, entropy switching."""
MOST_ANSWERS = 8
Seed = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Stop = Annotated[str, Meta(min_length=1, max_length=1000)]


def _one_of(*values: str) -> Meta:
    """Describe the allowed values; where they are read, an error names them."""
    return Meta(extra_json_schema={"enum": list(values)})


_Kind = TypeVar("_Kind")
_MOST_LEVELS = 200
"""Of a body's JSON: a schema may have 120. What reads it calls itself for each level."""
NO_EFFECT = (
    *("user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
    "cache_prompt",  # llama.cpp's: every prompt is cached
)
"""Fields that are accepted: no answer depends on them."""
UNSUPPORTED: Mapping[str, tuple[object, ...]] = {
    "functions": ([],),
    "function_call": ("none", "auto"),
    "logit_bias": ({},),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "audio": ({},),
    "modalities": (["text"],),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "reasoning_effort": ("none",),
    "store": (False,),
    "service_tier": ("auto", "default"),
    **dict.fromkeys(("web_search_options", "prediction", "verbosity"), ()),
    # of llama.cpp's and vLLM's clients
    "grammar": ("",),
    "min_tokens": (0,),
    **dict.fromkeys(("json_schema", "guided_json", "guided_regex", "guided_choice", "guided_grammar"), ()),
    **dict.fromkeys(("repetition_penalty", "repeat_penalty", "length_penalty", "typical_p"), (1,)),
    **dict.fromkeys(("ignore_eos", "use_beam_search", "timings_per_token"), (False,)),
    **dict.fromkeys(("skip_special_tokens", "add_generation_prompt"), (True,)),
}
"""Fields that this server does not offer, with the values that mean nothing, besides null."""


@dataclass(frozen=True, slots=True)
class ModelName:
    """What `model` names: the pack, with one of its adapters (`pack:adapter`), or in a mode (`pack@switch`).

    mode: one of `MODES`, or empty: as the server was started.
    """

    pack: str
    adapter: str | None = None
    mode: str = ""

    @classmethod
    def parse(cls, text: str) -> ModelName:
        """Split a name; whether there is such a model is the caller's to check."""
        name, at, mode = text.partition("@")
        pack, colon, adapter = name.partition(":")
        if colon and not adapter:
            raise InputError(f"model {text[:80]!r} has a colon and no adapter after it")
        if at and mode not in MODES:
            raise InputError(f"model {text[:80]!r}: the mode is {mode[:40]!r}, not {' or '.join(MODES)}")
        return cls(pack, adapter or None, mode)


@dataclass(frozen=True, slots=True)
class Asked:
    """A checked request. messages: all but the last for a chat; `text` is the user's, or the text to continue."""

    model: ModelName
    text: str
    messages: tuple[Message, ...]
    chat: bool
    sampling: SamplingOptions
    max_tokens: int | None
    stop: tuple[str, ...]
    seed: int | None
    answers: int
    stream: bool
    include_usage: bool
    rounds: bool = False
    """Whether streamed events report how they were made."""
    top_logprobs: int | None = None
    """How many of the likeliest tokens to give with each token's log probability; None: neither."""
    grammar: Grammar | None = None
    tools: Tools | None = None
    role: str = "user"
    """Whose the text is: the user's or a tool's."""
    name: str = ""
    """`model` as it was given."""
    truncates: bool = False
    """Whether the oldest turns are dropped if the conversation outgrows the context."""
    echoed: Mapping[str, JsonValue] = field(default_factory=dict)
    """Fields that the reply repeats."""

    @property
    def message(self) -> Message:
        """The last message of a chat."""
        return Message(self.role, self.text)

    def session_options(self, base: SessionOptions, *, number: int) -> SessionOptions:
        """Return the options of a session for one of the answers, over the server's own."""
        first = base.seed if self.seed is None else self.seed
        seed = None if first is None else (first + number) % (1 << 63)
        grammar = self.grammar or base.grammar
        options = replace(base, sampling=self.sampling, adapter=self.model.adapter or base.adapter, seed=seed)
        options = replace(options, grammar=grammar, when_full=WhenFull.DROP if self.truncates else WhenFull.STOP)
        if self.model.mode == PLAIN:
            return replace(options, drafter=NO_DRAFTER, draft_max=None, tree=False, switch=None, rule=Rule.MATCH)
        return replace(options, switch=options.switch or SwitchOptions()) if self.model.mode == SWITCH else options


TRUNCATION = Meta(
    extra_json_schema={"enum": ["auto", "disabled"]},
    description="auto: drop the oldest turns of a conversation that outgrows the context; default: refuse it.",
)


@dataclass(frozen=True, slots=True)
class _Part:
    type: Annotated[str, _one_of("text")]
    text: str = ""


@dataclass(frozen=True, slots=True)
class _Called:
    name: str
    arguments: Annotated[str, Meta(description="JSON.")]


@dataclass(frozen=True, slots=True)
class _Call:
    function: _Called


@dataclass(frozen=True, slots=True)
class _Message:
    role: Annotated[str, _one_of(*ROLES, "developer")]
    content: str | list[_Part] | None = None
    tool_calls: list[_Call] | None = None
    function_call: Annotated[None, Meta(description="The older form of tool_calls is not offered.")] = None


@dataclass(frozen=True, slots=True)
class _StreamOptions:
    include_usage: bool = False


@dataclass(frozen=True, slots=True)
class _Schema:
    schema: dict[str, Any] | bool = True


@dataclass(frozen=True, slots=True)
class _Format:
    type: Annotated[str, _one_of("text", "json_object", "json_schema")] = "text"
    json_schema: _Schema | None = None


@dataclass(frozen=True, slots=True)
class _Body:
    model: str
    max_tokens: Annotated[int, Meta(ge=1, le=1 << 24)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1, le=1 << 24)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1, description="0: the likeliest token.")] | None = None
    top_k: Annotated[int, Meta(ge=0, le=1 << 20)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    stop: Stop | Annotated[list[Stop], Meta(max_length=16)] | None = None
    seed: Seed | None = None
    n: Annotated[int, Meta(ge=1, le=MOST_ANSWERS)] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    return_rounds: bool | None = None
    response_format: _Format | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatBody(_Body):
    """The body of /v1/chat/completions. messages: the last is the user's or a tool's."""

    messages: Annotated[list[_Message], Meta(min_length=1, max_length=10_000)]
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MOST_TOP_LOGPROBS)] | None = None
    tools: list[ToolBody] | None = None
    tool_choice: Annotated[str, _one_of("none", "auto", "required")] | ChoiceBody | None = None
    truncation: Annotated[str, TRUNCATION] | None = None
    parallel_tool_calls: Annotated[bool, Meta(description="An answer may make up to 8 calls; default: one.")] | None = (
        None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionBody(_Body):
    """The body of /v1/completions. prompt: a text, or a list of one text."""

    prompt: str | Annotated[list[str], Meta(min_length=1, max_length=1)]
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None


def read_chat(data: bytes, defaults: SamplingOptions) -> Asked:
    """Read a body of /v1/chat/completions. defaults: the pack's sampling. Raises InputError."""
    value = read_object(data)
    body = typed_body(value, ChatBody)
    messages = [_message(message, number) for number, message in enumerate(body.messages)]
    if messages[-1].role not in ("user", "tool"):
        raise InputError(f"the last of messages is the {messages[-1].role}'s: it must be the user's or a tool's")
    if not messages[-1].content.strip():
        raise InputError("the last of messages has no text")
    if body.top_logprobs and not body.logprobs:
        raise InputError("top_logprobs needs logprobs: set it to true")
    last, before = messages[-1], tuple(messages[:-1])
    asked = _asked(value, body, defaults, text=last.content, messages=before, chat=True)
    if body.truncation not in (None, "auto", "disabled"):
        raise InputError(f"truncation must be auto or disabled, not {body.truncation[:40]!r}")
    asked = replace(asked, truncates=body.truncation == "auto")
    asked = replace(asked, top_logprobs=(body.top_logprobs or 0) if body.logprobs else None)
    tools = read_tools(value.get("tools"), value.get("tool_choice"), several=bool(body.parallel_tool_calls))
    if tools is None:
        return replace(asked, role=last.role)
    if asked.grammar is not None:
        raise InputError("tools and a response_format of JSON exclude each other: leave one of them out")
    return replace(asked, role=last.role, messages=tools.introduced(before), grammar=tools.grammar, tools=tools)


def read_completion(data: bytes, defaults: SamplingOptions) -> Asked:
    """Read a body of /v1/completions. Raises InputError."""
    value = read_object(data)
    body = typed_body(value, CompletionBody)
    prompt = body.prompt if isinstance(body.prompt, str) else body.prompt[0]
    if value.get("top_logprobs") is not None:
        raise InputError("top_logprobs belongs to chat completions: give the number as logprobs")
    return replace(_asked(value, body, defaults, text=prompt, messages=(), chat=False), top_logprobs=body.logprobs)


def _asked(
    value: Mapping[str, JsonValue],
    body: _Body,
    defaults: SamplingOptions,
    *,
    text: str,
    messages: tuple[Message, ...],
    chat: bool,
) -> Asked:
    if not chat and value.get("tools") not in (None, []):
        raise InputError("tools belong to chat completions: leave them out")
    check_fields(value, {each.name for each in fields(body)} | {"tools"})
    if body.stream_options is not None and not body.stream:
        raise InputError("stream_options needs stream: set it to true")
    most = body.max_completion_tokens or body.max_tokens
    if most != (body.max_tokens or most):
        raise InputError("max_tokens and max_completion_tokens differ: give one of them")
    given = {name: getattr(body, name) for name in ("temperature", "top_p", "top_k", "min_p")}
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    if body.return_rounds and not body.stream:
        raise InputError("return_rounds reports in a stream: set stream to true")
    if given["top_p"] == 0:  # the smallest set of tokens is the likeliest one
        given |= {"top_p": None, "top_k": 1}
    return Asked(
        model=ModelName.parse(body.model),
        name=body.model,
        text=text,
        messages=messages,
        chat=chat,
        sampling=replace(defaults, **{name: each for name, each in given.items() if each is not None}),
        max_tokens=most,
        stop=stop,
        seed=body.seed,
        answers=body.n or 1,
        stream=bool(body.stream),
        rounds=bool(body.return_rounds),
        grammar=_grammar(body.response_format),
        include_usage=body.stream_options is not None and body.stream_options.include_usage,
    )


def check_fields(
    value: Mapping[str, JsonValue],
    known: Collection[str],
    unsupported: Mapping[str, tuple[object, ...]] = UNSUPPORTED,
) -> None:
    """Refuse the fields of a body that are not known, and those that are not supported. Raises InputError."""
    for name, each in value.items():
        if name in known or name in NO_EFFECT or (name in unsupported and each is None):
            continue
        if name not in unsupported:
            close = get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]}?" if close else "leave it out"
            raise InputError(f"{name[:80]!r} is no field that this server knows: {hint}")
        if each not in unsupported[name]:
            raise InputError(f"{name} is not supported by this server: leave it out")


def _grammar(form: _Format | None) -> Grammar | None:
    """Return what the answer has to follow. Raises InputError."""
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return Grammar.json_object()
    if form.type == "json_schema" and form.json_schema is not None:
        return Grammar.of_schema(form.json_schema.schema)
    raise InputError(f"response_format must be text, json_object or json_schema with a schema, not {form.type[:40]!r}")


def _message(message: _Message, number: int) -> Message:
    content = message.content
    if isinstance(content, list):
        if wrong := [part.type for part in content if part.type != "text"]:
            raise InputError(f"messages[{number}] has a part of type {wrong[0][:40]!r}: this server reads text only")
        content = "".join(part.text for part in content)
    role = "system" if message.role == "developer" else message.role
    try:
        calls = [call_text(Call(each.function.name, each.function.arguments)) for each in message.tool_calls or []]
        return Message(role, "\n".join([*([content] if content else []), *calls]))
    except InputError as error:
        raise InputError(f"messages[{number}]: {error}") from None


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


def typed_body(value: dict[str, JsonValue], kind: type[_Kind]) -> _Kind:
    """Convert a body to its dataclass. Raises InputError that begins with the field's name."""
    try:
        return typed(value, kind, "body")
    except ValueError as error:
        message = str(error).removeprefix("body.").removeprefix("body: ")
        missing = message.removeprefix("object missing required field ")
        raise InputError(f"{missing} is missing" if missing != message else message[:300]) from None
