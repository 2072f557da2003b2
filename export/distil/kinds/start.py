"""The head that training starts from: what it can take from its target, or an earlier head."""

from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from edgedecode.arrays import IntArray
from edgedecode.errors import ExportError

from ..target_weights import TargetWeights
from .head_folder import WEIGHTS
from .head_network import HeadNetwork, HeadSizes

_SPREAD = 0.02
"""Deviation of what starts at random."""


def sizes_of(target: TargetWeights, *, rows: int) -> HeadSizes:
    """Return the sizes of a head whose layer is as one of the target's."""
    hidden, heads = target.integer("embedding_length"), target.integer("attention.head_count")
    return HeadSizes(
        hidden=hidden,
        heads=heads,
        kv_heads=target.integer("attention.head_count_kv", heads),
        head_size=target.integer("attention.key_length", hidden // heads),
        mlp=target.integer("feed_forward_length"),
        rows=rows,
        epsilon=target.number("attention.layer_norm_rms_epsilon", 1e-6),
        base=target.number("rope.freq_base", 10000.0),
    )


def new_head(target: TargetWeights, ids: IntArray) -> HeadNetwork:
    """Return a head that starts as the target's last layer and its rows of these ids.

    Its input is the highest feature, which enters a late layer; attention starts at random, as it reads other values.
    """
    torch.manual_seed(0)
    network = HeadNetwork(sizes_of(target, rows=len(ids)))
    layer, part, hidden = network.layers[0], f"blk.{target.layers - 1}", network.sizes.hidden
    with torch.no_grad():
        for matrix in (network.fc.weight, *(each for each in layer.self_attn.parameters())):
            matrix.normal_(0, _SPREAD)
        network.fc.weight[:, -hidden:] += torch.eye(hidden)
        network.lm_head.weight.copy_(target.head[torch.from_numpy(ids)])
        network.norm.weight.copy_(target.matrix("output_norm.weight"))
        layer.post_attention_layernorm.weight.copy_(target.matrix(f"{part}.ffn_norm.weight"))
        for ours, theirs in (("gate_proj", "ffn_gate"), ("up_proj", "ffn_up"), ("down_proj", "ffn_down")):
            getattr(layer.mlp, ours).weight.copy_(target.matrix(f"{part}.{theirs}.weight"))
    return network


def earlier_head(folder: Path, target: TargetWeights) -> tuple[HeadNetwork, IntArray]:
    """Return a head that was written here, and its ids. Raises ExportError for one of other sizes or another layout."""
    try:
        tensors = load_file(folder / WEIGHTS)
        offsets = tensors.pop("d2t").numpy().astype(np.int64)
        for name in ("t2d", "embed_tokens.weight"):
            tensors.pop(name, None)
        ids = np.arange(len(offsets)) + offsets
        if not len(ids) or ids.min() < 0 or ids.max() >= target.rows:
            raise ValueError("d2t names tokens that the target does not have")
        network = HeadNetwork(sizes_of(target, rows=len(ids)))
        network.load_state_dict({name: each.float() for name, each in tensors.items()})
    except (OSError, KeyError, RuntimeError, ValueError, SafetensorError) as error:
        reason = str(error).splitlines()[0]
        raise ExportError(f"{folder} holds no head of this target in speculators' layout: {reason}") from None
    return network, ids
