"""Gemma 4 in GGUF files on our own kernels: caches that layers share, per-layer embeddings, two kinds of heads.

Compared with transformers and llama.cpp, on random weights.
"""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from transformers import Gemma4ForCausalLM, Gemma4TextConfig

from edgedecode.arrays import FloatArray
from edgedecode.decoding.model import AdapterUse, HiddenModel, LanguageModel, LowRank, SquaresModel
from edgedecode.engines.interface import ADAPTERS, HIDDEN_ROWS, SQUARES
from edgedecode.errors import CapabilityError
from edgedecode.memory.budget import Budget
from edgedecode.pack.manifest import ModelEntry
from edgedecode.runtimes.onnx.kernels.trial import tried
from edgedecode.runtimes.onnx.onnx_model import OnnxModel
from edgedecode.runtimes.onnx.onnx_state import TREE_ROW_NBYTES
from tests.contract.conftest import open_entry
from tests.contract.reference import logits_of
from tests.contract.test_recurrent import Stream
from tests.contract.toy_graph import ToyShape, write_toy
from tests.export.gguf.stock import stock_logits

pytestmark = [pytest.mark.export, pytest.mark.skipif(tried() is None, reason="no kernels for this processor")]
EXACT, STOCK, TABLED = 2e-4, 5e-4, 1e-2
ROUNDS = 1000
"""10,000 passed, too."""
CONTEXT, ROWS, WINDOW, LAYERS, SHARED = 640, 128, 24, 8, 4
CONFIG = Gemma4TextConfig(
    vocab_size=ROWS,
    vocab_size_per_layer_input=ROWS,
    hidden_size=64,
    hidden_size_per_layer_input=32,
    intermediate_size=96,
    num_hidden_layers=LAYERS,
    num_attention_heads=4,
    num_key_value_heads=1,
    head_dim=32,
    global_head_dim=64,
    max_position_embeddings=CONTEXT,
    sliding_window=WINDOW,
    layer_types=["full_attention" if layer % 4 == 3 else "sliding_attention" for layer in range(LAYERS)],
    num_kv_shared_layers=SHARED,
    use_double_wide_mlp=True,
    final_logit_softcapping=30.0,
    initializer_range=0.15,
)
NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    **{f"self_attn.{each}_proj": f"attn_{each}" for each in "qkv"},
    **{f"self_attn.{each}_norm": f"attn_{each}_norm" for each in "qk"},
    "self_attn.o_proj": "attn_output",
    **{f"mlp.{each}_proj": f"ffn_{each}" for each in ("gate", "up", "down")},
    "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj",
    "post_per_layer_input_norm": "post_norm",
    "layer_scalar": "layer_output_scale",
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "embed_tokens_per_layer": "per_layer_token_embd",
    "per_layer_model_projection": "per_layer_model_proj",
    "per_layer_projection_norm": "per_layer_proj_norm",
}
"""The names of transformers' class → those of the file."""


def network() -> Gemma4ForCausalLM:
    """Return a model whose norms and layer scales differ from one."""
    torch.manual_seed(3)
    made = Gemma4ForCausalLM(CONFIG).eval()
    with torch.no_grad():
        for name, values in [*made.named_parameters(), *made.named_buffers()]:
            if "norm" in name or name.endswith("layer_scalar"):
                values.uniform_(0.6, 1.4)
            if "q_norm" in name:
                values *= 0.2  # trained ones hold what other models divide scores by
    return made


class TabledGelu(torch.nn.Module):
    """Computes GELU as ggml_vec_gelu_f32 of llama.cpp."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = torch.nn.functional.gelu(x.half().float(), approximate="tanh").half().float()
        return torch.where(x.abs() < 10, found, x.clamp(min=0))


def write(path: Path, made: Gemma4ForCausalLM, *, experts: int = 0) -> None:
    """Write the model as a file with llama.cpp's fields."""
    writer = GGUFWriter(path, "gemma4")
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(ROWS)
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(CONFIG.hidden_size)
    writer.add_layer_norm_rms_eps(CONFIG.rms_norm_eps)
    writer.add_head_count(CONFIG.num_attention_heads)
    writer.add_head_count_kv(CONFIG.num_key_value_heads)
    writer.add_feed_forward_length([96 if layer < LAYERS - SHARED else 192 for layer in range(LAYERS)])
    writer.add_sliding_window(WINDOW)
    writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in CONFIG.layer_types])
    writer.add_rope_freq_base(1e6)
    writer.add_float32("gemma4.rope.freq_base_swa", 1e4)
    writer.add_final_logit_softcapping(30.0)
    sizes = {"attention.key_length": 64, "attention.value_length": 64, "rope.dimension_count": 64}
    sizes |= {f"{name}_swa": size // 2 for name, size in sizes.items()}
    sizes |= {
        "attention.shared_kv_layers": SHARED,
        "embedding_length_per_layer_input": 32,
        "expert_count": experts,
        "expert_used_count": experts // 2,
    }
    for name, size in sizes.items():
        writer.add_uint32(f"gemma4.{name}", size)
    writer.add_tensor("rope_freqs.weight", np.array([1.0] * 8 + [1e30] * 24, np.float32))
    for name, values in made.state_dict().items():
        part = name.removeprefix("model.")
        if part == "lm_head.weight":
            continue
        layer, _, rest = part.removeprefix("layers.").partition(".")
        found = NAMES[(rest if part.startswith("layers.") else part).removesuffix(".weight")]
        prefix = f"blk.{layer}." if part.startswith("layers.") else ""
        writer.add_tensor(f"{prefix}{found}.weight", values.numpy().copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def entry_of(folder: Path) -> ModelEntry:
    shape = ToyShape(layers=LAYERS, kv_heads=1, head_size=64, context=CONTEXT, window=WINDOW)
    return replace(write_toy(folder, shape), gguf="model.gguf", weights="model.gguf", graphs={}, architecture="gemma4")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gemma4")
    write(folder / "model.gguf", network())
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> LanguageModel:
    return open_entry(entry_of(folder), folder, budget=Budget())


TOKENS = np.random.default_rng(1).integers(0, ROWS, 600).tolist()


def read(model: LanguageModel, sizes: list[int]) -> FloatArray:
    state, found, start = model.new_state(CONTEXT, rows=512), [], 0
    while start < len(TOKENS):
        piece = TOKENS[start : start + sizes[min(len(found), len(sizes) - 1)]]
        found.append(model.forward(piece, state, rows="all").logits.copy())
        state.keep(range(len(piece)))
        start += len(piece)
    state.close()
    return np.concatenate(found)


def test_logits_are_those_of_transformers_and_bits_those_of_one_pass(model: LanguageModel) -> None:
    with torch.no_grad():
        expected = network()(torch.tensor([TOKENS])).logits[0].numpy()
    whole = logits_of(model, TOKENS)
    assert np.abs(whole - expected).max() < EXACT
    for sizes in ([512, 4, 1], [7], [64], [1]):
        assert np.array_equal(read(model, sizes), whole)


@pytest.mark.skipif(find_spec("llama_cpp") is None, reason="the llama extra is not installed")
def test_logits_are_those_of_llama_cpp(model: LanguageModel, folder: Path) -> None:
    """Its activation is looked up in a table of float16; transformers with such a table gives its logits."""
    tokens, made = TOKENS[:200], network()
    for layer in made.model.layers:
        layer.act_fn = layer.mlp.act_fn = TabledGelu()
    with torch.no_grad():
        expected = made(torch.tensor([tokens])).logits[0].numpy()
    theirs = stock_logits(folder / "model.gguf", tokens)
    errors = np.abs(theirs - expected)
    assert errors[:4].max() < 1e-4  # from here on, a value may lie between two entries, and has one or the other
    assert errors.mean() < STOCK
    assert np.abs(theirs - logits_of(model, tokens)).max() < TABLED


def test_random_rounds_are_plain_decoding(model: OnnxModel) -> None:
    """Chains, trees in one pass and two, undone ones, rollbacks and prompts, beyond the window."""
    rng, counts = np.random.default_rng(5), dict[str, int]()
    streams = [Stream(model, rng, counts, shares=[0.35, 0.3, 0.15, 0.1, 0.0, 0.08, 0.02]) for _ in range(4)]
    for _ in range(ROUNDS):
        streams[int(rng.integers(len(streams)))].round()
    assert min(counts[kind] for kind in ("chain", "tree", "two passes", "undone", "cropped", "prompt")) > ROUNDS // 100
    assert counts["landed below"] == 0


def test_rows_without_logits_skip_layers_and_change_no_bit(model: LanguageModel) -> None:
    """Layers with another layer's keys and values compute the rows that are asked for, in any order."""
    start, end = TOKENS[:60], TOKENS[60:66]
    whole = logits_of(model, [*start, *end])
    for rows in ("last", [5], [0, 3], [4, 1, 2], [1, 1]):
        state = model.new_state(CONTEXT, rows=6)
        model.forward(start[:7], state, rows="none")
        model.forward(start[7:], state, rows="none")
        state.keep(range(60))
        found = model.forward(end, state, rows=rows).logits.copy()
        assert np.array_equal(found, whole[60:][[5] if rows == "last" else rows])
        state.keep(range(6))
        tree = model.forward([9, 8, 7], state, parents=[-1, -1, 1], rows=[2, 0]).logits.copy()
        assert np.array_equal(tree[0], logits_of(model, [*start, *end, 8, 7])[-1])
        assert np.array_equal(tree[1], logits_of(model, [*start, *end, 9])[-1])
        state.close()


def test_a_tree_gives_the_bits_of_its_branches(model: LanguageModel) -> None:
    """Branches at a window's edge, one kept and continued."""
    start, branches = TOKENS[:50], ((5, 6, 7), (5, 9, 8))
    state = model.new_state(CONTEXT)
    model.forward(start, state, rows="none")
    state.keep(range(len(start)))
    logits = model.forward([5, 6, 9, 7, 8], state, parents=[-1, 0, 0, 1, 2], rows="all").logits.copy()
    for branch, places in zip(branches, ([0, 1, 3], [0, 2, 4]), strict=True):
        assert np.array_equal(logits[places], logits_of(model, [*start, *branch])[-3:])
    state.keep([0, 2, 4])
    after = model.forward([11], state, rows="all").logits.copy()
    assert np.array_equal(after, logits_of(model, [*start, *branches[1], 11])[-1:])


def test_other_graphs_give_the_same_bits_and_what_they_are_for(model: LanguageModel, folder: Path) -> None:
    tokens, entry, made = TOKENS[:60], entry_of(folder), network()
    whole, opened = logits_of(model, tokens), {}
    for need in (ADAPTERS, HIDDEN_ROWS, SQUARES):
        opened[need] = open_entry(entry, folder, budget=Budget(), needs=(need,))
        assert np.array_equal(logits_of(opened[need], tokens), whole)
    squares = opened[SQUARES]
    assert isinstance(squares, SquaresModel)
    assert {"blk.7.inp_gate.weight", "blk.7.proj.weight", "blk.3.attn_k.weight"} < squares.squares.keys()
    hidden = opened[HIDDEN_ROWS]
    assert isinstance(hidden, HiddenModel)
    found = hidden.hidden_rows(tokens, hidden.new_state(60))
    changed, rng = [], np.random.default_rng(0)
    with torch.no_grad():
        assert np.abs(found - made.model(torch.tensor([tokens])).last_hidden_state[0, -1:].numpy()).max() < EXACT
        for index, layer in enumerate(made.model.layers):
            for name, module in (("q_proj", layer.self_attn.q_proj), ("down_proj", layer.mlp.down_proj)):
                up, down = (
                    0.1 * rng.standard_normal(size) for size in ((len(module.weight), 4), (4, module.in_features))
                )
                changed.append(LowRank(index, name, down.astype(np.float32), up.astype(np.float32)))
                module.weight += torch.from_numpy(changed[-1].product())
        expected = made(torch.tensor([tokens])).logits[0].numpy()
    lora = opened[ADAPTERS]
    lora.add_adapter("x", changed)
    found = lora.forward(tokens, lora.new_state(60, rows=60), rows="all", adapter=AdapterUse("x", "x")).logits
    assert np.abs(found - expected).max() < EXACT < np.abs(whole - expected).max() / 100


def test_shared_caches_are_counted_once(model: LanguageModel) -> None:
    """Three layers of 32 values and one of 64, keys and values as float32."""
    more = model.new_state(CONTEXT).nbytes - model.new_state(CONTEXT // 2).nbytes
    assert more / (CONTEXT // 2) - TREE_ROW_NBYTES == 2 * 4 * (3 * 32 + 64)


def test_experts_are_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path / "model.gguf", network(), experts=8)
    with pytest.raises(CapabilityError, match="mixture of experts"):
        open_entry(entry_of(tmp_path), tmp_path, budget=Budget())
