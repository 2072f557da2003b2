"""What Ollama's clients list and show: the models that this server has, in Ollama's form."""

from collections.abc import Sequence
from datetime import UTC, datetime
from math import inf
from typing import Annotated

from msgspec import Meta, Struct

from edgedecode import Pair
from edgedecode.text.template_switches import can_think

from ..models.one import Loaded
from ..offered import Listed, listed_service
from ..requests.fields import read_object, typed_body

FOLLOWED = "0.13.4"
"""The version of Ollama whose API this follows: clients refuse servers that say an older one."""
_NEVER = "9999-12-31T23:59:59Z"
Name = Annotated[str, Meta(min_length=1)]


class ShowBody(Struct, frozen=True):
    model: Name


def shown_name(data: bytes) -> str:
    """Return which model a body of /api/show asks for, which older clients call `name`. Raises InputError."""
    value = read_object(data)
    return typed_body({"model": value.get("name"), **value}, ShowBody).model


def tags(models: Sequence[Listed]) -> dict[str, object]:
    """Return the models that the server has."""
    return {"models": [_listed(each) | {"modified_at": _written(each.created)} for each in models]}


def loaded(models: Sequence[Loaded]) -> dict[str, object]:
    """Return the models in memory. size: what each and its sessions hold."""
    return {"models": [_held(each) for each in models]}


def shown(listed: Listed, pair: Pair | None) -> dict[str, object]:
    """Return what is known about a model, which is more of one that is loaded."""
    figures: dict[str, object] = {"context_length": listed.context}
    template, license, embeds = "", "", listed.embeds
    if pair is not None:
        entry, template = pair.manifest.models["target"], pair.tokenizer.chat_template.source
        license, embeds = entry.license, pair.target.card.hidden
        figures |= {
            "embedding_length": entry.hidden_size,
            "block_count": entry.layers,
            "attention.head_count_kv": entry.kv_heads,
            "vocab_size": pair.target.card.vocabulary_size,
        }
    return {
        "license": license,
        "template": template,
        "details": _details(listed),
        "model_info": {
            "general.architecture": listed.family,
            "general.parameter_count": listed.parameters,
            **{f"{listed.family}.{name}": figure for name, figure in figures.items()},
        },
        "capabilities": [
            *("completion", "tools"),
            *(["thinking"] if can_think(template) else []),
            *(["embedding"] if embeds else []),
        ],
        "modified_at": _written(listed.created),
    }


def _held(model: Loaded) -> dict[str, object]:
    expires = _NEVER if model.expires == inf else _written(model.expires)
    size = model.service.pair.budget.used_nbytes
    listed = listed_service(model.name, model.service)
    return _listed(listed) | {
        "size": size,
        "size_vram": 0,
        "expires_at": expires,
        "context_length": listed.context,
    }


def _listed(each: Listed) -> dict[str, object]:
    return {
        "name": each.name,
        "model": each.name,
        "size": each.nbytes,
        "digest": each.digest,
        "details": _details(each),
    }


def _details(listed: Listed) -> dict[str, object]:
    count = listed.parameters
    return {
        "parent_model": "",
        "format": listed.format,
        "family": listed.family,
        "families": [listed.family],
        "parameter_size": f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.2f}M",
        "quantization_level": listed.quantization,
    }


def _written(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
