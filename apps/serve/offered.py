"""What a server offers: its models' names, their defaults, and the memory that the process holds."""

from __future__ import annotations

from dataclasses import asdict

import edgedecode
from edgedecode import InputError, Pair, SamplingOptions
from edgedecode.memory.process_memory import memory_now, peak_nbytes
from edgedecode.options import DEFAULT_CONTEXT
from edgedecode.pack.entries import DRAFT_ADAPTER

from .requests.asked import PLAIN, SWITCH, ModelName
from .running import Service

__all__ = ["adapter_names", "is_offered", "memory", "model_names", "props"]


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


def is_offered(name: str, pair: Pair) -> bool:
    """Return whether there is a model of this name; an adapter and a mode may be combined."""
    try:
        asked = ModelName.parse(name)
    except InputError:
        return False
    known = asked.adapter is None or asked.adapter in adapter_names(pair)
    return asked.pack == pair.manifest.name and known and asked.mode in ("", *modes(pair))


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
        "mode": SWITCH if options.switch is not None else "" if pair.drafter_names(options) else PLAIN,
        "context": options.context or min(pair.target.card.context, DEFAULT_CONTEXT),
        "max_tokens": pair.manifest.generation.max_tokens,
        "sampling": {name: value for name, value in asdict(defaults).items() if name != "active"},
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
