"""What a request asks, whatever its API: a prompt and how to answer it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import TypeAlias

from edgedecode import Message, Rule, SamplingOptions, SessionOptions, SwitchOptions, WhenFull
from edgedecode.decoding.policy import NO_DRAFTER
from edgedecode.structured.grammar import Grammar
from edgedecode.typed_json import JsonValue

from .tools import Tools

PLAIN, SWITCH = "plain", "switch"
"""Modes of a model's name: decoding without drafts, entropy switching."""
MOST_TOKENS = 1 << 24
"""Tokens of an answer that goes on to its end, or the context's."""
Prompt: TypeAlias = str | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelName:
    """What `model` names: the pack, with one of its adapters (`pack:adapter`), or in a mode (`pack@switch`).

    mode: `PLAIN` or `SWITCH`; None: as the server was started.
    """

    pack: str
    adapter: str | None = None
    mode: str | None = None

    @classmethod
    def parse(cls, text: str) -> "ModelName":
        """Split a name; whether there is such a model is the caller's to check."""
        name, at, mode = text.partition("@")
        pack, colon, adapter = name.partition(":")
        return cls(pack, adapter if colon else None, mode if at else None)

    @classmethod
    def readings(cls, text: str) -> "Iterator[ModelName]":
        """Yield what a name may mean where packs' own names may have colons: a pack, or one with an adapter."""
        name, at, mode = text.partition("@")
        yield cls(name, None, mode if at else None)
        pack, colon, adapter = name.rpartition(":")
        if colon:
            yield cls(pack, adapter, mode if at else None)


@dataclass(frozen=True, slots=True)
class PastTurn:
    """A request of /v1/responses. previous: the id of the response that it continues; empty: none. items: its own."""

    previous: str
    items: Sequence[Mapping[str, JsonValue]]


@dataclass(frozen=True, slots=True)
class FillIn:
    """What a completion is to lead to: the suffix after it. begun: its beginning. files: others of the project, each
    with its name. asks: what errors begin with."""

    suffix: str
    begun: str = ""
    files: tuple[tuple[str, str], ...] = ()
    asks: str = "suffix"


@dataclass(frozen=True, slots=True)
class Asked:
    """A checked request. messages: all but the last for a chat, whose text is `text`."""

    sampling: SamplingOptions
    stop: tuple[str, ...]
    seed: int | None
    answers: int
    """Of all prompts together, those of one prompt after the other."""
    stream: bool
    include_usage: bool
    text: str = ""
    messages: tuple[Message, ...] = ()
    chat: bool = False
    continues: bool = False
    """Whether a chat's answer goes on where its last message, the assistant's, ends."""
    max_tokens: int | None = None
    prompts: tuple[Prompt, ...] = ()
    """What completions continue, or a chat's answer that goes on; of other chats: none."""
    echo: bool = False
    """Whether completions begin with their prompt."""
    fill_in: FillIn | None = None
    """Completions are between their prompt and this."""
    returns_tokens: bool = False
    """Whether replies have the ids of an answer's tokens, where their form has a place for them."""
    rounds: bool = False
    """Whether streamed events report how they were made."""
    expected: str | None = None
    """A text that the answer may be or repeat: drafts come from it too."""
    top_logprobs: int | None = None
    """How many of the likeliest tokens to give with each token's log probability; None: neither."""
    grammar: Grammar | None = None
    tools: Tools | None = None
    role: str = "user"
    """Role of the text's author."""
    name: str = ""
    """`model` as it was given, or empty."""
    model: ModelName = ModelName("")
    """What answers: the server fills it in."""
    context: int | None = None
    """Most positions of the conversation; None: as the server was started."""
    key: int = -1
    """The number of the key that it came with: chats of different keys share no KV cache. -1: none."""
    keep_seconds: float = inf
    """How long the model stays in memory afterwards, unless another needs its room."""
    load_seconds: float = 0.0
    """How long it waited for its model to be loaded."""
    ignore_eos: bool = False
    template_arguments: Mapping[str, JsonValue] = field(default_factory=dict)
    think: str = ""
    """As in `SessionDetails`, like the next two."""
    think_tokens: int | None = None
    think_message: str | None = None
    must_think: bool = False
    """Whether a model that does not think is refused, as Ollama does."""
    truncates: bool = False
    """Whether the oldest turns are dropped if the conversation outgrows the context."""
    notes: tuple[str, ...] = ()
    """What is not followed, since a client can do without it; for the reply's header."""
    turn: PastTurn | None = None
    """What a later request may refer to, with the answer; None: neither."""
    echoed: Mapping[str, JsonValue] = field(default_factory=dict)
    """Fields that the reply repeats."""

    @property
    def message(self) -> Message:
        """The last message of a chat."""
        return Message(self.role, self.text)

    @property
    def each(self) -> int:
        """Answers to each prompt."""
        return self.answers // max(1, len(self.prompts))

    def prompt(self, number: int) -> Prompt:
        """Return what an answer of this number continues."""
        return self.prompts[number // self.each]

    def session_options(self, base: SessionOptions, *, number: int) -> SessionOptions:
        """Return the options of a session for one of the answers, over the server's own."""
        first = base.seed if self.seed is None else self.seed
        draws = not self.sampling.greedy  # without, a seed changes nothing, and would keep the session from others
        seed = None if first is None or first < 0 or not draws else (first + number % self.each) % (1 << 63)
        grammar = self.grammar or base.grammar
        options = replace(base, sampling=self.sampling, adapter=self.model.adapter or base.adapter, seed=seed)
        options = options if self.context is None else replace(options, context=self.context)
        tokens = base.details.think_tokens if self.think_tokens is None else self.think_tokens
        details = replace(
            base.details,
            ignore_eos=self.ignore_eos or base.details.ignore_eos,
            when_full=WhenFull.DROP if self.truncates else WhenFull.STOP,
            # A grammar covers the whole answer, as does one that goes on, so that there is no place to think in.
            think="off" if grammar is not None or self.continues else self.think or base.details.think,
            think_tokens=None if grammar is not None else tokens,
            think_message=base.details.think_message if self.think_message is None else self.think_message,
            template_arguments={**base.details.template_arguments, **self.template_arguments},
        )
        if self.model.mode == PLAIN:
            options = replace(options, drafter=NO_DRAFTER, draft_max=None)
            details = replace(details, switch=None, rule=Rule.MATCH)
        elif self.model.mode == SWITCH:
            details = replace(details, switch=details.switch or SwitchOptions())
        return replace(options, grammar=grammar, details=details)
