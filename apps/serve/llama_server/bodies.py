"""Reads the bodies of /completion, /infill and /apply-template, as those of OpenAI's API that mean the same.

Fields that this server does not know are left out, as llama-server does, and the reply's header names them.
"""

import json
from dataclasses import replace
from typing import Annotated

from msgspec import Meta, Struct

from edgedecode import InputError, SamplingOptions
from edgedecode.sampling.log_probabilities import MOST_TOP_LOGPROBS

from ..requests.answer_form import read_form
from ..requests.asked import Asked, FillIn
from ..requests.fields import made_of, read_body, read_object, unfollowed
from ..requests.openai import NOT_CONTINUED, ChatBody, CompletionBody, PromptField, asked_completion, read_chat

_PROBABILITIES = Meta(
    ge=0, le=MOST_TOP_LOGPROBS, description="How many of the likeliest tokens to report at each position; 0: none."
)


class LlamaBody(CompletionBody, frozen=True, kw_only=True):
    """The body of /completion. n_cmpl: as n. return_tokens: give the answer's ids too; a stream always does."""

    n_probs: Annotated[int, _PROBABILITIES] | None = None
    n_cmpl: Annotated[int, Meta(ge=1, le=128)] | None = None
    return_tokens: bool | None = None


class _File(Struct, frozen=True):
    text: str
    filename: str = "tmp"


class InfillBody(LlamaBody, frozen=True, kw_only=True):
    """The body of /infill: what is before the gap and after it, and other files of the project.

    prompt: what has been filled in already.
    """

    prompt: PromptField = ""
    input_prefix: str = ""
    input_suffix: str = ""
    input_extra: Annotated[list[_File], Meta(max_length=1000)] | None = None


def read_template(data: bytes, defaults: SamplingOptions) -> Asked:
    """Read a body of /apply-template. Raises InputError."""
    value = read_object(data)
    known = {name: each for name, each in value.items() if name in ChatBody.__struct_fields__}
    asked = read_chat(json.dumps(known | {"add_generation_prompt": None}).encode(), defaults)
    notes = [*asked.notes, *unfollowed(value, ChatBody)]
    if asked.role == "assistant":
        asked, notes = replace(asked, continues=True), [note for note in notes if note != NOT_CONTINUED]
    elif value.get("add_generation_prompt") is False:
        notes.append("add_generation_prompt was not followed: the answer's beginning is there")
    return replace(asked, notes=tuple(notes))


def read_llama_completion(data: bytes, defaults: SamplingOptions) -> Asked:
    """Read a body of /completion. Raises InputError."""
    return _read(data, defaults, LlamaBody)


def read_infill(data: bytes, defaults: SamplingOptions) -> Asked:
    """Read a body of /infill. Raises InputError."""
    return _read(data, defaults, InfillBody)


def _read(data: bytes, defaults: SamplingOptions, kind: type[LlamaBody]) -> Asked:
    value, body = read_body(data, kind)
    if value.get("image_data"):
        raise InputError("image_data has pictures: this server reads text only")
    prompt = body.input_prefix if isinstance(body, InfillBody) else body.prompt
    completion = made_of(body, CompletionBody, prompt=prompt, n=body.n or body.n_cmpl)
    asked = asked_completion(completion, defaults, form=read_form(body))
    if isinstance(body, InfillBody):
        begun = body.prompt if isinstance(body.prompt, str) else ""
        files = tuple((each.filename, each.text) for each in body.input_extra or ())
        asked = replace(asked, fill_in=FillIn(body.input_suffix, begun, files, asks="/infill"))
    return replace(
        asked,
        top_logprobs=body.n_probs or asked.top_logprobs,
        returns_tokens=bool(body.return_tokens),
        notes=(*asked.notes, *unfollowed(value, body)),
    )
