"""A transformers model whose parameters are views of a checkpoint; its rotary tables and sliding windows.

A long-rope model has two sets of frequencies and switches to the second when a text grows beyond its short context.
Keys rotated by the first set are wrong from then on, so a graph has only one set: the short one up to the switch, or
the long one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edgedecode.errors import ExportError
from edgedecode.text.printable import counted

from ..frameworks import reason_of
from .checkpoint import Checkpoint

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

_HEAD = "lm_head.weight"
_IGNORED = ("rotary_emb.inv_freq", _HEAD)
"""Tensors in older checkpoints that are derived or tied, and so not needed."""
_ROWS = 4096
"""Rows compared at a time, which bounds memory."""
FULL, SLIDING = "full_attention", "sliding_attention"
"""The names of the two kinds of layers in transformers' configurations."""


def open_network(folder: Path, checkpoint: Checkpoint, *, architecture: str) -> PreTrainedModel:
    """Create the model described by config.json.

    Raises ExportError if its class is not `architecture`, or if tensors are missing or have other shapes.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        whole = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        config = whole.get_text_config()
        if config is not whole:
            config.tie_word_embeddings = whole.tie_word_embeddings
        with torch.device("meta"):
            network: PreTrainedModel = AutoModelForCausalLM.from_config(
                config, trust_remote_code=False, attn_implementation=_attention(config)
            )
    except Exception as error:  # the errors of transformers' configurations share no base class
        what = f"transformers cannot create a model from {folder / 'config.json'}: {reason_of(error)}"
        raise ExportError(what) from error
    _check_class(network, architecture, name=folder.name)
    _check(network, checkpoint, tied=bool(config.tie_word_embeddings), name=folder.name)
    network.load_state_dict(dict(checkpoint.tensors), strict=False, assign=True)
    revive_rotary(network)
    _restore_scale(network)
    network.get_input_embeddings().padding_idx = None  # used for gradients only, and out of range in a trimmed table
    _float_vectors(network)
    network.requires_grad_(False)
    network.tie_weights()
    network.eval()
    return network


def _attention(config: Any) -> str:  # noqa: ANN401  (configurations share no typed attributes)
    """Choose eager attention where the fused one silently drops soft-capping, and for Gemma 2, which rejects it."""
    eager = getattr(config, "attn_logit_softcapping", None) or config.model_type == "gemma2"
    return "eager" if eager else "sdpa"


def _restore_scale(network: PreTrainedModel) -> None:
    """Recreate the scales of embeddings, buffers that checkpoints do not contain."""
    import torch

    embedding: Any
    for embedding in network.modules():
        if hasattr(embedding, "scalar_embed_scale"):
            embedding.embed_scale = torch.tensor(embedding.scalar_embed_scale)


def _float_vectors(network: PreTrainedModel) -> None:
    """Convert norms and biases to float32: they are small, and adding an offset to a bfloat16 norm would round it."""
    import torch

    for module in network.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.dim() == 1 and parameter.dtype != torch.float32:
                setattr(module, name, torch.nn.Parameter(parameter.float(), requires_grad=False))


def kept_buffers(network: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the buffers that checkpoints contain, by name: the scale of a layer's result (Gemma 4)."""
    return ((name, value) for name, value in network.named_buffers() if name.endswith("layer_scalar"))


def _check_class(network: PreTrainedModel, architecture: str, *, name: str) -> None:
    if (created := type(network).__name__) != architecture:
        raise ExportError(
            f"{name}: model_type in config.json makes a {created}, its architectures name {architecture}: "
            "correct the wrong one"
        )


def _check(network: PreTrainedModel, checkpoint: Checkpoint, *, tied: bool, name: str) -> None:
    wanted = {**dict(network.named_parameters(remove_duplicate=False)), **dict(kept_buffers(network))}
    if tied and _HEAD not in checkpoint.tensors:
        wanted.pop(_HEAD, None)
    if missing := [tensor for tensor in wanted if tensor not in checkpoint.tensors]:
        count = counted(len(missing), "tensor")
        raise ExportError(f"{name} lacks {count} required by its config.json, {missing[0]} first")
    for tensor, parameter in wanted.items():
        found = checkpoint.tensors[tensor].shape
        if found != parameter.shape:
            raise ExportError(
                f"{name}: config.json makes {tensor} {list(parameter.shape)}, the file has {list(found)}: "
                "download both again"
            )
    if tied:
        _check_tied(network, checkpoint, name=name)
    body: Any = network.model
    unread = tuple(f"model.{each}." for each in getattr(body, "_keys_to_ignore_on_load_unexpected", None) or ())
    unused = [
        tensor
        for tensor in checkpoint.tensors
        if tensor not in wanted and not tensor.endswith(_IGNORED) and not tensor.startswith(unread)
    ]
    if unused:
        count = counted(len(unused), "tensor")
        raise ExportError(f"{name} has {count} unknown to its config.json, {unused[0]} first: download both again")


def _check_tied(network: PreTrainedModel, checkpoint: Checkpoint, *, name: str) -> None:
    """Raise ExportError if the head differs from the embedding although the configuration ties them."""
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
            f"{name}: config.json ties head and embedding (tie_word_embeddings), but the file has a different {_HEAD}: "
            f"set tie_word_embeddings to false, or remove the tensor"
        )
    checkpoint.release()


@dataclass(frozen=True, slots=True)
class RotaryTables:
    """Cosines and sines, float32 [positions, rotary size / 2] each."""

    cosine: torch.Tensor
    sine: torch.Tensor


def revive_rotary(network: PreTrainedModel) -> None:
    """Recreate the rotary module: it has no weights, and the original's frequencies are on the meta device."""
    body: Any = network.model
    if body.rotary_emb is not None:
        body.rotary_emb = type(body.rotary_emb)(config=network.config)


def per_layer_rotary(network: PreTrainedModel) -> bool:
    """Return whether sliding-window and full layers use different rotary tables (Gemma 3)."""
    rotary: Any = network.model.rotary_emb
    return isinstance(rotary.rope_type, dict)


def rotary_tables(network: PreTrainedModel, *, length: int, kind: str | None) -> RotaryTables:
    """Compute the tables of the first `length` positions with the model's own module; `kind`: its type of layer."""
    import torch

    rotary: Any = network.model.rotary_emb
    more = {} if kind is None else {"layer_type": kind}
    with torch.no_grad():
        cosine, sine = rotary(torch.zeros(1, dtype=torch.float32), torch.arange(length)[None], **more)
    half = cosine.shape[-1] // 2  # the second half repeats the first
    return RotaryTables(cosine[0, :, :half].contiguous(), sine[0, :, :half].contiguous())


@dataclass(frozen=True, slots=True)
class Windows:
    """`layers[i]` is true if layer i sees only the last `size` positions, including its own; size 0: no layer does."""

    size: int
    layers: tuple[bool, ...]

    def narrowed(self, size: int) -> Windows:
        """Return the same layers with a window of at most `size`: a cheaper check of the same wiring."""
        return replace(self, size=min(self.size, size))

    def visible(self, visible: npt.NDArray[np.bool_], positions: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Restrict the mask `visible`, [rows, rows], to the window, given the rows' positions."""
        distance = positions[:, None] - positions[None, :]
        return visible & (distance < self.size)


def find_windows(network: PreTrainedModel, *, context: int) -> Windows:
    """Read a network's windows from its configuration; a window as long as the context counts as none.

    Without layer types in the configuration (Mistral, Phi-3), every layer has the window.
    """
    config: Any = network.config
    size = getattr(config, "sliding_window", None) or 0
    kinds = getattr(config, "layer_types", None)
    count = config.num_hidden_layers
    layers = tuple(kind == SLIDING for kind in kinds) if kinds else (size > 0,) * count
    return Windows(size, layers) if 0 < size < context and any(layers) else Windows(0, (False,) * count)
