"""What Ollama's clients list and show: the models that this server has, in Ollama's form."""

from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Annotated

from msgspec import Meta

from edgedecode import Pair
from edgedecode.text.template_switches import can_think

from ..offered import context_length, model_names, named_model
from ..requests.asked import ModelName
from ..requests.fields import read_object, typed_body
from ..running import Service

FOLLOWED = "0.13.4"
"""The version of Ollama whose API this follows: clients refuse servers that say an older one."""
_TAG = ":latest"
"""What a name without a tag means, and clients may add."""
_NEVER = "9999-12-31T23:59:59Z"
Name = Annotated[str, Meta(min_length=1)]


@dataclass(frozen=True, slots=True)
class _ShowBody:
    model: Name


def listed_model(name: str, pair: Pair) -> ModelName | None:
    """Return the model of a name that is listed, or combines what is; None: there is none, whatever the server allows
    others: clients of Ollama then pull it."""
    return named_model(name, pair, strict=True) or named_model(name.removesuffix(_TAG), pair, strict=True)


def shown_name(data: bytes) -> str:
    """Return which model a body of /api/show asks for, which older clients call `name`. Raises InputError."""
    value = read_object(data)
    return typed_body({"model": value.get("name"), **value}, _ShowBody).model


def tags(service: Service) -> dict[str, object]:
    """Return the models that the server has."""
    listed = [_listed(name, service) | {"modified_at": _modified(service)} for name in model_names(service.pair)]
    return {"models": listed}


def loaded(service: Service) -> dict[str, object]:
    """Return the model in memory, which stays there. size: what it and its sessions hold."""
    held = {"size": service.pair.budget.used_nbytes, "size_vram": 0, "expires_at": _NEVER}
    model = _listed(service.pair.manifest.name, service) | held | {"context_length": context_length(service)}
    return {"models": [model]}


def shown(service: Service) -> dict[str, object]:
    """Return what is known about the pack, which all of its models share."""
    pair = service.pair
    entry, template = pair.manifest.models["target"], pair.tokenizer.chat_template.source
    family = _family(pair)
    figures = {
        "context_length": context_length(service),
        "embedding_length": entry.hidden_size,
        "block_count": entry.layers,
        "attention.head_count_kv": entry.kv_heads,
        "vocab_size": pair.target.card.vocabulary_size,
    }
    return {
        "license": entry.license,
        "template": template,
        "details": _details(pair),
        "model_info": {
            "general.architecture": family,
            "general.parameter_count": entry.parameters,
            **{f"{family}.{name}": figure for name, figure in figures.items()},
        },
        "capabilities": ["completion", "tools", *(["thinking"] if can_think(template) else [])],
        "modified_at": _modified(service),
    }


def _listed(name: str, service: Service) -> dict[str, object]:
    manifest = service.pair.manifest
    size = manifest.nbytes + sum(each.nbytes for each in manifest.outside.values())
    digest = sha256(f"{name}\n{manifest.to_json()}".encode()).hexdigest()  # clients take one digest for one model
    return {"name": name, "model": name, "size": size, "digest": digest, "details": _details(service.pair)}


def _details(pair: Pair) -> dict[str, object]:
    entry, family = pair.manifest.models["target"], _family(pair)
    count = entry.parameters
    return {
        "parent_model": "",
        "format": "onnx" if entry.graphs else "gguf",
        "family": family,
        "families": [family],
        "parameter_size": f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.2f}M",
        "quantization_level": entry.quantization or f"{entry.bits}-bit",
    }


def _family(pair: Pair) -> str:
    return pair.manifest.models["target"].architecture.removesuffix("ForCausalLM").lower()


def _modified(service: Service) -> str:
    return datetime.fromtimestamp(service.created, UTC).isoformat()
