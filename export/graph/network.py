"""A transformers model without weights of its own: its parameters are views of a checkpoint. Makes no graph."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgedecode.errors import ExportError

from ..frameworks import reason_of
from .checkpoint import Checkpoint
from .rotary import revive_rotary

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["open_network"]

_HEAD = "lm_head.weight"
_NO_WEIGHTS = ("rotary_emb.inv_freq", _HEAD)
"""Tensors of older files that hold nothing of their own."""
_ROWS = 4096


def open_network(
    folder: Path, checkpoint: Checkpoint, *, architecture: str, long_rope: bool = False
) -> PreTrainedModel:
    """Make the model that config.json describes; `long_rope` as in `revive_rotary`.

    Raises ExportError for another class than `architecture`, for missing tensors and for other shapes.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        with torch.device("meta"):
            network: PreTrainedModel = AutoModelForCausalLM.from_config(
                config, trust_remote_code=False, attn_implementation=_attention(config)
            )
    except Exception as error:  # the errors of transformers' configurations share no base class
        what = f"transformers cannot make a model of {folder / 'config.json'}: {reason_of(error)}"
        raise ExportError(what) from error
    _check_class(network, architecture, name=folder.name)
    _check(network, checkpoint, tied=bool(config.tie_word_embeddings), name=folder.name)
    network.load_state_dict(dict(checkpoint.tensors), strict=False, assign=True)
    revive_rotary(network, long=long_rope)
    _revive_scale(network)
    network.get_input_embeddings().padding_idx = None  # for gradients only, and no row of a table cut to some rows
    _float_vectors(network)
    network.requires_grad_(False)
    network.tie_weights()
    network.eval()
    return network


def _attention(config: Any) -> str:  # noqa: ANN401  (configurations share no typed attributes)
    """The fused attention leaves a soft cap out without a word, and Gemma 2 does not take it at all."""
    eager = getattr(config, "attn_logit_softcapping", None) or config.model_type == "gemma2"
    return "eager" if eager else "sdpa"


def _revive_scale(network: PreTrainedModel) -> None:
    """Make the embedding's scale again, a buffer that no checkpoint holds."""
    embedding: Any = network.get_input_embeddings()
    if hasattr(embedding, "scalar_embed_scale"):
        import torch

        embedding.embed_scale = torch.tensor(embedding.scalar_embed_scale)


def _float_vectors(network: PreTrainedModel) -> None:
    """Hold norms and biases in float32: they are small, and an offset added to a bfloat16 norm would be rounded."""
    import torch

    for module in network.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.dim() == 1 and parameter.dtype != torch.float32:
                setattr(module, name, torch.nn.Parameter(parameter.float(), requires_grad=False))


def _check_class(network: PreTrainedModel, architecture: str, *, name: str) -> None:
    if (made := type(network).__name__) != architecture:
        raise ExportError(
            f"{name}: the model_type of config.json makes a {made}, its architectures name {architecture}: one is wrong"
        )


def _check(network: PreTrainedModel, checkpoint: Checkpoint, *, tied: bool, name: str) -> None:
    wanted = dict(network.named_parameters(remove_duplicate=False))
    if tied and _HEAD not in checkpoint.tensors:
        wanted.pop(_HEAD, None)
    if missing := [tensor for tensor in wanted if tensor not in checkpoint.tensors]:
        raise ExportError(f"{name} lacks {len(missing)} tensors that its config.json asks for, {missing[0]} first")
    for tensor, parameter in wanted.items():
        found = checkpoint.tensors[tensor].shape
        if found != parameter.shape:
            raise ExportError(
                f"{name}: config.json makes {tensor} {list(parameter.shape)}, the file has {list(found)}: one is wrong"
            )
    if tied:
        _check_tied(network, checkpoint, name=name)
    unused = [tensor for tensor in checkpoint.tensors if tensor not in wanted and not tensor.endswith(_NO_WEIGHTS)]
    if unused:
        raise ExportError(
            f"{name}: the file has {len(unused)} tensors that its config.json has no place for, {unused[0]} first: "
            f"one is wrong"
        )


def _check_tied(network: PreTrainedModel, checkpoint: Checkpoint, *, name: str) -> None:
    """Raise ExportError for a head of its own where the configuration says that it is the embedding."""
    head = checkpoint.tensors.get(_HEAD)
    if head is None:
        return
    embedding: Any = network.get_input_embeddings()
    table = next(
        checkpoint.tensors[tensor] for tensor, parameter in network.named_parameters() if parameter is embedding.weight
    )
    if head.dtype != table.dtype or any(
        not part.equal(other) for part, other in zip(head.split(_ROWS), table.split(_ROWS), strict=True)
    ):
        raise ExportError(
            f"{name}: config.json says that head and embedding are one (tie_word_embeddings), the file has a different "
            f"{_HEAD}: set tie_word_embeddings to false, or remove the tensor"
        )
    checkpoint.release()
