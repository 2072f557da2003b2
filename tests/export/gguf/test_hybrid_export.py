"""Checkpoints whose graphs no builder draws: exported as GGUF files, and run from them."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from transformers import (
    Gemma4TextConfig,
    GraniteMoeHybridConfig,
    Lfm2Config,
    PreTrainedModel,
)

import edgedecode
from edgedecode import SamplingOptions, SessionOptions
from edgedecode.errors import ExportError
from edgedecode.export import model_export
from edgedecode.export.graph.graph_request import GraphRequest
from edgedecode.export.graph.quantize import Scheme
from edgedecode.pack.manifest import Manifest
from edgedecode.runtimes.onnx.kernels.trial import tried
from tests.contract.hybrid_gguf import random_model, tiny_granite, tiny_qwen
from tests.export.conftest import export, framework_logits, logits_of, opened, random_tokens, recipe
from tests.export.gguf.writing import needs_engine, tensors_in, value_of
from tests.export.test_architectures import rewrite_config
from tests.export.tiny import write_network
from tests.toys import session_options

from .stock import stock_logits

pytestmark = [pytest.mark.export, pytest.mark.skipif(tried() is None, reason="no kernels for this processor")]
ROWS, CONTEXT, EXACT, TABLED = 352, 1024, 5e-4, 1e-2
"""TABLED: llama.cpp computes Gemma's activation with a float16 table."""
TOKENS = random_tokens(600)
PROMPTS = Path(__file__).parents[3] / "apps" / "prompts.jsonl"
FRAGILE = ("down_proj.weight", "output_linear.weight", "w2.weight")


def qwen() -> PreTrainedModel:
    return random_model(tiny_qwen(vocab_size=ROWS))


def granite_h() -> PreTrainedModel:
    config = tiny_granite()
    config.vocab_size = ROWS
    return random_model(config)


def granite() -> PreTrainedModel:
    """Granite 4 without Mamba-2: llama.cpp's granite."""
    config = GraniteMoeHybridConfig(
        vocab_size=ROWS,
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        layer_types=["full_attention"] * 3,
        num_local_experts=0,
        shared_intermediate_size=96,
        max_position_embeddings=CONTEXT,
        position_embedding_type="rope",
        embedding_multiplier=3.0,
        attention_multiplier=0.1,
        residual_multiplier=0.5,
        logits_scaling=2.0,
        mamba_n_heads=4,
        tie_word_embeddings=True,
    )
    return random_model(config)


def lfm2() -> PreTrainedModel:
    config = Lfm2Config(
        vocab_size=ROWS,
        hidden_size=64,
        intermediate_size=144,
        block_auto_adjust_ff_dim=True,
        block_multiple_of=32,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        layer_types=["conv", "conv", "full_attention", "conv"],
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
    )
    return random_model(config)


def gemma(*, full: Sequence[int] = (3, 7), **changes: object) -> PreTrainedModel:
    """Gemma 4 with keys and values that layers share, per-layer embeddings, and heads of two sizes."""
    sizes: dict[str, object] = {
        "vocab_size": ROWS,
        "vocab_size_per_layer_input": ROWS,
        "hidden_size": 64,
        "hidden_size_per_layer_input": 32,
        "intermediate_size": 96,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "global_head_dim": 32,
        "max_position_embeddings": CONTEXT,
        "sliding_window": 24,
        "layer_types": ["full_attention" if layer in full else "sliding_attention" for layer in range(8)],
        "num_kv_shared_layers": 4,
        "use_double_wide_mlp": True,
        "final_logit_softcapping": 30.0,
        "tie_word_embeddings": True,
    }
    model = random_model(Gemma4TextConfig(**{**sizes, **changes}))
    for layer in model.model.layers:
        layer.layer_scalar.uniform_(0.6, 1.4)
        layer.self_attn.q_norm.weight.data *= 0.2  # trained ones hold what other models divide scores by
    return model


MODELS: Mapping[str, Callable[[], PreTrainedModel]] = {
    "gemma4": gemma,
    "granite": granite,
    "granitehybrid": granite_h,
    "lfm2": lfm2,
    "qwen35": qwen,
}


@dataclass(frozen=True)
class Made:
    """A checkpoint and its pack."""

    model: Path
    pack: Path
    manifest: Manifest


@pytest.fixture(scope="module", params=[(name, bits) for name in MODELS for bits in (4, 8, 32)], ids=str)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    name, bits = request.param
    folder = tmp_path_factory.mktemp("hybrid")
    model = write_network(folder / "model", MODELS[name]())
    return Made(model, folder / "pack", export(model, folder / "pack", stored=recipe(bits)))


def test_the_pack_runs_as_transformers_does(made: Made) -> None:
    """Floats in passes of 512, 64, 7, 4 and 1 rows; rounded weights as torch computes with them."""
    entry = made.manifest.models["target"]
    assert (entry.graphs, entry.weights) == ({}, entry.gguf)
    if entry.bits < 32:
        assert entry.parity["kernel_rms_error"] < 0.06
        assert entry.parity["kernel_top1"] > 0.8
        return
    assert {entry.parity[f"{way}_error"] < EXACT for way in ("max", "crop", "pieces")} == {True}
    expected = framework_logits(made.model, TOKENS)
    with closing(opened(entry, made.pack)) as model:
        for width in (512, 64, 7, 4, 1):
            assert np.abs(logits_of(model, TOKENS, width=width) - expected).max() < EXACT


def test_matrices_have_the_widths_of_the_recipe(made: Made) -> None:
    entry = made.manifest.models["target"]
    kinds = {
        tensor.tensor_type.name
        for name, tensor in tensors_in(made.pack / entry.gguf).items()
        if name.startswith("blk.") and min(tensor.shape) > 1 and len(tensor.shape) > 1 and "conv" not in name
    }
    assert kinds == {{4: "Q4_0", 8: "Q8_0", 32: "F32"}[entry.bits]}


def test_a_session_writes_with_the_checkpoints_tokenizer(made: Made) -> None:
    with edgedecode.load(made.pack) as pair, pair.session(SessionOptions(seed=1)) as session:
        assert len(session.generate("hello", max_tokens=5).tokens) <= 5
    assert {3, 5} <= set(made.manifest.generation.end_token_ids)


@needs_engine
@pytest.mark.parametrize("name", MODELS)
def test_llama_cpp_runs_the_file_as_transformers_does(name: str, tmp_path: Path) -> None:
    model = write_network(tmp_path / "model", MODELS[name]())
    manifest = export(model, tmp_path / "pack", stored=recipe(32))
    path, tokens = tmp_path / "pack" / manifest.models["target"].gguf, TOKENS[:100]
    assert value_of(path, "general.architecture") == name
    error = np.abs(stock_logits(path, tokens) - framework_logits(model, tokens)).max()
    assert error < (TABLED if name.startswith("gemma") else EXACT)


@pytest.mark.parametrize("bits", [4, 32])
def test_drafts_change_no_token_of_layers_that_share_keys_and_values(bits: int, tmp_path: Path) -> None:
    export(write_network(tmp_path / "model", gemma()), tmp_path / "pack", stored=recipe(bits))
    texts, accepted = dict[str, object](), dict[str, int]()
    with edgedecode.load(tmp_path / "pack", threads=1) as pair:
        assert pair.target.card.row_invariant
        for drafter in ("none", "suffix", "recycle"):
            answers = []
            for temperature in (0.0, 0.8):
                sampling = SamplingOptions(temperature=temperature, top_k=3)
                options = session_options(seed=7, sampling=sampling, drafter=drafter, draft_max=6)
                with pair.session(options) as session:
                    answers += [session.generate(f"a frog {number}" * 8, max_tokens=90) for number in range(2)]
            texts[drafter] = [answer.tokens for answer in answers]
            accepted[drafter] = sum(answer.stats.accepted for answer in answers)
    assert all(text == texts["none"] for text in texts.values())
    assert all(count > 0 for drafter, count in accepted.items() if drafter != "none")


@pytest.mark.parametrize("family", ["qwen3_5", "gemma4"])
def test_the_text_part_of_a_multimodal_model_is_exported(family: str, tmp_path: Path) -> None:
    """Gemma 4's checkpoints also have keys and values of layers that read other layers' ones."""
    model = write_network(tmp_path / "model", {"qwen3_5": qwen, "gemma4": gemma}[family]())
    expected = framework_logits(model, TOKENS[:60])
    name = {"qwen3_5": "Qwen3_5ForConditionalGeneration", "gemma4": "Gemma4ForConditionalGeneration"}[family]

    def multimodal(config: dict[str, Any]) -> None:
        inner = dict(config)
        config.clear()
        tied = inner.pop("tie_word_embeddings")
        config |= {"architectures": [name], "model_type": family}
        config |= {"text_config": inner, "vision_config": {"depth": 1}, "tie_word_embeddings": tied}

    rewrite_config(model, multimodal)
    path = model / "model.safetensors"
    tensors = {name.replace("model.", "model.language_model.", 1): each for name, each in load_file(path).items()}
    others = {"qwen3_5": ("visual.a", "mtp.fc"), "gemma4": ("embed_vision.a", "vision_tower.a")}[family]
    if family == "gemma4":
        others = (*others, "language_model.layers.7.self_attn.k_proj", "language_model.layers.7.self_attn.k_norm")
    more = {f"{'' if each == 'mtp.fc' else 'model.'}{each}.weight": np.ones(4, np.float32) for each in others}
    save_file(tensors | more, path)
    manifest = export(model, tmp_path / "pack", stored=recipe(32))
    entry = manifest.models["target"]
    left_out = {"qwen3_5": "mtp, visual", "gemma4": "embed_vision, vision_tower"}[family]
    assert f"text only: left out are {left_out}" in entry.notes
    with closing(opened(entry, tmp_path / "pack")) as opened_model:
        assert np.abs(logits_of(opened_model, TOKENS[:60]) - expected).max() < EXACT


@pytest.mark.parametrize("name", MODELS)
def test_calibrated_weights_lose_less_and_a_fragile_matrix_gets_8_bits(name: str, tmp_path: Path) -> None:
    """The export compares the file's own blocks with transformers. Loss is that of the text that the model writes."""
    folder = write_network(tmp_path / "model", MODELS[name]())
    tensors = load_file(folder / "model.safetensors")
    fragile = next(each for each in tensors if "layers.1." in each and each.endswith(FRAGILE))
    tensors[fragile][:, ::32] *= 30  # a large weight in each block makes the steps of the others coarse
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    stored = replace(recipe(4), raised=Scheme(8, 32), calibrated=True)
    text = PROMPTS if name != "lfm2" else None  # which one writes
    found = export(folder, tmp_path / "pack", stored=stored, calibration=text).models["target"]
    fixed = export(folder, tmp_path / "fixed", stored=replace(stored, calibrated=False)).models["target"]
    wide = [
        {each for each, tensor in tensors_in(pack / entry.gguf).items() if tensor.tensor_type.name == "Q8_0"}
        for pack, entry in ((tmp_path / "pack", found), (tmp_path / "fixed", fixed))
    ]
    assert "blk.1.ffn_down.weight" in wide[0] - wide[1]
    assert (tmp_path / "pack" / found.gguf).stat().st_size <= (tmp_path / "fixed" / fixed.gguf).stat().st_size
    assert found.quantization.startswith("int4 block 32; int8: ")
    assert found.quantization.endswith("calibrated")
    assert found.parity["loss_kl"] < fixed.parity["loss_kl"]
    assert {path.name for path in (tmp_path / "pack" / "target").iterdir()} == {"model.gguf"}


def test_without_kernels_a_text_to_calibrate_on_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_export, "not_on_kernels", lambda *_: "only llama runs it: onnx: no kernels")
    model, stored = write_network(tmp_path / "model", lfm2()), replace(recipe(4), calibrated=True)
    with pytest.raises(ExportError, match="only llama runs it: onnx: no kernels: give one with --calibrate-text"):
        export(model, tmp_path / "pack", stored=stored)
    entry = export(model, tmp_path / "pack", stored=stored, calibration=PROMPTS).models["target"]
    assert entry.notes[-1] == "its results were not checked: only llama runs it: onnx: no kernels"


def kinds_of_layers(config: dict[str, Any]) -> None:
    config["layer_types"] = ["conv", "full_attention", "full_attention", "conv"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (kinds_of_layers, "lacks 6 tensors required by its config.json, model.layers.1.self_attn"),
        (lambda config: config.update(quantization_config={"quant_method": "fp8"}), r"already quantized \(fp8\)"),
        (lambda config: config.update(num_experts=8), "is a mixture of 8 experts"),
        (lambda config: config.update(architectures=["Lfm2MoeForCausalLM"]), "a mixture of experts, which is not"),
        (lambda config: config.update(architectures=["GptOssForCausalLM"]), "a mixture of experts, which is not"),
    ],
)
def test_bad_checkpoints_are_refused(change: Callable[[dict[str, Any]], None], message: str, tmp_path: Path) -> None:
    model = write_network(tmp_path / "model", lfm2())
    rewrite_config(model, change)
    with pytest.raises(ExportError, match=message):
        export(model, tmp_path / "pack")
    assert not (tmp_path / "pack").exists()


@needs_engine
def test_gemma_whose_values_are_its_keys_runs_as_transformers_does(tmp_path: Path) -> None:
    """As in 12B and 31B: without per-layer embeddings, and with fewer keys in layers without a window."""
    none = {"num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0, "use_double_wide_mlp": False}
    made = gemma(attention_k_eq_v=True, num_global_key_value_heads=1, **none)
    model = write_network(tmp_path / "model", made)
    entry = export(model, tmp_path / "pack", stored=recipe(32)).models["target"]
    expected, path = framework_logits(model, TOKENS), tmp_path / "pack" / entry.gguf
    with closing(opened(entry, tmp_path / "pack")) as found:
        for width in (64, 7):
            assert np.abs(logits_of(found, TOKENS, width=width) - expected).max() < EXACT
    assert np.abs(stock_logits(path, TOKENS[:100]) - expected[:100]).max() < TABLED


def test_keys_and_values_that_llama_cpp_would_share_otherwise_are_refused(tmp_path: Path) -> None:
    model = write_network(tmp_path / "model", gemma(full=(2, 7)))
    with pytest.raises(ExportError, match="gemma4 shares the keys and values of a layer with a window"):
        export(model, tmp_path / "pack")


def test_what_needs_a_graph_is_refused(tmp_path: Path) -> None:
    model = write_network(tmp_path / "model", lfm2())
    with pytest.raises(ExportError, match="is exported as a GGUF file: leave --graphs out"):
        export(model, tmp_path / "pack", graphs=GraphRequest(("base", "lora")))
    assert json.loads((model / "config.json").read_text())["model_type"] == "lfm2"
