"""Every architecture with its peculiarities: windows, norms, caps, scales, fused matrices, long rope."""

import json
import shutil
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import edgedecode
from edgedecode import SessionDetails, SessionOptions
from edgedecode.arrays import FloatArray, IntArray
from edgedecode.bench.scale.scaled import scaled_pack
from edgedecode.errors import CapabilityError, ExportError
from edgedecode.export.graph.graph_request import GraphRequest, Span
from edgedecode.export.npu.parity_passes import compared_passes
from edgedecode.export.trim.trimmed_graph import write_trimmed
from edgedecode.gguf.architectures import ARCHITECTURES
from edgedecode.pack.manifest import Manifest, ModelEntry
from edgedecode.pack.token_map import write_token_ids
from tests.contract.static_graph import add_static

from .conftest import Floats, engine_logits, export, framework_logits, logits_of, opened, random_tokens, recipe
from .shapes import ARCHITECTURAL, FACTORS, LONG, PLAIN, SHAPES, WINDOWED
from .tiny import TinyModel, write_model

pytestmark = pytest.mark.export

WIDTH, SLOTS = 8, 100
KEPT: IntArray = np.arange(0, 352, 11)
"""The ids of a trimmed graph; 32 of them, so that no kernel's tile comes out odd."""
WAYS = ("max_error", "crop_error", "pieces_error", "tree_error", "branches_error")


class Rounded(NamedTuple):
    """A model's pack at 4 or 8 bits."""

    bits: int
    pack: Path
    manifest: Manifest


def test_shapes_cover_all_architectures() -> None:
    assert {name.removesuffix("ForCausalLM").lower() for name in ARCHITECTURES} == set(PLAIN)


@pytest.mark.parametrize("name", SHAPES)
def test_export_of_floats_is_exact_beyond_every_window(name: str, floats: Callable[[str], Floats]) -> None:
    """In one pass and in many, over a text four times as long as the window, against the transformers model."""
    made = floats(name)
    assert made.entry.window == (24 if name in WINDOWED else 0)
    assert set(WAYS) <= made.entry.parity.keys()
    expected = made.expected()
    assert expected.std() > 0.3
    with closing(opened(made.entry, made.pack)) as model:
        for width in (100, 7):
            assert np.abs(logits_of(model, random_tokens(100), width=width) - expected).max() < 1e-3


@pytest.mark.parametrize("name", ARCHITECTURAL)
def test_static_graph_of_floats_is_exact_beyond_every_window(
    name: str, floats: Callable[[str], Floats], tmp_path: Path
) -> None:
    made = floats(name)
    shutil.copytree(made.pack / "target", tmp_path / "target")
    static = add_static(tmp_path, made.entry, slots=SLOTS, widths=[WIDTH])
    base, fixed, tokens = opened(made.entry, made.pack), opened(static, tmp_path, "static"), random_tokens(90)
    for wanted, found in compared_passes(base, fixed, tokens, width=WIDTH, count=14):
        assert np.abs(wanted - found).max() < 1e-4 * max(1.0, float(wanted.std()))
    assert 4 * made.entry.window < SLOTS


def trimmed_logits(entry: ModelEntry, root: Path, out: Path) -> FloatArray:
    """Return the logits of a trim to `KEPT`, whose graph lies next to a copy of the weights."""
    shutil.copytree(root / "target", out / "target")
    graph = write_trimmed(entry.graphs["base"], entry, root, out=out / "target/trim.onnx", ids=KEPT)
    write_token_ids(out / "target/trim.ids", KEPT)
    graph = replace(graph, file="target/trim.onnx", token_ids="target/trim.ids")
    with closing(opened(replace(entry, rows=len(KEPT), graphs={"base": graph}), out, size=entry.rows)) as model:
        return logits_of(model, random_tokens(100))


@pytest.mark.parametrize("name", ARCHITECTURAL)
def test_trimmed_graph_of_floats_has_the_kept_logits(
    name: str, floats: Callable[[str], Floats], tmp_path: Path
) -> None:
    made = floats(name)
    assert np.abs(trimmed_logits(made.entry, made.pack, tmp_path) - made.expected()[:, KEPT]).max() < 1e-3


@pytest.fixture(scope="module", params=[(name, bits) for name in PLAIN for bits in (4, 8)], ids=str)
def rounded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Rounded:
    """Each architecture at 4 and at 8 bits, with MLPs that can be widened."""
    name, bits = request.param
    folder = tmp_path_factory.mktemp("rounded")
    model = write_model(folder / "model", replace(SHAPES[name], mlp=128))
    graphs = GraphRequest(("base", "lora"))
    return Rounded(bits, folder / "pack", export(model, folder / "pack", stored=recipe(bits), graphs=graphs))


def test_export_of_rounded_weights_is_exact(rounded: Rounded) -> None:
    parity, bits = rounded.manifest.models["target"].parity, rounded.bits
    for way in WAYS:
        assert parity[way] < 5e-5 * max(1.0, parity["deviation"]), way
    assert parity["kernel_rms_error"] < 0.1
    assert 0 < parity["loss_kl"] < (2 if bits == 4 else 0.05)  # random weights, hence large logits


def test_trimmed_graph_of_rounded_weights_has_the_kept_logits(rounded: Rounded, tmp_path: Path) -> None:
    expected = engine_logits(rounded.manifest, rounded.pack, random_tokens(100))[:, KEPT]
    found = trimmed_logits(rounded.manifest.models["target"], rounded.pack, tmp_path)
    assert np.array_equal(found, expected) or np.abs(found - expected).max() < 1e-3 * expected.std()


def test_widening_keeps_the_logits(rounded: Rounded) -> None:
    """`bench --scale` on packs of every architecture."""
    folder = scaled_pack(Namespace(scale="1MB", model=rounded.pack, runtime=None))
    wider = Manifest.load(folder)
    assert abs(wider.weights_nbytes("target") / 1e6 - 1) < 0.05
    tokens = random_tokens(60)
    before, after = engine_logits(rounded.manifest, rounded.pack, tokens), engine_logits(wider, folder, tokens)
    assert np.abs(before - after).max() < 2e-2  # the order of summation differs, and 8-bit rounding amplifies that
    assert (before.argmax(-1) == after.argmax(-1)).mean() > 0.97


def test_widening_refuses_floats(floats: Callable[[str], Floats]) -> None:
    with pytest.raises(CapabilityError, match="0 of the 2 MLPs of the target can be widened"):
        scaled_pack(Namespace(scale="1MB", model=floats("llama").pack, runtime=None))


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
            plain = answer(pair, SessionOptions(draft_max=0, details=SessionDetails(ignore_eos=True)))
            assert len(plain.tokens) == 100
            for drafter, length in (("model", 1), ("model", 5), ("suffix", 4)):
                options = SessionOptions(drafter=drafter, draft_max=length, details=SessionDetails(ignore_eos=True))
                assert answer(pair, options).tokens == plain.tokens, (draft.name, drafter, length)


def answer(pair: edgedecode.Pair, options: SessionOptions) -> edgedecode.Completion:
    with pair.session(options) as session:
        return session.generate("Say it again: abcabcabc", max_tokens=100)


def test_long_rope_by_default_ends_at_its_switch(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", LONG)
    entry = export(folder, tmp_path / "pack", stored=recipe(32)).models["target"]
    assert entry.context == 64
    assert "ends at 64 of 256 tokens" in entry.notes[0]
    assert difference(Manifest.load(tmp_path / "pack"), tmp_path / "pack", folder, random_tokens(64)) < 1e-3


def test_span_limits_the_context(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", TinyModel())
    entry = export(folder, tmp_path / "pack", stored=recipe(32), span=Span(context=128)).models["target"]
    assert entry.context == 128
    assert entry.notes == ("the context is limited to 128 of 256 tokens: as requested",)


@pytest.mark.parametrize(
    ("tiny", "span", "message"),
    [
        (TinyModel(), Span(context=4096), "supports 256 positions, not 4096"),
        (LONG, Span(context=100), "supports 64 positions, not 100"),
    ],
)
def test_span_refuses_unavailable_positions(tiny: TinyModel, span: Span, message: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", tiny)
    with pytest.raises(ExportError, match=message):
        export(folder, tmp_path / "pack", stored=recipe(32), span=span)


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


def without_caps(config: dict[str, Any]) -> None:
    config |= {"attn_logit_softcapping": None, "final_logit_softcapping": None}


def difference(manifest: Manifest, pack: Path, folder: Path, tokens: list[int]) -> float:
    """Return the largest difference between a pack's logits and transformers'."""
    return float(np.abs(engine_logits(manifest, pack, tokens) - framework_logits(folder, tokens)).max())


@pytest.mark.parametrize(
    ("tiny", "change"),
    [
        *((SHAPES["gemma3"], older_gemma3), (LONG, older_phi3), (SHAPES["mistral"], older_mistral)),
        (SHAPES["gemma2"], without_caps),
    ],
)
def test_export_reads_configurations_of_other_files(
    tiny: TinyModel, change: Callable[[dict[str, Any]], None], tmp_path: Path
) -> None:
    """Older ones, and one without caps."""
    folder = write_model(tmp_path / "model", tiny)
    rewrite_config(folder, change)
    manifest = export(folder, tmp_path / "pack", stored=recipe(32))
    assert difference(manifest, tmp_path / "pack", folder, random_tokens(64)) < 1e-3


def test_export_ties_a_head_equal_to_the_embedding(tmp_path: Path) -> None:
    """Some files contain the tied table twice."""
    folder = write_model(tmp_path / "model", TinyModel(tied=True))
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    save_file(tensors, folder / "model.safetensors")
    export(folder, tmp_path / "pack", stored=recipe(8))
    alone = export(write_model(tmp_path / "alone", TinyModel(tied=True)), tmp_path / "pack2", stored=recipe(8))
    assert Manifest.load(tmp_path / "pack").files["target/weights.bin"] == alone.files["target/weights.bin"]


@pytest.mark.parametrize(
    ("text", "whole", "old", "new"),
    [
        ("ministral3", "Mistral3ForConditionalGeneration", "model.", "model.language_model."),
        ("ministral3", "Mistral3ForConditionalGeneration", "", "language_model."),
        ("gemma3", "Gemma3ForConditionalGeneration", "model.", "model.language_model."),
    ],
)
def test_the_text_part_of_a_multimodal_model_is_exported(
    text: str, whole: str, old: str, new: str, tmp_path: Path
) -> None:
    """Images are left out, and the pack says so; a tensor that is unknown is an error as ever."""
    folder = write_model(tmp_path / "model", SHAPES[text])
    expected = framework_logits(folder, random_tokens(60))
    kind = whole.removesuffix("ForConditionalGeneration").lower()

    def multimodal(config: dict[str, Any]) -> None:
        inner = dict(config)
        config.clear()
        vision = {"model_type": "pixtral" if kind == "mistral3" else "siglip_vision_model", "hidden_size": 32}
        config |= {"architectures": [whole], "model_type": kind, "text_config": inner, "vision_config": vision}
        config["tie_word_embeddings"] = inner.pop("tie_word_embeddings")

    rewrite_config(folder, multimodal)
    path = folder / "model.safetensors"
    tensors = {
        name.replace(old, new, 1) if name.startswith(old) else name: each for name, each in load_file(path).items()
    }
    more = {"vision_tower.patch.weight": np.ones((4, 4), np.float32), "multi_modal_projector.a": np.ones(4, np.float32)}
    save_file(tensors | more, path)
    manifest = export(folder, tmp_path / "pack", stored=recipe(32))
    assert manifest.models["target"].notes[-1] == "text only: left out are multi_modal_projector, vision_tower"
    assert np.abs(engine_logits(manifest, tmp_path / "pack", random_tokens(60)) - expected).max() < 1e-3
    save_file(tensors | {"model.unknown.weight": np.ones((4, 4), np.float32)}, path)
    with pytest.raises(ExportError, match=r"has 1 tensor unknown to its config.json, model.unknown.weight"):
        export(folder, tmp_path / "pack-2", stored=recipe(32))


def test_a_multimodal_model_of_an_unknown_text_part_is_refused(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", TinyModel())
    rewrite_config(folder, lambda config: config.update(text_config={"model_type": "kosmos_2_text"}))
    with pytest.raises(ExportError, match=r"is a kosmos_2 \(text part\); supported are"):
        export(folder, tmp_path / "pack", stored=recipe(32))
