"""Massive activations: the products that get 16 bits and the gain; ordinary models keep 8 bits."""

import shutil
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from edgedecode.arrays import IntArray
from edgedecode.cli import main
from edgedecode.errors import ExportError
from edgedecode.export.recipes.activation_choice import TOKENS, _least
from edgedecode.export.recipes.activation_errors import Measured, measure_products, rounded, some_of
from edgedecode.onnx_format.graph_file import GraphFile
from edgedecode.pack.entries import ProductError
from edgedecode.pack.manifest import Manifest
from tests.contract.test_kernel_products import LIBRARY, dense, multiply, random_matrix

from .conftest import engine_logits, export, recipe
from .test_calibration import reference_of
from .tiny import MASSIVE, TinyModel, write_massive, write_model

pytestmark = pytest.mark.export

TEXTS = [[int(token) for token in np.random.default_rng(9 + n).integers(6, 320, 400)] for n in range(6)]
"""2,400 positions of text that no export has seen."""


@pytest.fixture(scope="module")
def short_measurements() -> None:
    """Override: the tests of the choice itself need the full measurements."""


@pytest.fixture(scope="module")
def massive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_massive(tmp_path_factory.mktemp("massive") / "model")


def levels(pack: Path, file: str = "target/base.onnx") -> dict[str, int]:
    """Return the accuracy levels of the quantized products by their weights."""
    nodes = [node for node in GraphFile.parse((pack / file).read_bytes()).nodes if node.op_type == "MatMulNBits"]
    return {node.inputs[1].removesuffix(".packed"): int(str(node.attributes["accuracy_level"])) for node in nodes}


def leading_tokens(manifest: Manifest, pack: Path, texts: Sequence[list[int]]) -> IntArray:
    return np.concatenate([engine_logits(manifest, pack, text).argmax(axis=1) for text in texts])


def test_activations_of_16_bits_keep_the_top_token_that_8_bits_lose(massive: Path, tmp_path: Path) -> None:
    """Against the same rounded weights with float activations: 99.5% agreement at 16 bits, 2 points less at 8."""
    with reference_of(massive, recipe(4)) as reference:
        expected = measure_products(reference, TEXTS).leading
    pack = tmp_path / "pack"
    manifest = export(massive, pack, stored=recipe(4), activations="auto")
    assert set(levels(pack).values()) == {2}
    agreement = {16: float((leading_tokens(manifest, pack, TEXTS) == expected).mean())}
    graph = GraphFile.parse((pack / "target" / "base.onnx").read_bytes())
    for node in graph.nodes:
        if node.op_type == "MatMulNBits":
            node.attributes["accuracy_level"] = 4
    (pack / "target" / "base.onnx").write_bytes(graph.serialize())
    agreement[8] = float((leading_tokens(manifest, pack, TEXTS) == expected).mean())
    assert agreement[16] >= 0.995
    assert agreement[8] <= agreement[16] - 0.02


def test_activations_of_8_bits_that_fail_parity_are_refused_with_advice(massive: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"shipped kernels.* do not match .*: export with --activations 16"):
        export(massive, tmp_path / "pack", stored=recipe(4), activations="8")


def test_activations_choice_is_recorded_in_the_manifest(
    massive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = export(massive, tmp_path / "pack", stored=recipe(4), activations="auto").models["target"]
    found = entry.activations
    assert set(found.wide) == set(found.products)
    assert all(error.at8 > 0.1 and error.at16 < error.at8 / 100 for error in found.products.values())
    assert found.ways["16"].agreement >= 0.995
    assert found.ways["8"].agreement <= found.ways["16"].agreement - 0.02
    assert found.text.endswith("tokens of built-in prompts and the model's answers")
    assert int(found.text.split()[0]) >= TOKENS
    assert Manifest.load(tmp_path / "pack").models["target"] == entry
    assert main(["show", "--full", str(tmp_path / "pack")]) == 0
    shown = capsys.readouterr().out
    assert "models.target.activations.wide" in shown


def test_activations_auto_keeps_8_bits_without_massive_inputs(massive: Path, tmp_path: Path) -> None:
    plain = write_massive(tmp_path / "plain", massive=())
    with reference_of(massive, recipe(4)) as one, reference_of(plain, recipe(4)) as other:
        text, visible = TEXTS[0][:50], np.tri(50, dtype=np.bool_)
        logits = [way.logits(text, visible=visible, positions=range(50)) for way in (one, other)]
    assert np.abs(logits[0] - logits[1]).max() < 1e-4 * logits[1].std()
    entry = export(plain, tmp_path / "pack", stored=recipe(4), activations="auto").models["target"]
    assert entry.activations.wide == ()
    assert entry.activations.way == entry.activations.ways["8"]
    export(plain, tmp_path / "narrow", stored=recipe(4), activations="8")
    for file in ("base.onnx", "weights.bin"):
        assert (tmp_path / "pack" / "target" / file).read_bytes() == (
            tmp_path / "narrow" / "target" / file
        ).read_bytes()


def test_activations_auto_gives_16_bits_only_to_massive_inputs(tmp_path: Path) -> None:
    folder = write_massive(tmp_path / "model", massive=("mlp.down_proj",))
    found = export(folder, tmp_path / "pack", stored=recipe(4), activations="auto").models["target"].activations
    assert found.wide == ("model.layers.0.mlp.down_proj", "model.layers.1.mlp.down_proj")
    assert {name for name, level in levels(tmp_path / "pack").items() if level == 2} == set(found.wide)
    assert found.way == found.ways["chosen"]
    assert found.way.agreement >= found.ways["16"].agreement - 0.02


@pytest.mark.parametrize("name", MASSIVE)
def test_measure_products_finds_the_product_with_the_error(name: str, tmp_path: Path) -> None:
    folder = write_massive(tmp_path / "model", massive=(name,))
    with reference_of(folder, recipe(8)) as reference:
        errors = measure_products(reference, TEXTS[:1]).errors
    assert {product for product, error in errors.items() if error.at8 > 0.04} == {
        product for product in errors if product.endswith(name)
    }


def test_activations_choice_applies_to_every_graph(massive: Path, tmp_path: Path) -> None:
    from edgedecode.export.graph.graph_request import GraphRequest

    graphs = GraphRequest(("base", "lora", "kv8"))
    export(massive, tmp_path / "pack", stored=recipe(4), activations="auto", graphs=graphs)
    for name in graphs.names:
        assert set(levels(tmp_path / "pack", f"target/{name}.onnx").values()) == {2}


def test_activations_explicit_choice_and_models_without_products(llama: Path, tmp_path: Path) -> None:
    wide = export(llama, tmp_path / "wide", stored=recipe(8), activations="16").models["target"].activations
    assert (wide.asked, len(wide.wide)) == ("16", 9)
    assert set(levels(tmp_path / "wide").values()) == {2}
    assert export(llama, tmp_path / "narrow", activations="8").models["target"].activations is None
    floats = export(llama, tmp_path / "floats", stored=recipe(16), activations="auto").models["target"]
    assert floats.activations is None
    mixed = export(llama, tmp_path / "mixed", stored=recipe(16, head_bits=8), activations="auto").models["target"]
    assert set(mixed.activations.products) == {"head"}


def test_activations_are_measured_on_the_calibration_text(llama: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("A text that nobody wrote for this. " * 200)
    stored = replace(recipe(4), calibrated=True)
    entry = export(llama, tmp_path / "pack", stored=stored, activations="auto", calibration=text).models["target"]
    assert entry.activations.text == f"{TOKENS} tokens of the calibration text"


def test_some_of_cuts_texts_to_a_total_length() -> None:
    assert some_of([[1, 2, 3], [4, 5], [6]], 4) == [(1, 2, 3), (4,)]
    assert some_of([[1, 2]], 9) == [(1, 2)]


@pytest.mark.skipif(LIBRARY is None, reason="the kernels do not run here")
@pytest.mark.parametrize("bits", [8, 16])
def test_rounded_matches_the_rounding_of_the_kernels(bits: int) -> None:
    rng = np.random.default_rng(3)
    matrix = random_matrix(rng, bits=8, block=32, columns=48, inner=80, half=True)
    x = rng.standard_normal((20, 80)).astype(np.float32)
    x[:, 40] *= 300
    x[3] = 0
    found = multiply(matrix, x, planes=bits // 8)
    expected = rounded(x, bits).astype(np.float64) @ dense(matrix, 80).T
    assert np.abs(found - expected).max() < 1e-6 * np.abs(expected).max()


class FakeTrials:
    """Trials with a known agreement: 1.0 once all needed products have 16 bits."""

    def __init__(self, needed: Collection[str]) -> None:
        self._needed = set(needed)

    def agreement(self, wide: Collection[str], texts: object, measured: object) -> float:
        return 1.0 if self._needed <= set(wide) else 0.9


@pytest.mark.parametrize(("needed", "chosen"), [("", "a"), ("a", "a"), ("b", "ab"), ("c", "abc"), ("d", "abcd")])
def test_least_adds_products_by_error_until_no_token_is_lost(needed: str, chosen: str) -> None:
    errors = {name: ProductError(at8, at8 / 256) for name, at8 in zip("abcd", (0.3, 0.03, 0.012, 1e-5), strict=True)}
    trials: Any = FakeTrials(needed)
    measured = SimpleNamespace(errors=errors)
    found, agreement = _least(trials, [], measured, everything="abcd", at8=0.9, at16=1.0)  # type: ignore[arg-type]
    assert ("".join(found), agreement) == (chosen, 1.0)


def test_least_gives_16_bits_to_a_product_with_nan_error() -> None:
    measured = Measured({"a": ProductError(float("nan"), 0.0)}, np.zeros(1, np.int64))
    trials: Any = FakeTrials("a")
    assert _least(trials, [], measured, everything=["a"], at8=0.9, at16=1.0)[0] == ("a",)


def test_activations_auto_finds_enlarged_inputs_of_a_trained_model(demo_pair: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(demo_pair / "target", tmp_path / "model"))
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        for layer in network.model.layers:
            attention, mlp = layer.self_attn, layer.mlp
            enlarged = [
                (layer.input_layernorm, [attention.q_proj, attention.k_proj, attention.v_proj]),
                (layer.post_attention_layernorm, [mlp.gate_proj, mlp.up_proj]),
                (mlp.up_proj, [mlp.down_proj]),
            ]
            for source, readers in enlarged:
                source.weight[5::64] *= 100
                for reader in readers:
                    reader.weight[:, 5::64] /= 100
    network.save_pretrained(folder)
    found = export(folder, tmp_path / "pack", stored=recipe(4), activations="auto").models["target"].activations
    assert set(found.wide) == {name for name in found.products if name != "head" and not name.endswith("o_proj")}
    assert found.way.agreement >= 0.98
    assert found.ways["8"].agreement <= found.way.agreement - 0.02


@pytest.mark.parametrize(("role", "bits"), [("target", 4), ("draft", 8)])
def test_activations_auto_keeps_8_bits_for_the_demo_pair(role: str, bits: int, demo_pair: Path, tmp_path: Path) -> None:
    """Both models and both widths, each once."""
    entry = export(demo_pair / role, tmp_path / "pack", stored=recipe(bits), activations="auto").models["target"]
    assert entry.activations.wide == ()
    low, high = (1e-3, 0.3) if bits == 4 else (0, 5e-3)  # the pair's weights are exact in 8 bits
    assert low < entry.parity["loss_kl"] < high
    assert entry.parity["loss_top1"] > 0.8
    assert entry.activations.ways["8"].agreement > entry.activations.ways["16"].agreement - 0.02
    assert set(levels(tmp_path / "pack").values()) == {4}


def test_activations_of_fused_matrices_are_measured(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", TinyModel(family="phi3", more={"pad_token_id": 0}))
    found = export(folder, tmp_path / "pack", stored=recipe(4), activations="auto").models["target"].activations
    assert all(0 < error.at16 < error.at8 < 0.04 for error in found.products.values())
