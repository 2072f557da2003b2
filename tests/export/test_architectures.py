"""Every architecture with its peculiarities: windows, norms, caps, scales, fused matrices, long rope."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import edgedecode
from edgedecode import SessionOptions
from edgedecode.arrays import FloatArray
from edgedecode.errors import ExportError
from edgedecode.export.graph.graph_request import Span
from edgedecode.export.pair_export import PairRequest, export_pair
from edgedecode.export.stages import Stages
from edgedecode.gguf.architectures import ARCHITECTURES
from edgedecode.pack.manifest import Manifest

from .conftest import export, recipe
from .test_parity import engine_logits, framework_logits, open_target
from .tiny import TinyModel, write_model

pytestmark = pytest.mark.export

FACTORS = {"short_factor": [1.0 + 0.1 * step for step in range(8)], "long_factor": [1.0 + step for step in range(8)]}
LONG_ROPE = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 64, **FACTORS}
PARTIAL = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
SOME_WINDOWS = {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}
MULTIPLIERS = {
    "embedding_multiplier": 3.0,
    "logits_scaling": 2.0,
    "residual_multiplier": 0.5,
    "attention_multiplier": 0.2,
}
CAPS = {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0, "query_pre_attn_scalar": 24}
SHAPES = {
    "gemma": TinyModel(family="gemma", tied=True),
    "gemma2": TinyModel(family="gemma2", layers=4, tied=True, more={"sliding_window": 24, **CAPS}),
    "gemma2 bfloat16": TinyModel(family="gemma2", tied=True, dtype="bfloat16", more={"sliding_window": 24, **CAPS}),
    "gemma3": TinyModel(
        family="gemma3",
        layers=4,
        tied=True,
        more={"sliding_window": 24, "sliding_window_pattern": 2, "query_pre_attn_scalar": 24},
    ),
    "granite": TinyModel(family="granite", more=MULTIPLIERS),
    "granite tied float16": TinyModel(family="granite", tied=True, dtype="float16", more=MULTIPLIERS),
    "mistral": TinyModel(family="mistral", more={"sliding_window": 24}),
    "mistral without window": TinyModel(family="mistral", more={"sliding_window": None}),
    "phi3": TinyModel(family="phi3", more={"pad_token_id": 0, "sliding_window": 24}),
    "phi3 sharded bfloat16": TinyModel(family="phi3", dtype="bfloat16", shard="60KB", more={"pad_token_id": 0}),
    "phi3 partial rotary": TinyModel(
        family="phi3", heads=2, kv_heads=1, head_size=32, more={"pad_token_id": 0, "rope_parameters": PARTIAL}
    ),
    "qwen2 some windows": TinyModel(family="qwen2", layers=3, more=SOME_WINDOWS),
    "qwen3": TinyModel(family="qwen3"),
    "qwen3 tied some windows": TinyModel(family="qwen3", layers=3, tied=True, more=SOME_WINDOWS),
    "smollm3": TinyModel(family="smollm3", layers=4, tied=True, more={"pad_token_id": 0}),
}
WINDOWED = [name for name, tiny in SHAPES.items() if tiny.more.get("sliding_window")]
LONG = TinyModel(
    family="phi3",
    more={"pad_token_id": 0, "rope_parameters": LONG_ROPE, "original_max_position_embeddings": 64},
)
WAYS = ("max_error", "crop_error", "pieces_error", "tree_error", "branches_error")


def export_span(folder: Path, out: Path, span: Span) -> Manifest:
    request = PairRequest(target=str(folder), draft=None, out=out, recipe=recipe(32), span=span, noise_positions=0)
    return export_pair(request, Stages())


def random_tokens(count: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(1).integers(0, 320, count)]


def in_chunks(manifest: Manifest, pack: Path, tokens: Sequence[int], *, chunk: int) -> FloatArray:
    """Return the logits of the tokens, computed `chunk` at a time."""
    model = open_target(manifest, pack)
    state = model.new_state(len(tokens))
    rows: list[FloatArray] = []
    for start in range(0, len(tokens), chunk):
        piece = tokens[start : start + chunk]
        rows.append(model.forward(piece, state, rows="all").logits.copy())
        state.keep(range(len(piece)))
    model.close()
    return np.concatenate(rows)


def test_shapes_cover_all_architectures() -> None:
    families = {name.split()[0] for name in SHAPES} | {"llama"}
    assert {name.removesuffix("ForCausalLM").lower() for name in ARCHITECTURES} == families


@pytest.mark.parametrize("name", SHAPES)
def test_export_of_floats_is_exact_beyond_every_window(name: str, tmp_path: Path) -> None:
    """In one pass and in many, over a text four times as long as the window, against the transformers model."""
    folder = write_model(tmp_path / "model", SHAPES[name])
    manifest = export(folder, tmp_path / "pack", stored=recipe(32))
    entry = manifest.models["target"]
    assert entry.window == (24 if name in WINDOWED else 0)
    assert set(WAYS) <= entry.parity.keys()
    tokens = random_tokens(100)
    expected = framework_logits(folder, tokens)
    assert expected.std() > 0.3
    assert np.abs(engine_logits(manifest, tmp_path / "pack", tokens) - expected).max() < 1e-3
    assert np.abs(in_chunks(manifest, tmp_path / "pack", tokens, chunk=7) - expected).max() < 1e-3


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("name", [name for name in SHAPES if " " not in name])
def test_export_of_rounded_weights_is_exact(name: str, bits: int, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", SHAPES[name])
    parity = export(folder, tmp_path / "pack", stored=recipe(bits)).models["target"].parity
    for way in WAYS:
        assert parity[way] < 5e-5 * max(1.0, parity["deviation"]), way
    assert parity["kernel_rms_error"] < 0.1
    assert 0 < parity["loss_kl"] < (2 if bits == 4 else 0.05)  # random weights, hence large logits


@pytest.mark.parametrize("name", WINDOWED)
def test_parity_fails_without_the_window(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the window's bias the same export is refused."""
    from edgedecode.export.graph import drawing
    from edgedecode.export.graph.passes import graph_inputs as bias

    def bias_without_window(model: object, *, windowed: Sequence[bool] = ()) -> None:
        bias.tree_bias(model, windowed=())  # type: ignore[arg-type]

    monkeypatch.setattr(drawing, "tree_bias", bias_without_window)
    monkeypatch.setattr("edgedecode.runtimes.onnx.onnx_runtime.check_contract", lambda *_, **__: None)
    folder = write_model(tmp_path / "model", SHAPES[name])
    with pytest.raises(ExportError, match="results do not match its weights"):
        export(folder, tmp_path / "pack", stored=recipe(32))
    assert not (tmp_path / "pack").exists()


@pytest.mark.parametrize("name", ["gemma3", "mistral", "qwen3 tied some windows", "smollm3"])
def test_drafts_leave_the_text_of_every_architecture_unchanged(name: str, tmp_path: Path) -> None:
    """Float weights, an answer four times as long as the window; the draft is the target itself or another model.

    Floats of random weights have no ties.
    """
    folder = write_model(tmp_path / "model", SHAPES[name])
    other = write_model(tmp_path / "other", replace(SHAPES[name], seed=1))
    for draft in (folder, other):
        pack = tmp_path / f"pack-{draft.name}"
        export(folder, pack, draft=draft, stored=recipe(32))
        with edgedecode.load(pack) as pair:
            plain = answer(pair, SessionOptions(draft_max=0, ignore_eos=True))
            assert len(plain.tokens) == 100
            for drafter, length in (("model", 1), ("model", 5), ("suffix", 4)):
                options = SessionOptions(drafter=drafter, draft_max=length, ignore_eos=True)
                assert answer(pair, options).tokens == plain.tokens, (draft.name, drafter, length)


def answer(pair: edgedecode.Pair, options: SessionOptions) -> edgedecode.Completion:
    with pair.session(options) as session:
        return session.generate("Say it again: abcabcabc", max_tokens=100)


def test_long_rope_by_default_ends_at_its_switch(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", LONG)
    entry = export_span(folder, tmp_path / "pack", Span()).models["target"]
    assert entry.context == 64
    assert "ends at 64 of 256 tokens" in entry.notes[0]
    assert "--rope long" in entry.notes[0]
    tokens = random_tokens(64)
    expected = framework_logits(folder, tokens)
    manifest = Manifest.load(tmp_path / "pack")
    assert np.abs(engine_logits(manifest, tmp_path / "pack", tokens) - expected).max() < 1e-3


def test_long_rope_beyond_its_switch(tmp_path: Path) -> None:
    """The long factors agree with transformers beyond the switch, and differ from the short factors below it."""
    folder = write_model(tmp_path / "model", LONG)
    manifest = export_span(folder, tmp_path / "pack", Span(long_rope=True))
    assert manifest.models["target"].context == 256
    assert "up to 64 tokens differ" in manifest.models["target"].notes[0]
    tokens = random_tokens(100)
    expected = framework_logits(folder, tokens)
    assert np.abs(engine_logits(manifest, tmp_path / "pack", tokens) - expected).max() < 1e-3
    short = framework_logits(folder, tokens[:50])
    assert np.abs(engine_logits(manifest, tmp_path / "pack", tokens[:50]) - short).max() > 0.1


def test_span_limits_the_context(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", TinyModel())
    entry = export_span(folder, tmp_path / "pack", Span(context=128)).models["target"]
    assert entry.context == 128
    assert entry.notes == ("the context is limited to 128 of 256 tokens: as requested",)


@pytest.mark.parametrize(
    ("tiny", "span", "message"),
    [
        (TinyModel(), Span(context=4096), "supports 256 positions, not 4096"),
        (TinyModel(), Span(long_rope=True), "has no long rope"),
        (LONG, Span(context=100), "supports 64 positions, not 100"),
        (LONG, Span(context=64, long_rope=True), "uses its short factors up to 64 positions"),
    ],
)
def test_span_refuses_unavailable_positions(tiny: TinyModel, span: Span, message: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", tiny)
    with pytest.raises(ExportError, match=message):
        export_span(folder, tmp_path / "pack", span)


def test_export_runs_no_code_of_the_model_folder(tmp_path: Path) -> None:
    """Phi-3's files on the hub name such code."""
    folder = write_model(tmp_path / "model", SHAPES["phi3"])
    rewrite_config(folder, lambda config: config.update(auto_map={"AutoModelForCausalLM": "modeling_phi3.Phi3"}))
    (folder / "modeling_phi3.py").write_text("raise SystemExit('was run')")
    assert export(folder, tmp_path / "pack", stored=recipe(32)).models["target"].window == 24


@pytest.mark.parametrize("family", ["llama", "phi3"])
def test_export_accepts_a_padding_id_above_all_used_tokens(family: str, tmp_path: Path) -> None:
    """Phi-3's is 32,000 of 32,064, and the checks embed only the tokens in use."""
    folder = write_model(tmp_path / "model", TinyModel(family=family, more={"pad_token_id": 351}))
    assert json.loads((folder / "config.json").read_text())["pad_token_id"] == 351
    parity = export(folder, tmp_path / "pack", stored=recipe(8)).models["target"].parity
    assert parity["max_error"] < 5e-5 * max(1.0, parity["deviation"])


def test_export_of_gemma2_without_caps(tmp_path: Path) -> None:
    caps = {"attn_logit_softcapping": None, "final_logit_softcapping": None, "query_pre_attn_scalar": 24}
    folder = write_model(tmp_path / "model", TinyModel(family="gemma2", tied=True, more={"sliding_window": 24, **caps}))
    manifest = export(folder, tmp_path / "pack", stored=recipe(32))
    tokens = random_tokens(60)
    expected = framework_logits(folder, tokens)
    assert np.abs(engine_logits(manifest, tmp_path / "pack", tokens) - expected).max() < 1e-3


def rewrite_config(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


def older_gemma3(config: dict[str, Any]) -> None:
    """Change the configuration to the form of the hub's first Gemma 3 files."""
    config.pop("rope_parameters")
    config.pop("layer_types")
    config |= {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": None, "sliding_window_pattern": 2}


def older_phi3(config: dict[str, Any]) -> None:
    config.pop("rope_parameters")
    config["rope_theta"] = 1e4
    config["rope_scaling"] = {"type": "longrope", **FACTORS}
    config["original_max_position_embeddings"] = 64


def older_mistral(config: dict[str, Any]) -> None:
    config.pop("rope_parameters")
    config["rope_theta"] = 5e4


@pytest.mark.parametrize(
    ("name", "tiny", "change"),
    [
        ("gemma3", SHAPES["gemma3"], older_gemma3),
        ("phi3", LONG, older_phi3),
        ("mistral", SHAPES["mistral"], older_mistral),
    ],
)
def test_export_reads_configurations_of_older_files(
    name: str, tiny: TinyModel, change: Callable[[dict[str, Any]], None], tmp_path: Path
) -> None:
    folder = write_model(tmp_path / "model", tiny)
    rewrite_config(folder, change)
    manifest = export(folder, tmp_path / "pack", stored=recipe(32))
    tokens = random_tokens(64)
    expected = framework_logits(folder, tokens)
    assert np.abs(engine_logits(manifest, tmp_path / "pack", tokens) - expected).max() < 1e-3


def test_export_ties_a_head_equal_to_the_embedding(tmp_path: Path) -> None:
    """Some files contain the tied table twice."""
    folder = write_model(tmp_path / "model", TinyModel(tied=True))
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    save_file(tensors, folder / "model.safetensors")
    export(folder, tmp_path / "pack", stored=recipe(8))
    alone = export(write_model(tmp_path / "alone", TinyModel(tied=True)), tmp_path / "pack2", stored=recipe(8))
    assert Manifest.load(tmp_path / "pack").files["target/weights.bin"] == alone.files["target/weights.bin"]
