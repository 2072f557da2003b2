"""Hybrids in GGUF files on our own kernels match transformers, in passes and pieces of any size."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFReader
from transformers import Lfm2Config, Lfm2ForCausalLM

from edgedecode.arrays import FloatArray
from edgedecode.memory.budget import Budget
from edgedecode.runtimes.onnx.kernels.trial import tried
from tests.contract.conftest import open_entry
from tests.contract.reference import logits_of
from tests.contract.toy_gguf import KERNEL, write_toy_gguf
from tests.contract.toy_graph import ToyShape

pytestmark = [pytest.mark.export, pytest.mark.skipif(tried() is None, reason="no kernels for this processor")]
SHAPE = ToyShape(layers=6, context=640)
EXACT = 2e-4
LFM2 = {
    "attn_norm": "operator_norm",
    "ffn_norm": "ffn_norm",
    **{f"attn_{each}": f"self_attn.{each}_proj" for each in "qkv"},
    **{f"attn_{each}_norm": f"self_attn.{each}_layernorm" for each in "qk"},
    "attn_output": "self_attn.out_proj",
    "ffn_gate": "feed_forward.w1",
    "ffn_up": "feed_forward.w3",
    "ffn_down": "feed_forward.w2",
    **{f"shortconv.{each}": f"conv.{each}" for each in ("conv", "in_proj", "out_proj")},
    "token_embd": "model.embed_tokens",
    "token_embd_norm": "model.embedding_norm",
    "output": "lm_head",
}
"""The file's names → those of transformers' class."""


def lfm2(path: Path) -> Lfm2ForCausalLM:
    """Return transformers' model with a file's weights."""
    config = Lfm2Config(
        vocab_size=SHAPE.rows,
        hidden_size=SHAPE.hidden,
        intermediate_size=SHAPE.mlp,
        num_hidden_layers=SHAPE.layers,
        num_attention_heads=SHAPE.heads,
        num_key_value_heads=SHAPE.kv_heads,
        conv_L_cache=KERNEL,
        block_auto_adjust_ff_dim=False,
        layer_types=["full_attention" if layer % 2 else "conv" for layer in range(SHAPE.layers)],
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=False,
    )
    network = Lfm2ForCausalLM(config).eval()
    weights = {}
    for tensor in GGUFReader(path).tensors:
        block, _, rest = tensor.name.removeprefix("blk.").partition(".")
        part = (rest if tensor.name.startswith("blk.") else tensor.name).removesuffix(".weight")
        name = f"model.layers.{block}.{LFM2[part]}" if tensor.name.startswith("blk.") else LFM2[part]
        values = torch.tensor(np.array(tensor.data))
        weights[f"{name}.weight"] = values[:, None] if part == "shortconv.conv" else values
    network.load_state_dict(weights)
    return network


def test_logits_are_those_of_transformers_in_pieces_of_any_size(tmp_path: Path) -> None:
    entry = write_toy_gguf(tmp_path, SHAPE, architecture="lfm2")
    tokens = np.random.default_rng(1).integers(0, SHAPE.rows, 600).tolist()
    with torch.no_grad():
        expected = lfm2(tmp_path / entry.gguf)(torch.tensor([tokens])).logits[0].numpy()
    model = open_entry(replace(entry, graphs={}, weights=entry.gguf), tmp_path, budget=Budget())

    def read(sizes: list[int]) -> FloatArray:
        state, found, start = model.new_state(SHAPE.context, rows=512), [], 0
        while start < len(tokens):
            piece = tokens[start : start + sizes[min(len(found), len(sizes) - 1)]]
            found.append(model.forward(piece, state, rows="all").logits.copy())
            state.keep(range(len(piece)))
            start += len(piece)
        return np.concatenate(found)

    assert np.abs(logits_of(model, tokens) - expected).max() < EXACT
    for sizes in ([512, 4, 1], [7], [64], [1]):
        assert np.abs(read(sizes) - expected).max() < EXACT
