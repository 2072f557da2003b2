"""Reads the bodies of OpenAI's endpoints. What this server cannot do is refused, never ignored."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from edgedecode import InputError, Message, SamplingOptions
from edgedecode.sampling.log_probabilities import MOST_TOP_LOGPROBS
from edgedecode.text.thinking import Effort

from .answer_form import Form, FormBody, read_form
from .asked import MOST_TOKENS, Asked, FillIn, Prompt
from .chat_messages import Conversation, MessageBody
from .fields import check_fields, enum, read_body
from .sampling import read_sampling
from .thinking import BUDGETS, Budget, LastWords, ReasoningField, ThinkingField, read_thinking
from .tool_fields import CHOICES, ChoiceBody, ToolBody, left_out
from .tools import read_tools

MOST_ANSWERS = 128
"""As OpenAI allows."""
Seed = Annotated[int, Meta(ge=-1, le=(1 << 63) - 1, description="-1: a random one.")]
Stop = Annotated[str, Meta(max_length=1000)]
Most = Annotated[int, Meta(ge=-1, le=(1 << 63) - 1, description="-1: no limit.")]
_MOST_PROMPTS = 2048
"""As OpenAI's limit."""
PromptField: TypeAlias = str | Annotated[list[str | int | list[int]], Meta(min_length=1)]
_LIMITS = ("max_tokens", "max_completion_tokens", "n_predict")
"""Names of the limit of an answer's tokens; the last is llama.cpp's."""
NOT_CONTINUED = "the answer is a message after the assistant's, which it does not continue"
_UNSTORED = "store was not followed: no answer can be retrieved later"
_CONTRADICTION = "ignore_eos contradicts a form or tools, with which an answer ends where it is whole"
_DROPS = "auto: drop the oldest turns of a conversation that outgrows the context; default: refuse it."
Truncation: TypeAlias = Annotated[Literal["auto", "disabled"], Meta(description=_DROPS)]
Verbosity: TypeAlias = Literal["low", "medium", "high"]
Choice: TypeAlias = Annotated[str, enum(*CHOICES)] | ChoiceBody
Stops: TypeAlias = Stop | Annotated[list[Stop], Meta(max_length=16)]


class _StreamOptions(Struct, frozen=True):
    include_usage: bool = False


class _PredictedPart(Struct, frozen=True):
    type: Literal["text"]
    text: str


class _Prediction(Struct, frozen=True):
    """A text that the answer may be or repeat; the answer is the same with it, and comes sooner if it does."""

    type: Literal["content"]
    content: str | list[_PredictedPart]


class _Body(FormBody, frozen=True, kw_only=True):
    model: Annotated[str, Meta(description="Without it: this server's.")] | None = None
    max_tokens: Most | None = None
    max_completion_tokens: Most | None = None
    n_predict: Most | None = None
    stop: Stops | None = None
    seed: Seed | None = None
    n: Annotated[int, Meta(ge=1, le=MOST_ANSWERS)] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    return_rounds: bool | None = None
    ignore_eos: bool | None = None
    store: bool | None = None
    prediction: _Prediction | None = None


class ChatBody(_Body, frozen=True, kw_only=True):
    """The body of /v1/chat/completions. messages: the answer follows the last, whosever it is."""

    messages: Annotated[list[MessageBody], Meta(min_length=1, max_length=10_000)]
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MOST_TOP_LOGPROBS)] | None = None
    tools: list[ToolBody] | None = None
    tool_choice: Choice | None = None
    truncation: Truncation | None = None
    parallel_tool_calls: Annotated[bool, Meta(description="An answer may make up to 8 calls; default: one.")] | None = (
        None
    )
    reasoning_effort: Effort | None = None
    reasoning_budget: Budget | None = None
    reasoning_budget_tokens: Budget | None = None
    thinking_budget_tokens: Budget | None = None
    thinking_token_budget: Budget | None = None
    budgetTokens: Budget | None = None  # noqa: N815 (LM Studio's name)
    reasoning_budget_message: LastWords | None = None
    thinking: ThinkingField | None = None
    reasoning: ReasoningField | None = None
    verbosity: Verbosity | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Meta(description="Variables of the chat template.")] | None = None
    continue_final_message: Annotated[bool, Meta(description="The answer goes on where it ends.")] | None = None
    add_generation_prompt: Annotated[bool, Meta(description="false: as continue_final_message.")] | None = None


class CompletionBody(_Body, frozen=True, kw_only=True):
    """The body of /v1/completions. prompt: a text, token ids, or a list of texts or of lists of ids.

    max_tokens: 0 gives none, as with echo to score the prompt.
    """

    prompt: PromptField
    echo: bool | None = None
    suffix: Annotated[str, Meta(description="What follows, for models with tokens to fill in with.")] | None = None
    best_of: Annotated[int, Meta(description="As many as n, all of which are returned.")] | None = None
    logprobs: bool | Annotated[int, Meta(ge=0, le=MOST_TOP_LOGPROBS)] | None = None


def read_chat(data: bytes, defaults: SamplingOptions) -> Asked:
    """Read a body of /v1/chat/completions. defaults: the pack's sampling. Raises InputError."""
    value, body = read_body(data, ChatBody)
    check_fields(value, body)
    messages = Conversation(body.messages, [f"messages[{number}]" for number in range(len(body.messages))]).read()
    if body.top_logprobs and not body.logprobs:
        raise InputError("top_logprobs needs logprobs: set it to true")
    asked = asked_chat(body, defaults, messages=messages, form=read_form(body))
    return replace(asked, max_tokens=_most(body, least=1))


def asked_chat(body: ChatBody, defaults: SamplingOptions, *, messages: Sequence[Message], form: Form | None) -> Asked:
    """Return the request of a chat. messages, form: read from its body. Raises InputError."""
    last, before = messages[-1], tuple(messages[:-1])
    budgets = {name: getattr(body, name) for name in BUDGETS}
    think, think_tokens = read_thinking(
        body.reasoning_effort, budgets, thinking=body.thinking, reasoning=body.reasoning
    )
    if body.ignore_eos and body.tools:
        raise InputError(_CONTRADICTION)
    asked = replace(
        _asked(body, defaults, form=form),
        text=last.content,
        role=last.role,
        messages=before,
        chat=True,
        truncates=body.truncation == "auto",
        think=think,
        think_tokens=think_tokens,
        think_message=body.reasoning_budget_message,
        template_arguments=body.chat_template_kwargs or {},
        top_logprobs=(body.top_logprobs or 0) if body.logprobs else None,
    )
    notes = [*left_out(body.tools or []), *asked.notes]
    asked = replace(asked, continues=bool(body.continue_final_message) or body.add_generation_prompt is False)
    if asked.continues and not can_continue(last, body.tools, form):
        name = "continue_final_message" if body.continue_final_message else "add_generation_prompt"
        raise InputError(f"{name}: only the assistant's message goes on, without a thought, and no tools or form")
    if last.role == "assistant" and not asked.continues:  # as OpenAI's servers do
        notes.append(NOT_CONTINUED)
    if body.verbosity in ("low", "high"):
        notes.append("verbosity was not followed: say in a message how long to answer")
    schema = None if form is None else form.schema
    tools = read_tools(body.tools or [], body.tool_choice, several=bool(body.parallel_tool_calls), form=schema)
    if tools is None:
        return replace(asked, notes=tuple(notes))
    if form is not None and schema is None:
        raise InputError("tools go with a JSON Schema only, not with a regular expression, choices or a grammar")
    notes += map(str, tools.changes)
    return replace(asked, grammar=tools.grammar, tools=tools, messages=tools.introduced(before), notes=tuple(notes))


def can_continue(last: Message, tools: Sequence[object] | None, form: Form | None) -> bool:
    """Return whether an answer can go on where the last message ends: a grammar covers answers from their beginning."""
    return last.role == "assistant" and not last.thought and not tools and form is None


def read_completion(data: bytes, defaults: SamplingOptions) -> Asked:
    """Read a body of /v1/completions. Raises InputError."""
    value, body = read_body(data, CompletionBody)
    if value.get("tools") not in (None, []):
        raise InputError("tools belong to chat completions: leave them out")
    if body.echo and body.return_rounds:
        raise InputError("return_rounds reports how answers are made, and echo is none: leave one of them out")
    if body.echo and body.suffix:
        raise InputError("echo repeats a prompt that the answer continues, and suffix asks for no such: leave one out")
    if body.best_of not in (None, body.n or 1):
        raise InputError("best_of is not supported by this server: leave it out, or give the same number as n")
    if value.get("top_logprobs"):
        raise InputError("top_logprobs belongs to chat completions: give the number as logprobs")
    check_fields(value, body, also=["tools"])
    return asked_completion(body, defaults, form=read_form(body))


def asked_completion(body: CompletionBody, defaults: SamplingOptions, *, form: Form | None) -> Asked:
    """Return the request of a completion. form: read from its body. Raises InputError."""
    prompts = read_prompts(body.prompt)
    asked = _asked(body, defaults, form=form)
    return replace(
        asked,
        prompts=prompts,
        answers=asked.answers * len(prompts),
        echo=bool(body.echo),
        fill_in=FillIn(body.suffix) if body.suffix else None,
        max_tokens=_most(body, least=0),
        top_logprobs=None if body.logprobs is False or body.logprobs is None else int(body.logprobs),
    )


def _asked(body: _Body, defaults: SamplingOptions, *, form: Form | None) -> Asked:
    if body.stream_options is not None and not body.stream:
        raise InputError("stream_options needs stream: set it to true")
    if body.ignore_eos and form is not None:
        raise InputError(_CONTRADICTION)
    stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
    if body.return_rounds and not body.stream:
        raise InputError("return_rounds reports in a stream: set stream to true")
    return Asked(
        name=body.model or "",
        sampling=read_sampling(body, defaults),
        stop=tuple(each for each in stop if each),
        seed=body.seed,
        answers=body.n or 1,
        stream=bool(body.stream),
        rounds=bool(body.return_rounds),
        grammar=None if form is None else form.grammar,
        notes=(*([_UNSTORED] if body.store else []), *(form.notes if form else ())),
        ignore_eos=bool(body.ignore_eos),
        expected=_expected(body.prediction),
        include_usage=body.stream_options is not None and body.stream_options.include_usage,
    )


def _expected(prediction: _Prediction | None) -> str | None:
    if prediction is None:
        return None
    content = prediction.content
    return content if isinstance(content, str) else "".join(part.text for part in content)


def _most(body: _Body, *, least: int) -> int | None:
    """Return the most tokens of an answer; None: the pack's default. Raises InputError."""
    given = {name: most for name in _LIMITS if (most := getattr(body, name)) is not None}
    if len({*given.values()}) > 1:
        raise InputError(f"{' and '.join(given)} differ: give one of them")
    return next((most_tokens(name, most, least=least) for name, most in given.items()), None)


def most_tokens(name: str, most: int, *, least: int) -> int:
    """Return the most tokens of an answer that a field of this name gives. Raises InputError."""
    if 0 <= most < least:
        raise InputError(f"{name} is {most}: give {least} or more, or -1 for no limit")
    return min(most, MOST_TOKENS) if most >= 0 else MOST_TOKENS


def read_prompts(given: PromptField) -> tuple[Prompt, ...]:
    """Return the prompts of a text, of token ids, or of a list of one of these. Raises InputError."""
    if isinstance(given, str):
        return (given,)
    ids = tuple(each for each in given if isinstance(each, int))
    if len(ids) == len(given):
        return (ids,)
    if len(given) > _MOST_PROMPTS:
        raise InputError(f"prompt has {len(given)} texts, the most is {_MOST_PROMPTS}")
    found: list[Prompt] = []
    for number, each in enumerate(given):
        if isinstance(each, int) or type(each) is not type(given[0]):
            raise InputError("prompt must be a text, token ids, a list of texts, or a list of lists of token ids")
        if not each:
            raise InputError(f"prompt[{number}] is empty: a prompt has at least one token")
        found.append(each if isinstance(each, str) else tuple(each))
    return tuple(found)
