"""Recipes: names, sizes and schemes; mixed and calibrated exports against transformers with the same rounding."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgedecode.export.base_model import open_source
from edgedecode.export.graph.quantize import Scheme
from edgedecode.export.graph.recipe import HEAD, Recipe, projection_name
from edgedecode.pack.manifest import Manifest

from .conftest import export, recipe
from .tiny import TinyModel, write_model

pytestmark = pytest.mark.export

INT4, INT8 = Scheme(4, 32), Scheme(8, 32)
MIXED = Recipe(INT4, INT8, raised=INT8)


@pytest.mark.parametrize(
    ("stored", "name"),
    [
        (recipe(8), "int8 block 32"),
        (recipe(4), "int4 block 32; int8: head"),
        (recipe(32), "float32"),
        (
            replace(MIXED, layers=3, matrices=("0.q", "0.k_v", "1.k_v", "2.k_v", "2.down")),
            "int4 block 32; int8: k, v of all layers, q, down of 1, head",
        ),
        (Recipe(INT4, INT4, raised=INT8, layers=2, matrices=("0.qkv",)), "int4 block 32; int8: qkv of 1"),
        (Recipe(INT4, Scheme(16), calibrated=True), "int4 block 32; float16: head; calibrated"),
    ],
)
def test_recipe_name(stored: Recipe, name: str) -> None:
    assert stored.name == name


def test_recipe_remark_is_empty_if_the_widths_describe_the_recipe() -> None:
    assert recipe(4).remark == ""
    assert MIXED.remark == MIXED.name


@pytest.mark.parametrize(
    ("name", "inner"),
    [
        ("model.layers.{}.attn.qkv_proj", 8),
        ("model.layers.{}.self_attn.k_proj", 8),
        ("model.layers.{}.attn.o_proj", 4),
        ("model.layers.{}.mlp.down_proj", 4),
    ],
)
def test_mixed_recipe_has_8_bits_in_the_outer_layers_and_attentions_inputs(
    name: str, inner: int, tmp_path: Path
) -> None:
    shape = open_source(str(write_model(tmp_path / "model", TinyModel(layers=12)))).shape
    stored = MIXED.of(shape)
    bits = [stored.scheme_of(name.format(layer)).bits for layer in range(12)]
    assert bits == [8, *[inner] * 10, 8]
    assert stored.scheme_of(HEAD).bits == 8


@pytest.mark.parametrize(
    ("graph", "module"),
    [
        ("model.layers.3.attn.qkv_proj", "model.layers.3.self_attn.k_proj"),
        ("model.layers.3.attn.o_proj", "model.layers.3.self_attn.o_proj"),
        ("model.layers.3.mlp.up_proj", "model.layers.3.mlp.gate_proj"),
        ("model.layers.3.mlp.up_proj", "model.layers.3.mlp.gate_up_proj"),
        ("model.layers.3.mlp.down_proj", "model.layers.3.mlp.down_proj"),
    ],
)
def test_projection_name_is_shared_by_projections_of_one_input(graph: str, module: str) -> None:
    assert projection_name(graph) == projection_name(module)


CASES = {
    "llama, mixed": (MIXED, TinyModel(layers=4)),
    "llama tied, mixed, 4-bit head": (Recipe(INT4, INT4, raised=INT8), TinyModel(layers=4, tied=True)),
    "qwen2, 4-bit head": (Recipe(INT4, INT4), TinyModel(family="qwen2")),
    "qwen2 tied, mixed": (MIXED, TinyModel(family="qwen2", layers=3, tied=True)),
    "qwen2, block 128": (recipe(4, block_size=128), TinyModel(family="qwen2", hidden=128, mlp=256, head_size=32)),
    "phi3, mixed": (MIXED, TinyModel(family="phi3", layers=3, more={"pad_token_id": 0, "sliding_window": 24})),
    "gemma2, 4-bit head": (Recipe(INT4, INT4), TinyModel(family="gemma2", tied=True, more={"sliding_window": 24})),
}


@pytest.mark.parametrize("case", CASES)
def test_parity_is_exact_for_every_recipe(case: str, tmp_path: Path) -> None:
    stored, tiny = CASES[case]
    folder = write_model(tmp_path / "model", tiny)
    for calibrated in (False, True):
        pack = tmp_path / f"pack {calibrated}"
        text = tmp_path / "text.txt"
        text.write_text("A text to be calibrated on, not a long one. " * 4)
        made = replace(stored, calibrated=calibrated)
        manifest = export(folder, pack, stored=made, calibration=text if calibrated else None)
        entry = manifest.models["target"]
        assert entry.parity["max_error"] < 1e-3  # the reference has the same blocks
        if made.raised is None or not calibrated:  # else a choice of its own, see test_matrix_choice.py
            assert entry.quantization == made.of(open_source(str(folder)).shape).remark
        assert float16_scales(manifest, pack)


def float16_scales(manifest: Manifest, pack: Path) -> bool:
    """Return whether every scale in the weights file is a float16 number."""
    import onnx_ir as ir

    entry = manifest.models["target"]
    model = ir.load(pack / entry.graphs["base"].file)
    scales = [
        value.const_value.numpy()
        for name, value in model.graph.initializers.items()
        if name.endswith(".scales") and value.const_value is not None
    ]
    assert len(scales) > 4 * entry.layers
    return all(np.array_equal(found, found.astype(np.float16).astype(np.float32)) for found in scales)


def test_calibrated_export_generates_its_own_text(llama: Path, tmp_path: Path) -> None:
    calibrated = Recipe(INT4, INT8, calibrated=True)
    sizes, losses = {}, {}
    for stored in (recipe(4), calibrated):
        manifest = export(llama, tmp_path / stored.name, stored=stored)
        sizes[stored] = manifest.files["target/weights.bin"]
        losses[stored] = manifest.models["target"].parity["loss_kl"]
    assert sizes[calibrated].nbytes == sizes[recipe(4)].nbytes
    assert sizes[calibrated].sha256 != sizes[recipe(4)].sha256
    assert losses[calibrated] < losses[recipe(4)]


def test_mixed_recipe_size_is_between_4_and_8_bits(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", TinyModel(layers=4))
    found = [
        export(folder, tmp_path / name, stored=stored).files["target/weights.bin"].nbytes
        for name, stored in (("4", recipe(4)), ("mixed", MIXED), ("8", recipe(8)))
    ]
    assert found[0] < found[1] < found[2]
    shape = open_source(str(folder)).shape
    layer = (shape.parameters - 2 * shape.embedding) / 4
    share = (2 * layer + 2 * (shape.matrices["q"] + shape.matrices["k_v"])) / (4 * layer)
    assert found[1] - found[0] == pytest.approx(share * (found[2] - found[0]), rel=0.1)
