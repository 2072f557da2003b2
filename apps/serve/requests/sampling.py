"""Reads how tokens are to be sampled: OpenAI's fields, and those of llama.cpp's and vLLM's clients."""

from dataclasses import fields, replace
from typing import Annotated, Any

from msgspec import Meta, Struct

from edgedecode import InputError, SamplingOptions

_Penalty = Annotated[float, Meta(ge=-2, le=2)]
_Repetition = Annotated[float, Meta(ge=1e-6, le=100, description="Tokens of the prompt count too; 1: off.")]
_Bias = Annotated[float, Meta(ge=-100, le=100)]
_Breaker = Annotated[str, Meta(min_length=1, max_length=64)]
_BIASES = Meta(description="By token id, or as pairs of an id and a bias; -100 and false: never.")
_MOST_DIGITS = 9
_NO_PENALTY = {"repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0}


class SamplingBody(Struct, frozen=True, kw_only=True):
    """The fields of a body that choose the next token. repeat_penalty: llama.cpp's name of repetition_penalty."""

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1, description="0: the likeliest token.")] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=1 << 20, description="0 and -1: off.")] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_n_sigma: Annotated[float, Meta(ge=-1, le=100, description="Up to 0: off.")] | None = None
    frequency_penalty: _Penalty | None = None
    presence_penalty: _Penalty | None = None
    repetition_penalty: _Repetition | None = None
    repeat_penalty: _Repetition | None = None
    typical_p: Annotated[float, Meta(gt=0, le=1, description="1: off.")] | None = None
    typ_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    xtc_probability: Annotated[float, Meta(ge=0, le=1, description="0: off.")] | None = None
    xtc_threshold: Annotated[float, Meta(ge=0, le=1)] | None = None
    mirostat: Annotated[int, Meta(ge=0, le=2, description="0: off; 2: on; 1 is not supported.")] | None = None
    mirostat_tau: Annotated[float, Meta(ge=0, le=100)] | None = None
    mirostat_eta: Annotated[float, Meta(ge=0, le=10)] | None = None
    dry_multiplier: Annotated[float, Meta(ge=0, le=100, description="0: off.")] | None = None
    dry_base: Annotated[float, Meta(ge=1, le=100)] | None = None
    dry_allowed_length: Annotated[int, Meta(ge=0, le=1 << 31)] | None = None
    dry_penalty_last_n: Annotated[int, Meta(ge=-1, le=1 << 31, description="0: DRY is off; -1: all.")] | None = None
    dry_sequence_breakers: Annotated[list[_Breaker], Meta(max_length=128)] | None = None
    repeat_last_n: Annotated[int, Meta(ge=-1, description="Of so many tokens; 0: none; -1: all.")] | None = None
    logit_bias: Annotated[dict[str, _Bias] | list[tuple[int, _Bias | bool]], _BIASES] | None = None


def read_sampling(body: SamplingBody, defaults: SamplingOptions) -> SamplingOptions:
    """Return the sampling of a request. defaults: the pack's. Raises InputError that begins with the field's name."""
    names = {each.name for each in fields(SamplingOptions)} & {*SamplingBody.__struct_fields__}
    given: dict[str, Any] = {name: getattr(body, name) for name in names}
    if body.top_p == 0:  # the smallest set of tokens is the likeliest one
        given |= {"top_p": None, "top_k": 1}
    elif body.top_k == -1:
        given["top_k"] = 0
    if body.typical_p is None:
        given["typical_p"] = body.typ_p  # llama.cpp's other name
    if body.dry_penalty_last_n == 0:
        given["dry_multiplier"] = 0.0
    given["dry_penalty_last_n"] = body.dry_penalty_last_n and max(0, body.dry_penalty_last_n)
    if body.dry_sequence_breakers is not None:
        given["dry_sequence_breakers"] = tuple(body.dry_sequence_breakers)
    given["top_n_sigma"] = body.top_n_sigma and max(0, body.top_n_sigma)
    repetitions = {each for each in (body.repetition_penalty, body.repeat_penalty) if each is not None}
    if len(repetitions) > 1:
        raise InputError("repetition_penalty and repeat_penalty differ: give one of them")
    given["repetition_penalty"] = next(iter(repetitions), None)
    if body.repeat_last_n == 0:  # llama.cpp counts the last 0 tokens then
        given |= _NO_PENALTY
    elif body.repeat_last_n is not None:
        given["penalty_window"] = max(0, body.repeat_last_n)
    given["logit_bias"] = None if body.logit_bias is None else _biases(body.logit_bias)
    return replace(defaults, **{name: each for name, each in given.items() if each is not None})


def _biases(given: dict[str, float] | list[tuple[int, float | bool]]) -> dict[int, float]:
    """Return biases by id. Raises InputError for a key that is none, or two keys of one id."""
    found: dict[int, float] = {}
    for key, amount in given.items() if isinstance(given, dict) else ((str(id), each) for id, each in given):
        if not (key.isascii() and key.isdigit() and len(key) <= _MOST_DIGITS and int(key) not in found):
            raise InputError(f"logit_bias has the key {key[:40]!r}: give each token's id once, as digits")
        if amount is True:
            raise InputError(f"logit_bias of id {key} is true: give a number, or false for never")
        found[int(key)] = -100.0 if amount is False else amount
    return found
