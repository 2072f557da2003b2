"""The toy graph's model as a GGUF file, to compare two engines, and toys with sliding windows or recurrent layers.

Needs gguf in addition to the toy graph's dependencies.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import tokenizers
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from onnx import numpy_helper

from edgedecode.export.gguf.specials import Specials, write_vocabulary
from edgedecode.export.gguf.vocabulary import read_vocabulary
from edgedecode.pack.manifest import ModelEntry
from tests.contract.test_block_types import blocks_of
from tests.contract.toy_graph import ToyGraph, ToyShape, write_toy

GGUF = "model.gguf"
Floats = npt.NDArray[np.float32]
NAMES = {"q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output"}
NAMES |= {name: f"ffn_{name}" for name in ("gate", "up", "down")}
SIX_BITS = ("token_embd", "output", "attn_v", "ffn_down")
"""The matrices that have 6 bits in Q4_K_M."""
STATE_SIZE, RANK, KERNEL = 8, 4, 4
"""Sizes of the recurrent toy."""


def write_toy_gguf(
    folder: Path,
    shape: ToyShape | None = None,
    *,
    architecture: str = "qwen2",
    quantization: str = "",
    tokenizer: tokenizers.Tokenizer | None = None,
) -> ModelEntry:
    """Write the float toy of this shape as ONNX and GGUF into `folder` and return its entry.

    architecture: llama and qwen2 are exactly the graph's model; gemma2 has windows in even layers, gemma3 in all but
    every sixth; these, gemma and qwen3 tie embedding and output; granite scales its embedding; mamba is recurrent and
    uses only hidden size, layers and rows of the shape; lfm2 has convolutions in even layers and attention in odd ones;
    phi3 stacks matrices; smollm3 has no rotation in every fourth layer. quantization: Q4_0 or Q8_0 for the matrices, or
    Q4_K_M for random blocks of Q4_K and Q6_K. tokenizer: the vocabulary, if any.
    """
    shape = shape or ToyShape()
    assert shape.bits == 32
    entry = write_toy(folder, shape)
    tensors = _recurrent(shape) if architecture == "mamba" else _transformer(shape, architecture=architecture)
    writer = GGUFWriter(folder / GGUF, architecture)
    _fields(writer, shape, architecture=architecture)
    write_tokenizer(writer, tokenizer, rows=shape.rows)
    for name, values in tensors.items():
        _add(writer, name, np.ascontiguousarray(values, np.float32), quantization=quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    bits = {"": 32, "Q8_0": 8, "Q4_0": 4, "Q4_K_M": 4}[quantization]
    return replace(entry, gguf=GGUF, architecture=architecture, bits=bits)


def _add(writer: GGUFWriter, name: str, values: Floats, *, quantization: str) -> None:
    if quantization == "Q4_K_M" and values.ndim == 2 and ".conv." not in name:
        known = "Q6_K" if name.split(".")[-2] in SIX_BITS else "Q4_K"
        blocks = blocks_of(known, (values.shape[0], values.shape[1]))
        writer.add_tensor(name, blocks, raw_dtype=GGMLQuantizationType[known])
    elif quantization and values.ndim == 2 and ".conv." not in name:
        kind = GGMLQuantizationType[quantization]
        writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)
    else:
        writer.add_tensor(name, values)


def _fields(writer: GGUFWriter, shape: ToyShape, *, architecture: str) -> None:
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(shape.rows)
    if architecture == "granite":
        writer.add_logit_scale(2.0)
        writer.add_embedding_scale(3.0)
    if architecture == "mamba":
        writer.add_feed_forward_length(0)
        writer.add_head_count(0)
        writer.add_ssm_conv_kernel(KERNEL)
        writer.add_ssm_inner_size(2 * shape.hidden)
        writer.add_ssm_state_size(STATE_SIZE)
        writer.add_ssm_time_step_rank(RANK)
        return
    writer.add_feed_forward_length(shape.mlp)
    writer.add_head_count(shape.heads)
    if architecture == "lfm2":
        writer.add_head_count_kv([shape.kv_heads * (layer % 2) for layer in range(shape.layers)])
        writer.add_shortconv_l_cache(KERNEL)
    else:
        writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_size)
    writer.add_value_length(shape.head_size)
    writer.add_rope_dimension_count(shape.head_size)
    writer.add_rope_freq_base(10000.0)
    if shape.window:
        writer.add_sliding_window(shape.window)


def write_tokenizer(writer: GGUFWriter, tokenizer: tokenizers.Tokenizer | None, *, rows: int) -> None:
    if tokenizer is None:
        writer.add_tokenizer_model("none")
        return
    vocabulary = read_vocabulary(tokenizer, rows=rows, name="toy")
    last = tokenizer.get_vocab_size() - 1
    specials = Specials(beginning=None, ends=(last,), unknown=None, padding=last, add_beginning=False, add_end=False)
    write_vocabulary(writer, vocabulary, specials, chat_template=None)


def _transformer(shape: ToyShape, *, architecture: str) -> dict[str, Floats]:
    tensors = {tensor.name: numpy_helper.to_array(tensor) for tensor in ToyGraph(shape).build().graph.initializer}
    ones = np.ones(shape.hidden, np.float32)
    gemma = architecture in ("gemma2", "gemma3")
    output_norm = "token_embd_norm" if architecture == "lfm2" else "output_norm"
    found = {"token_embd.weight": tensors["embedding"], f"{output_norm}.weight": ones}
    if not gemma and architecture not in ("gemma", "qwen3"):
        found["output.weight"] = tensors["head.weight"].T
    norms = ["attn_norm", "ffn_norm", *(["post_attention_norm", "post_ffw_norm"] if gemma else [])]
    for layer in range(shape.layers):
        block = _block(tensors, shape, layer=layer, architecture=architecture)
        if architecture == "lfm2" and layer % 2 == 0:
            block = {name: values for name, values in block.items() if ".ffn_" in name} | _convolution(shape, layer)
        found |= block
        found |= {f"blk.{layer}.{norm}.weight": ones for norm in norms}
    if architecture == "lfm2":
        rng = np.random.default_rng(shape.seed)
        scaled = {name: rng.uniform(0.5, 1.5, len(each)) for name, each in found.items() if each.ndim == 1}
        found |= {name: values.astype(np.float32) for name, values in scaled.items()}
    return found


def _block(tensors: Mapping[str, Floats], shape: ToyShape, *, layer: int, architecture: str) -> dict[str, Floats]:
    block = {NAMES[name]: tensors[f"layer{layer}.{name}.weight"].T for name in NAMES}
    if architecture in ("llama", "smollm3"):
        block["attn_q"] = _interleaved(block["attn_q"], shape.heads)
        block["attn_k"] = _interleaved(block["attn_k"], shape.kv_heads)
    if architecture == "phi3":
        block["attn_qkv"] = np.concatenate([block.pop(f"attn_{name}") for name in "qkv"])
        block["ffn_up"] = np.concatenate([block.pop("ffn_gate"), block["ffn_up"]])
    found = {f"blk.{layer}.{name}.weight": values for name, values in block.items()}
    if architecture in ("gemma3", "lfm2", "qwen3"):
        found |= {f"blk.{layer}.attn_{name}_norm.weight": np.ones(shape.head_size, np.float32) for name in "qk"}
    if architecture == "qwen2":
        biased = ("attn_q", "attn_k", "attn_v")
        found |= {f"blk.{layer}.{name}.bias": np.zeros(len(block[name]), np.float32) for name in biased}
    return found


def _convolution(shape: ToyShape, layer: int) -> dict[str, Floats]:
    rng, hidden = np.random.default_rng([shape.seed, layer]), shape.hidden
    sizes = {"conv": (hidden, KERNEL), "in_proj": (3 * hidden, hidden), "out_proj": (hidden, hidden)}
    return {
        f"blk.{layer}.shortconv.{name}.weight": (rng.standard_normal(size) * size[-1] ** -0.5).astype(np.float32)
        for name, size in sizes.items()
    }


def _interleaved(matrix: Floats, heads: int) -> Floats:
    """Order the rows for Llama's rotation: the two halves of a head become pairs."""
    outer, inner = matrix.shape
    return matrix.reshape(heads, 2, outer // heads // 2, inner).swapaxes(1, 2).reshape(outer, inner)


def _recurrent(shape: ToyShape) -> dict[str, Floats]:
    rng = np.random.default_rng(shape.seed)
    wide = 2 * shape.hidden

    def normal(*sizes: int) -> Floats:
        return (rng.standard_normal(sizes) * sizes[-1] ** -0.5).astype(np.float32)

    found = {"token_embd.weight": normal(shape.rows, shape.hidden) * 8, "output_norm.weight": np.ones(shape.hidden)}
    for layer in range(shape.layers):
        block = {
            "attn_norm.weight": np.ones(shape.hidden, np.float32),
            "ssm_in.weight": normal(2 * wide, shape.hidden),
            "ssm_conv1d.weight": normal(wide, KERNEL),
            "ssm_conv1d.bias": np.zeros(wide, np.float32),
            "ssm_x.weight": normal(RANK + 2 * STATE_SIZE, wide),
            "ssm_dt.weight": normal(wide, RANK),
            "ssm_dt.bias": np.zeros(wide, np.float32),
            "ssm_a": -np.exp(normal(wide, STATE_SIZE)),
            "ssm_d": np.ones(wide, np.float32),
            "ssm_out.weight": normal(shape.hidden, wide),
        }
        found |= {f"blk.{layer}.{name}": values for name, values in block.items()}
    return found
