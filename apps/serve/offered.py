"""What a server offers: its models' names, their defaults, and the memory that the process holds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

import edgedecode
from edgedecode import Pair, SamplingOptions
from edgedecode.memory.budget import Budget
from edgedecode.memory.limit import Limit
from edgedecode.memory.process_memory import memory_now, peak_nbytes
from edgedecode.options import DEFAULT_CONTEXT, sampling_defaults
from edgedecode.pack.entries import DRAFT_ADAPTER
from edgedecode.pack.manifest import Manifest

from .models.places import Places
from .requests.asked import PLAIN, SWITCH, Asked, ModelName
from .running import Service

_LATEST = "latest"
"""The version of a model that Ollama's clients name."""


class Model(Struct, tag_field="object", tag="model"):
    """context_length, max_model_len and meta.n_ctx: the same, under the names that clients look for.

    type, display_name, created_at: as Anthropic's clients look for them.
    """

    id: str
    created: int
    type: Literal["model"]
    display_name: str
    created_at: str
    owned_by: str
    context_length: int
    max_model_len: int
    meta: dict[str, int]


class Health(Struct):
    status: Literal["ok", "closing"]
    version: str | UnsetType = UNSET


class ModelList(Struct, tag_field="object", tag="list"):
    """has_more, first_id, last_id: for Anthropic's clients, which read a list in pages."""

    data: list[Model]
    has_more: bool
    first_id: str | None
    last_id: str | None

    @classmethod
    def of(cls, data: list[Model]) -> "ModelList":
        ids: list[str | None] = [*(each.id for each in data)] or [None]
        return cls(data, False, ids[0], ids[-1])


def adapter_names(manifest: Manifest) -> tuple[str, ...]:
    """Return the names of the target's adapters."""
    return tuple(name for name in manifest.adapters if not name.startswith(DRAFT_ADAPTER))


def modes(manifest: Manifest) -> tuple[str, ...]:
    """Return the modes that a model's name may have: entropy switching only where the pack is calibrated for it."""
    switches = "draft" in manifest.models and manifest.switching is not None
    return (PLAIN, SWITCH) if switches else (PLAIN,)


def model_names(pair: Pair, name: str = "") -> list[str]:
    """Return the names of the models that `/v1/models` lists, as `Listed.names`.

    name: the pack's on this server, if it is another one than its own.
    """
    manifest = pair.manifest
    return _names(name or manifest.name, adapter_names(manifest), modes(manifest))


def _names(name: str, adapters: Sequence[str], modes: Sequence[str]) -> list[str]:
    return [name, *(f"{name}:{each}" for each in adapters), *(f"{name}@{each}" for each in modes)]


def named_model(name: str, pair: Pair, *, strict: bool) -> ModelName | None:
    """Return the model that a name means, which may combine an adapter and a mode; None: there is none.

    No name means the pack, and so does another pack's, which clients send that were set up for another server. strict:
    only what `model_names` lists, or combines.
    """
    asked, own = ModelName.parse(name), pair.manifest.name
    if asked.pack not in ("", own):
        return None if strict else ModelName(own)
    if asked.adapter == _LATEST and _LATEST not in adapter_names(pair.manifest) and not strict:
        asked = replace(asked, adapter=None)
    known = asked.adapter in (None, *adapter_names(pair.manifest)) and asked.mode in (None, *modes(pair.manifest))
    return replace(asked, pack=own) if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """What is known about a model, loaded or not. identity: differs for other files. created: its Unix time.

    context: the longest conversation on this server; trained: the model's own. vocabulary: 0: not known. embeds: it
    gives embeddings, as far as is known.
    """

    name: str
    identity: str
    created: int
    nbytes: int
    format: str
    architecture: str
    parameters: int
    quantization: str
    context: int
    trained: int
    vocabulary: int = 0
    aliases: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    modes: tuple[str, ...] = (PLAIN,)
    embeds: bool = False

    @property
    def names(self) -> list[str]:
        """The pack, with each adapter, and in each mode."""
        return _names(self.name, self.adapters, self.modes)

    @property
    def digest(self) -> str:
        """A digest of its own for each name: clients take one digest for one model."""
        return sha256(f"{self.name}\n{self.identity}".encode()).hexdigest()

    @property
    def family(self) -> str:
        return self.architecture.removesuffix("ForCausalLM").lower()


def listed_service(name: str, service: Service) -> Listed:
    """Return what is known about a loaded model."""
    pair = service.pair
    context, card = context_length(service), pair.target.card
    found = listed_pack(name, pair.manifest, created=service.created, context=context)
    return replace(found, trained=card.context, vocabulary=card.vocabulary_size)


def listed_pack(name: str, manifest: Manifest, *, created: int, context: int) -> Listed:
    """Return what a pack's manifest tells."""
    entry = manifest.models["target"]
    return Listed(
        name=name,
        identity=manifest.to_json(),
        created=created,
        nbytes=manifest.nbytes + sum(each.nbytes for each in manifest.outside.values()),
        format="onnx" if entry.graphs else "gguf",
        architecture=entry.architecture,
        parameters=entry.parameters,
        quantization=entry.quantization or f"{entry.bits}-bit",
        context=min(context, entry.context),
        trained=entry.context,
        aliases=(manifest.name,),
        adapters=adapter_names(manifest),
        modes=modes(manifest),
    )


def described_model(listed: Listed) -> Model:
    """Return a model as `/v1/models` has it."""
    meta = {"n_ctx": listed.context, "n_ctx_train": listed.trained}
    meta |= {"n_vocab": listed.vocabulary} if listed.vocabulary else {}
    return Model(
        id=listed.name,
        created=listed.created,
        type="model",
        display_name=listed.name,
        created_at=datetime.fromtimestamp(listed.created, UTC).isoformat(),
        owned_by="edgedecode",
        context_length=listed.context,
        max_model_len=listed.context,
        meta=meta,
    )


def context_length(service: Service) -> int:
    """Return the longest conversation, unless the budget makes it shorter."""
    return min(service.options.context or DEFAULT_CONTEXT, service.pair.target.card.context)


def within_context(asked: Asked, service: Service) -> Asked:
    """Return a request that asks for no longer a context than there is."""
    context = context_length(service)
    if asked.context is None or asked.context < context:
        return asked
    beyond = f"options.num_ctx was not followed beyond {context}, where this server's context ends"
    return replace(asked, context=None, notes=(*asked.notes, *([beyond] if asked.context > context else [])))


def sampling_of(service: Service) -> SamplingOptions:
    """Return the sampling of requests that do not say."""
    return service.options.sampling or sampling_defaults(service.pair.manifest.generation)


def props(name: str, service: Service) -> dict[str, object]:
    """Return what a client needs to offer choices: names, modes, adapters, defaults, and the engine."""
    pair, options = service.pair, service.options
    return {
        "name": name,
        "version": edgedecode.__version__,
        "engine": pair.runtime,
        "provider": pair.provider,
        "adapters": adapter_names(pair.manifest),
        "adapter": options.adapter,
        "modes": modes(pair.manifest),
        "mode": SWITCH if options.details.switch is not None else "" if pair.drafter_names(options) else PLAIN,
        "context": context_length(service),
        "max_tokens": pair.manifest.generation.max_tokens,
        "sampling": sampling_of(service).as_dict(),
    }


def unloaded_props(listed: Listed) -> dict[str, object]:
    """Return what `props` tells of a model that is not in memory: it is not loaded for that."""
    return {
        "name": listed.name,
        "version": edgedecode.__version__,
        "engine": "",
        "provider": "",
        "adapters": listed.adapters,
        "adapter": None,
        "modes": listed.modes,
        "mode": "",
        "context": listed.context,
        "max_tokens": None,
        "sampling": {},
    }


def memory(budgets: Sequence[Budget], limit: Limit | None, places: Places) -> dict[str, object]:
    """Return the leases of the budgets by holder, their limit, and what the process holds, in bytes."""
    holders: dict[str, int] = {}
    for budget in budgets:
        for lease in budget.leases:
            holders[lease.name] = holders.get(lease.name, 0) + lease.nbytes
    now = memory_now()
    return {
        "limit_nbytes": None if limit is None else limit.whole,
        "limited_by": None if limit is None else limit.name,
        "leased_nbytes": sum(holders.values()),
        "holders": [{"name": name, "nbytes": size} for name, size in sorted(holders.items(), key=lambda it: -it[1])],
        "resident_nbytes": None if now is None else now.resident,
        "anonymous_nbytes": None if now is None else now.anonymous,
        "peak_nbytes": peak_nbytes(),
        "answers_running": places.running,
        "requests_waiting": places.queued,
    }
