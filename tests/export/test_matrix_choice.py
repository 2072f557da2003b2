"""The choice of the matrices with 8 bits: its budget and its measurements; packs whose layers have mixed widths."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from edgedecode.arrays import FloatArray
from edgedecode.export import model_export
from edgedecode.export.graph.graph_request import GRAPHS, GraphRequest
from edgedecode.export.graph.model_shape import Shape
from edgedecode.export.graph.quantize import Scheme
from edgedecode.export.graph.recipe import Recipe, matrix_name
from edgedecode.export.recipes.matrix_choice import choose_matrices, find_gradients
from edgedecode.pack.manifest import Manifest
from edgedecode.runtimes.onnx.kernels.trial import tried

from .conftest import export, logits_of, opened, random_tokens
from .gguf.test_hybrid_export import MODELS as HYBRID_MODELS
from .gguf.test_own_graph import own_logits
from .shapes import SHAPES
from .test_calibration import reference_of
from .test_refusals import rewrite
from .tiny import TinyModel, write_model, write_network

pytestmark = pytest.mark.export

INT4, INT8 = Scheme(4, 32), Scheme(8, 32)
MEASURED = Recipe(INT4, INT8, raised=INT8, calibrated=True)
SIZES = [
    Shape(architecture, 576, 1536, layers, 9, 3, 64, 49152, 8192, tied=True)
    for architecture in ("LlamaForCausalLM", "Phi3ForCausalLM")
    for layers in (1, 2, 3, 30)
]


@given(shape=st.sampled_from(SIZES), seed=st.integers(0, 99))
def test_chosen_matrices_have_the_largest_changes_in_the_same_bytes(shape: Shape, seed: int) -> None:
    rng, fixed = np.random.default_rng(seed), MEASURED.of(shape)
    changes = {f"{layer}.{name}": float(rng.gamma(0.2)) for layer in range(shape.layers) for name in shape.matrices}
    sizes = {name: shape.matrices[name.partition(".")[2]] for name in changes}
    chosen = replace(fixed, matrices=tuple(choose_matrices(fixed, sizes, changes)))
    room = fixed.nbytes(shape) - chosen.nbytes(shape)
    assert room >= 0
    value = {name: changes[name] / shape.matrices[name.partition(".")[2]] for name in changes}
    least = min(value[name] for name in chosen.matrices)
    for name in set(changes) - {*chosen.matrices}:
        more = replace(chosen, matrices=(*chosen.matrices, name)).nbytes(shape) - chosen.nbytes(shape)
        assert value[name] <= least or more > room


@pytest.mark.parametrize("name", ["llama", "phi3", "gemma3", "gemma4", "lfm2", "qwen35"])
def test_gradients_are_those_of_the_last_hidden_state(name: str, tmp_path: Path) -> None:
    """Also where layers read keys and values of others. Texts of hybrids do not share a pass, so there are few."""
    hybrid, tokens = HYBRID_MODELS.get(name), random_tokens(5)
    if hybrid is not None:
        folder = write_network(tmp_path / "model", hybrid())
    else:
        folder = write_model(tmp_path / "model", SHAPES[name])
    with reference_of(folder, MEASURED) as reference:
        found = find_gradients(reference, [tokens] * (60 if hybrid is not None else 2000))
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    outputs: dict[str, torch.Tensor] = {}

    def keep(name: str) -> Callable[[torch.nn.Module, object, torch.Tensor], None]:
        return lambda module, arguments, output: outputs.update({name: output})

    for path, module in network.named_modules():
        if matrix_name(path) and isinstance(module, torch.nn.Linear):
            module.register_forward_hook(keep(path))
    hidden = network.model(torch.tensor([tokens])).last_hidden_state.flatten()
    squares = {path: torch.zeros(output.shape[-1]) for path, output in outputs.items()}
    for value in hidden:
        gradients = torch.autograd.grad(value, [*outputs.values()], retain_graph=True)
        for path, gradient in zip(outputs, gradients, strict=True):
            squares[path] += gradient[0].square().mean(dim=0)
    assert set(found) == set(squares)
    for path, expected in squares.items():
        if hybrid is None:
            np.testing.assert_allclose(found[path], expected.numpy(), rtol=0.25)
        close = 0.05 if hybrid is None else 0.3
        assert float(found[path].sum()) == pytest.approx(float(expected.sum()), rel=close), path


def test_a_fragile_matrix_is_raised(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", TinyModel(layers=4))
    fragile = "model.layers.2.mlp.down_proj.weight"

    def stretch(tensors: dict[str, FloatArray]) -> None:
        tensors[fragile][:, ::32] *= 30  # a large weight in each block makes the steps of the others coarse

    rewrite(stretch)(folder)
    packs = [tmp_path / name for name in ("pack", "again")]
    digests = [export(folder, pack, stored=MEASURED).files["target/weights.bin"].sha256 for pack in packs]
    assert digests[0] == digests[1]
    bits = widths(packs[0])
    assert bits["2.down"] == {8}
    assert "int8: " in Manifest.load(packs[0]).models["target"].quantization
    fixed = export(folder, tmp_path / "fixed", stored=replace(MEASURED, calibrated=False))
    assert widths(tmp_path / "fixed")["2.down"] == {4}
    assert Manifest.load(packs[0]).files["target/weights.bin"].nbytes <= fixed.files["target/weights.bin"].nbytes


def widths(pack: Path) -> dict[str, set[int]]:
    """Return the bits of the products in a pack's base graph, by `matrix_name`."""
    found: dict[str, set[int]] = {}
    for node in onnx.load(pack / "target/base.onnx", load_external_data=False).graph.node:
        if node.op_type == "MatMulNBits" and "lm_head" not in node.name:
            bits = {attribute.i for attribute in node.attribute if attribute.name == "bits"}
            found.setdefault(matrix_name(node.name.removesuffix("/MatMul").replace("/", ".")), set()).update(bits)
    return found


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_a_layers_query_key_and_value_may_have_two_widths(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checked by the export against transformers, with adapters and with an 8-bit cache; and as a GGUF file here."""
    monkeypatch.setattr(model_export, "choose_matrices", lambda *_: ["0.k_v", "1.q", "2.q", "2.k_v"])
    folder = write_model(tmp_path / "model", TinyModel(family=family, layers=4, hidden=128, head_size=32, mlp=192))
    manifest = export(
        folder,
        tmp_path / "pack",
        stored=MEASURED,
        graphs=GraphRequest(GRAPHS, lora_rank=4),
        gguf=True,
        activations="16",
    )
    entry, found = manifest.models["target"], widths(tmp_path / "pack")
    assert [found[f"{layer}.k_v"] for layer in (0, 1)] == [{8}, {4}]
    assert [found[f"{layer}.q"] for layer in (0, 1)] == [{4}, {8}]
    assert entry.quantization == "int4 block 32; int8: k, v, q of 2, head; calibrated"
    assert entry.parity["max_error"] < 1e-3
    assert entry.parity["lora_max_error"] < 1e-3
    if tried() is None:
        return
    tokens = random_tokens(60)
    with closing(opened(entry, tmp_path / "pack")) as model:
        assert model.card.row_invariant
        expected = logits_of(model, tokens, width=1)
        for width in (2, 3, 7, 60):
            np.testing.assert_array_equal(logits_of(model, tokens, width=width), expected)
    assert entry.gguf is not None
    gguf = own_logits(tmp_path / "pack" / entry.gguf, tokens)
    assert float(np.sqrt(np.square(gguf - expected).mean()) / expected.std()) < 0.02


def test_the_choice_is_kept_with_the_weights(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path / "cache"))
    stop = Mock(side_effect=KeyboardInterrupt)
    with monkeypatch.context() as patch:
        patch.setattr(model_export, "check_parity", stop)
        with pytest.raises(KeyboardInterrupt):
            export(llama, tmp_path / "pack", stored=MEASURED)
    for name in ("find_gradients", "find_moments", "sample_texts"):
        monkeypatch.setattr(model_export, name, stop)
    resumed = export(llama, tmp_path / "pack", stored=MEASURED)
    monkeypatch.undo()
    whole = export(llama, tmp_path / "whole", stored=MEASURED)
    for name in ("target/weights.bin", "target/base.onnx"):
        assert resumed.files[name] == whole.files[name]
