"""Writes a trained head as a folder in the layout of vLLM's speculators, which other programs read too."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from edgedecode.arrays import IntArray
from edgedecode.cache import aside
from edgedecode.errors import ExportError

from .head_network import DEPTH, HeadNetwork

WEIGHTS = "model.safetensors"


def write_head(
    folder: Path,
    network: HeadNetwork,
    ids: IntArray,
    *,
    table: Tensor,
    taps: Sequence[int],
    verifier: str,
    license: str,
    context: int,
) -> None:
    """Write config.json and model.safetensors. taps: the target's layers whose inputs it reads.

    table: the target's embedding. speculators 0.9 fills one that is missing with whatever is in memory.
    """
    sizes = network.sizes
    mask = np.zeros(len(table), np.bool_)
    mask[ids] = True
    maps = {"d2t": torch.from_numpy(ids - np.arange(len(ids))), "t2d": torch.from_numpy(mask)}
    tensors = {**network.state_dict(), **maps, "embed_tokens.weight": table}
    config = {
        "speculators_model_type": "eagle3",
        "architectures": ["Eagle3Speculator"],
        "transformer_layer_config": {
            "model_type": "llama",
            "hidden_size": sizes.hidden,
            "intermediate_size": sizes.mlp,
            "num_attention_heads": sizes.heads,
            "num_key_value_heads": sizes.kv_heads,
            "head_dim": sizes.head_size,
            "num_hidden_layers": 1,
            "rms_norm_eps": sizes.epsilon,
            "rope_theta": sizes.base,
            "max_position_embeddings": context,
            "vocab_size": len(table),
            "hidden_act": "silu",
        },
        "draft_vocab_size": len(ids),
        "target_hidden_size": sizes.hidden,
        "eagle_aux_hidden_state_layer_ids": list(taps),
        "norm_before_residual": False,
        "norm_output": False,
        "speculators_config": {
            "algorithm": "eagle3",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": DEPTH}],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": verifier, "architectures": []},
        },
        "license": license,
    }
    save_weights(folder, tensors)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def save_weights(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a folder's weights in one step, floats in 16 bits. Raises ExportError for a full disk."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / WEIGHTS
    halves = {name: each.detach().half() if each.is_floating_point() else each for name, each in tensors.items()}
    try:
        with aside(path) as fresh:
            save_file({name: each.contiguous() for name, each in halves.items()}, fresh, metadata={"format": "pt"})
    except (OSError, SafetensorError) as error:
        raise ExportError(f"{path} cannot be written ({error}): make room, then go on with --resume") from None
