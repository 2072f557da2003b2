"""A transformers model whose parameters are views of a checkpoint; its rotary tables and sliding windows.

A long-rope model has two sets of frequencies and changes to the second one where a text grows beyond its short context.
Keys rotated by the first are then wrong, so a graph has one set only: the short one up to the switch, or the long one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edgedecode.errors import ExportError

from ..frameworks import reason_of
from .checkpoint import Checkpoint

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

__all__ = ["FULL", "SLIDING", "Windows", "find_windows", "open_network", "per_layer_rotary", "rotary_tables"]

_HEAD = "lm_head.weight"
_NO_WEIGHTS = ("rotary_emb.inv_freq", _HEAD)
"""Tensors of older files that hold nothing of their own."""
_ROWS = 4096
FULL, SLIDING = "full_attention", "sliding_attention"
"""The names of the two kinds of layers in transformers' configurations."""


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


@dataclass(frozen=True, slots=True)
class RotaryTables:
    """Cosines and sines, float32 [positions, rotary size / 2] each."""

    cosine: torch.Tensor
    sine: torch.Tensor


def revive_rotary(network: PreTrainedModel, *, long: bool = False) -> None:
    """Make the rotary module again: it has no weights, and the first one's frequencies are on the meta device.

    long: fix it to a long-rope model's second set of frequencies, whatever the length of the text.
    """
    body: Any = network.model
    rotary = type(body.rotary_emb)(config=network.config)
    if long:
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        beyond = network.config.rope_parameters["original_max_position_embeddings"] + 1
        frequencies, _ = ROPE_INIT_FUNCTIONS["longrope"](network.config, None, seq_len=beyond)
        rotary.inv_freq = rotary.original_inv_freq = frequencies
        rotary.rope_type = "default"  # fixed: the forward pass changes frequencies of other types
    body.rotary_emb = rotary


def per_layer_rotary(network: PreTrainedModel) -> bool:
    """Return whether windowed and full layers rotate differently (Gemma 3)."""
    rotary: Any = network.model.rotary_emb
    return isinstance(rotary.rope_type, dict)


def rotary_tables(network: PreTrainedModel, *, length: int, kind: str | None) -> RotaryTables:
    """Compute the tables of the first `length` positions with the model's own module; `kind` as it names its layers."""
    import torch

    rotary: Any = network.model.rotary_emb
    more = {} if kind is None else {"layer_type": kind}
    with torch.no_grad():
        cosine, sine = rotary(torch.zeros(1, dtype=torch.float32), torch.arange(length)[None], **more)
    half = cosine.shape[-1] // 2  # the second half repeats the first
    return RotaryTables(cosine[0, :, :half].contiguous(), sine[0, :, :half].contiguous())


@dataclass(frozen=True, slots=True)
class Windows:
    """`layers[i]` says whether layer i sees only the last `size` positions, its own included; size 0: none does."""

    size: int
    layers: tuple[bool, ...]

    def narrowed(self, size: int) -> Windows:
        """Return the same layers with a window of at most `size`: the wiring is the same, the check is cheaper."""
        return replace(self, size=min(self.size, size))

    def visible(self, visible: npt.NDArray[np.bool_], positions: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return what window layers see of `visible`, [rows, rows], at these positions, [rows]."""
        distance = positions[:, None] - positions[None, :]
        return visible & (distance < self.size)


def find_windows(network: PreTrainedModel, *, context: int) -> Windows:
    """Read a network's windows from its configuration; a window as long as the context counts as none.

    Configurations that name no types of layers (Mistral, Phi-3) mean every layer, as their modules do.
    """
    config: Any = network.config
    size = getattr(config, "sliding_window", None) or 0
    kinds = getattr(config, "layer_types", None)
    count = config.num_hidden_layers
    layers = tuple(kind == SLIDING for kind in kinds) if kinds else (size > 0,) * count
    return Windows(size, layers) if 0 < size < context and any(layers) else Windows(0, (False,) * count)
