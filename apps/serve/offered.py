"""What a server offers: its models' names, their defaults, and the memory that the process holds."""

from dataclasses import replace
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

import edgedecode
from edgedecode import Pair, SamplingOptions
from edgedecode.memory.process_memory import memory_now, peak_nbytes
from edgedecode.options import DEFAULT_CONTEXT
from edgedecode.pack.entries import DRAFT_ADAPTER

from .requests.asked import PLAIN, SWITCH, ModelName
from .running import Service

_LATEST = "latest"
"""The version of a model that Ollama's clients name."""


class Model(Struct):
    """context_length, max_model_len and meta.n_ctx: the same, under the names that clients look for."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    context_length: int
    max_model_len: int
    meta: dict[str, int]


class Health(Struct):
    status: Literal["ok", "closing"]
    version: str | UnsetType = UNSET


class Models(Struct):
    object: Literal["list"]
    data: list[Model]


def adapter_names(pair: Pair) -> list[str]:
    """Return the names of the target's adapters."""
    return [name for name in pair.manifest.adapters if not name.startswith(DRAFT_ADAPTER)]


def modes(pair: Pair) -> list[str]:
    """Return the modes that a model's name may have: entropy switching only where the pack is calibrated for it."""
    switches = "draft" in pair.manifest.models and pair.manifest.switching is not None
    return [PLAIN, *([SWITCH] if switches else [])]


def model_names(pair: Pair) -> list[str]:
    """Return the names of the models that `/v1/models` lists: the pack, with each adapter, and in each mode."""
    name = pair.manifest.name
    return [name, *(f"{name}:{each}" for each in adapter_names(pair)), *(f"{name}@{each}" for each in modes(pair))]


def named_model(name: str, pair: Pair, *, strict: bool) -> ModelName | None:
    """Return the model that a name means, which may combine an adapter and a mode; None: there is none.

    No name means the pack, and so does another pack's, which clients send that were set up for another server. strict:
    only what `model_names` lists, or combines.
    """
    asked, own = ModelName.parse(name), pair.manifest.name
    if asked.pack not in ("", own):
        return None if strict else ModelName(own)
    if asked.adapter == _LATEST and _LATEST not in adapter_names(pair) and not strict:
        asked = replace(asked, adapter=None)
    known = asked.adapter in (None, *adapter_names(pair)) and asked.mode in (None, *modes(pair))
    return replace(asked, pack=own) if known else None


def described_model(name: str, service: Service) -> Model:
    """Return a model as `/v1/models` has it."""
    card, context = service.pair.target.card, context_length(service)
    meta = {"n_ctx": context, "n_ctx_train": card.context, "n_vocab": card.vocabulary_size}
    return Model(name, "model", service.created, "edgedecode", context, context, meta)


def context_length(service: Service) -> int:
    """Return the longest conversation, unless the budget makes it shorter."""
    return min(service.options.context or DEFAULT_CONTEXT, service.pair.target.card.context)


def props(service: Service, defaults: SamplingOptions) -> dict[str, object]:
    """Return what a client needs to offer choices: names, modes, adapters, defaults, and the engine."""
    pair, options = service.pair, service.options
    return {
        "name": pair.manifest.name,
        "version": edgedecode.__version__,
        "engine": pair.runtime,
        "provider": pair.provider,
        "adapters": adapter_names(pair),
        "adapter": options.adapter,
        "modes": modes(pair),
        "mode": SWITCH if options.details.switch is not None else "" if pair.drafter_names(options) else PLAIN,
        "context": context_length(service),
        "max_tokens": pair.manifest.generation.max_tokens,
        "sampling": defaults.as_dict(),
    }


def memory(service: Service) -> dict[str, object]:
    """Return the leases of the budget by holder, its limit, and what the process holds, in bytes."""
    budget = service.pair.budget
    holders: dict[str, int] = {}
    for lease in budget.leases:
        holders[lease.name] = holders.get(lease.name, 0) + lease.nbytes
    now = memory_now()
    return {
        "limit_nbytes": budget.limit_nbytes,
        "limited_by": None if budget.limit is None else budget.limit.name,
        "leased_nbytes": sum(holders.values()),
        "holders": [{"name": name, "nbytes": size} for name, size in sorted(holders.items(), key=lambda it: -it[1])],
        "resident_nbytes": None if now is None else now.resident,
        "anonymous_nbytes": None if now is None else now.anonymous,
        "peak_nbytes": peak_nbytes(),
        "answers_running": service.running,
        "requests_waiting": service.queued,
    }
