"""The toy graph's model as a GGUF file, so that two engines can be compared; needs gguf beside what the toy needs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGUFWriter
from onnx import numpy_helper

from edgedecode.manifest import ModelEntry
from tests.contract.toy_graph import ToyGraph, ToyShape, write_toy

GGUF = "model.gguf"
Floats = npt.NDArray[np.float32]
NAMES = {"q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output"}
NAMES |= {name: f"ffn_{name}" for name in ("gate", "up", "down")}


def write_toy_gguf(folder: Path, shape: ToyShape | None = None, *, architecture: str = "qwen2") -> ModelEntry:
    """Write the float toy of this shape as both ONNX and GGUF into `folder` and return its entry."""
    shape = shape or ToyShape()
    assert shape.bits == 32
    entry = write_toy(folder, shape)
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in ToyGraph(shape).build().graph.initializer}
    writer = GGUFWriter(folder / GGUF, architecture)
    _fields(writer, shape)
    for name, values in _tensors(weights, shape, architecture=architecture).items():
        writer.add_tensor(name, np.ascontiguousarray(values, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return replace(entry, gguf=GGUF, architecture=architecture)


def _fields(writer: GGUFWriter, shape: ToyShape) -> None:
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.mlp)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_size)
    writer.add_value_length(shape.head_size)
    writer.add_rope_dimension_count(shape.head_size)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(shape.rows)
    if shape.window:
        writer.add_sliding_window(shape.window)
    writer.add_tokenizer_model("none")


def _tensors(weights: dict[str, Floats], shape: ToyShape, *, architecture: str) -> dict[str, Floats]:
    ones = np.ones(shape.hidden, np.float32)
    found = {"token_embd.weight": weights["embedding"], "output_norm.weight": ones}
    found["output.weight"] = weights["head.weight"].T
    for layer in range(shape.layers):
        block = {f"blk.{layer}.{NAMES[name]}.weight": weights[f"layer{layer}.{name}.weight"].T for name in NAMES}
        if architecture == "llama":
            for name, heads in (("attn_q", shape.heads), ("attn_k", shape.kv_heads)):
                block[f"blk.{layer}.{name}.weight"] = _interleaved(block[f"blk.{layer}.{name}.weight"], heads)
        if architecture == "qwen2":
            for name in ("attn_q", "attn_k", "attn_v"):
                block[f"blk.{layer}.{name}.bias"] = np.zeros(len(block[f"blk.{layer}.{name}.weight"]), np.float32)
        if architecture == "phi3":
            block = _fused(block, layer)
        found |= block
        found |= {f"blk.{layer}.attn_norm.weight": ones, f"blk.{layer}.ffn_norm.weight": ones}
    return found


def _interleaved(matrix: Floats, heads: int) -> Floats:
    """Order the rows as Llama's rotation wants them: halves of a head side by side become pairs."""
    outer, inner = matrix.shape
    return matrix.reshape(heads, 2, outer // heads // 2, inner).swapaxes(1, 2).reshape(outer, inner)


def _fused(block: dict[str, Floats], layer: int) -> dict[str, Floats]:
    """Join the projections that Phi-3 keeps in one matrix."""
    name = f"blk.{layer}"
    parts = [block.pop(f"{name}.attn_{part}.weight") for part in ("q", "k", "v")]
    halves = [block.pop(f"{name}.ffn_gate.weight"), block[f"{name}.ffn_up.weight"]]
    return block | {f"{name}.attn_qkv.weight": np.concatenate(parts), f"{name}.ffn_up.weight": np.concatenate(halves)}
