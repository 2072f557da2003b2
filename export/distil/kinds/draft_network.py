"""A draft model of its target's form as a torch module, and what it starts from: some of its target's layers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding
from transformers import AutoConfig, AutoModel, PretrainedConfig

from edgedecode.arrays import IntArray
from edgedecode.errors import ExportError
from edgedecode.gguf.architectures import ARCHITECTURES, BY_NAME

from ..batches import Batch
from ..network import Network
from ..target_weights import TargetWeights
from .start import sizes_of

LAYERS = 2
CLASSES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
"""Those whose layers are read from a GGUF file as they are; llama.cpp's names are also transformers' model types."""
_TENSORS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


class DraftNetwork(Network):
    """A model without its embedding, and with logits for some ids. Its parameters have transformers' names."""

    def __init__(self, config: PretrainedConfig, *, rows: int) -> None:
        super().__init__()
        self.config, self.depth = config, 1
        self.model: nn.Module = AutoModel.from_config(config, attn_implementation="sdpa").float()
        del self.model.embed_tokens
        self.lm_head = nn.Linear(config.hidden_size, rows, bias=False)

    def outputs(self, batch: Batch, table: Tensor, *, depth: int) -> Iterator[Tensor]:
        hidden = self.model(inputs_embeds=embedding(batch.tokens, table), use_cache=False).last_hidden_state[:, 1:]
        for _ in range(depth):  # while drafts are accepted, their tokens are the text's
            yield hidden


def draft_config(target: TargetWeights, *, context: int) -> PretrainedConfig:
    """Return the configuration of a draft model with the sizes of the target's layers. Raises ExportError."""
    sizes, name = sizes_of(target, rows=target.rows), target.architecture
    classes = [each for each in CLASSES if ARCHITECTURES[each].name == name]
    if not classes:
        raise ExportError(
            f"no draft model is made of a target of architecture {name!r}: llama, qwen2 and qwen3 are supported"
        )
    more: dict[str, Any] = {} if name == "qwen2" else {"head_dim": sizes.head_size}
    return AutoConfig.for_model(
        name,
        architectures=classes,
        vocab_size=target.rows,
        hidden_size=sizes.hidden,
        intermediate_size=sizes.mlp,
        num_hidden_layers=min(LAYERS, target.layers),
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads,
        rms_norm_eps=sizes.epsilon,
        rope_parameters={"rope_type": "default", "rope_theta": sizes.base},
        max_position_embeddings=context,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        **more,
    )


def new_draft(target: TargetWeights, ids: IntArray, *, context: int) -> DraftNetwork:
    """Return a draft model of evenly spaced layers of the target, and its rows of these ids."""
    network = DraftNetwork(draft_config(target, context=context), rows=len(ids))
    count = network.config.num_hidden_layers
    places = np.linspace(0, target.layers - 1, count).round().astype(int)
    with torch.no_grad():
        network.lm_head.weight.copy_(target.head[torch.from_numpy(ids)])
        for name, parameter in network.model.named_parameters():
            if name == "norm.weight":
                parameter.copy_(target.matrix("output_norm.weight"))
                continue
            _, layer, rest = name.split(".", 2)
            module, _, kind = rest.rpartition(".")
            values = target.matrix(f"blk.{places[int(layer)]}.{_TENSORS[module]}.{kind}")
            if module in ("self_attn.q_proj", "self_attn.k_proj") and BY_NAME[target.architecture].reordered:
                values = _in_halves(values, sizes_of(target, rows=0).head_size)
            parameter.copy_(values)
    return network


def _in_halves(values: Tensor, size: int) -> Tensor:
    """Return the rows of each attention head in transformers' order: the rotated pairs are halves, not neighbours."""
    return values.view(-1, size // 2, 2, *values.shape[1:]).transpose(1, 2).reshape(values.shape)


def earlier_config(folder: Path) -> PretrainedConfig:
    """Return an earlier draft model's configuration. Raises ExportError for another class, or a damaged file."""
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # the errors of transformers' configurations share no base class
        raise ExportError(f"{folder} holds no draft model: {str(error).splitlines()[0]}") from None
    if (config.architectures or [""])[0] not in CLASSES:
        raise ExportError(f"{folder} holds no draft model of a class that is trained here: {', '.join(CLASSES)}")
    return config
