"""Each graph pass, applied to a skeleton graph of the builder."""

from itertools import pairwise
from pathlib import Path

import onnx_ir as ir
import pytest

from edgedecode.errors import ExportError
from edgedecode.export.graph.checkpoint import Checkpoint, weight_files
from edgedecode.export.graph.network import open_network
from edgedecode.export.graph.passes.picked_rows import picked_rows
from edgedecode.export.graph.passes.stored_weights import (
    placed_weights,
    product_names,
    set_activations,
    stored_constants,
    stored_embedding,
    stored_projections,
)
from edgedecode.export.graph.quantize import Scheme
from edgedecode.export.graph.recipe import HEAD
from edgedecode.export.graph.skeleton import Skeleton, build_skeleton
from edgedecode.export.graph.weights_file import Weights

from .conftest import export, recipe
from .tiny import TinyModel, write_model

pytestmark = pytest.mark.export

INT8 = Scheme(8, 32)


@pytest.fixture(params=[False, True], ids=["untied", "tied"])
def skeleton(request: pytest.FixtureRequest, tmp_path: Path) -> Skeleton:
    """A new builder graph with two layers, hidden size 64 and 352 rows."""
    folder = write_model(tmp_path / "model", TinyModel(tied=request.param))
    network = open_network(folder, Checkpoint(weight_files(folder)), architecture="LlamaForCausalLM")
    return build_skeleton(network, "LlamaModel", packed=lambda layer: True)


def kinds(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def named(node: ir.Node, index: int) -> str | None:
    value = node.inputs[index] if index < len(node.inputs) else None
    return None if value is None else str(value.name)


@pytest.mark.parametrize(("early", "products_behind"), [(True, 5), (False, 1)])
def test_picked_rows_selects_rows_early_or_before_the_head(
    early: bool, products_behind: int, skeleton: Skeleton
) -> None:
    model = skeleton.model
    picked_rows(model, early=early)
    order = kinds(model)
    last_pick = len(order) - 1 - order[::-1].index("Gather")
    picks = [node for node in model.graph if node.op_type == "Gather" and named(node, 1) == "rows"]
    assert len(picks) == 2  # the residual, and the branch added to it
    assert order[order.index("Gather", order.index("GroupQueryAttention")) :].count("MatMul") >= products_behind
    assert order[last_pick:].count("MatMul") in (products_behind, products_behind - 1)
    logits = next(value for value in model.graph.outputs if value.name == "logits")
    assert logits.shape == ir.Shape(["R", 352])
    assert order.count("Squeeze") == 1


@pytest.mark.parametrize("bits", [4, 8, 16])
def test_export_picks_a_targets_rows_early_only_at_8_bits(bits: int, llama: Path, tmp_path: Path) -> None:
    export(llama, tmp_path / "pack", draft=llama, stored=recipe(bits))
    behind = {role: products_behind_picks(tmp_path / "pack" / role / "base.onnx") for role in ("target", "draft")}
    assert behind == {"target": 5 if bits == 8 else 1, "draft": 5}


def products_behind_picks(path: Path) -> int:
    graph = ir.load(path).graph
    picks = {
        output for node in graph if node.op_type == "Gather" and named(node, 1) == "rows" for output in node.outputs
    }
    reached, products = set(picks), 0
    for node in graph:
        if not reached.isdisjoint(node.inputs):
            reached.update(node.outputs)
            products += node.op_type in ("MatMul", "MatMulNBits", "Gemm")
    return products


def test_picked_rows_refuses_an_unknown_head(skeleton: Skeleton) -> None:
    model = skeleton.model
    logits = next(value for value in model.graph.outputs if value.name == "logits")
    producer = logits.producer()
    producer.op_type = "Mystery"
    with pytest.raises(ExportError, match=r"do not come from a matrix product|unsupported"):
        picked_rows(model, early=True)


@pytest.mark.parametrize(
    ("scheme", "operator"), [(INT8, "GatherBlockQuantized"), (Scheme(16), "Cast"), (Scheme(32), "Gather")]
)
def test_stored_embedding_uses_the_operator_of_its_scheme(scheme: Scheme, operator: str, skeleton: Skeleton) -> None:
    model, weights = skeleton.model, Weights()
    stored_embedding(model, skeleton.recorded, weights=weights, scheme=scheme)
    node = next(node for node in model.graph if node.outputs[0].name == "/model/embed_tokens/Gather/output_0")
    assert node.op_type == operator
    assert "model.embed_tokens.weight" not in model.graph.initializers
    if scheme.quantized:
        rows, blocks = weights.extents()["embedding.packed.rows"], weights.extents()["embedding.packed"]
        assert (rows.offset, rows.spec.shape, blocks.spec.shape) == (blocks.offset, (352, 64), (352, 2, 32))


def test_stored_projections_use_the_scheme_of_each_name(skeleton: Skeleton) -> None:
    model, weights = skeleton.model, Weights()
    requested: list[str] = []

    def scheme_of(name: str) -> Scheme:
        requested.append(name)
        return Scheme(32) if name == "head" else Scheme(4, 32)

    stored_projections(model, skeleton.recorded, weights=weights, scheme_of=scheme_of)
    assert kinds(model).count("MatMulNBits") == 2 * 5
    assert kinds(model).count("Gemm") == 1
    assert "MatMul" not in kinds(model)
    assert requested[:2] == ["model.layers.0.attn.qkv_proj", "model.layers.0.attn.o_proj"]
    packed = weights.extents()["model.layers.0.attn.qkv_proj.packed"].spec
    assert packed.shape == (128, 2, 16)


def test_placed_weights_assigns_every_weight_an_offset(skeleton: Skeleton) -> None:
    model, weights = skeleton.model, Weights()
    stored_embedding(model, skeleton.recorded, weights=weights, scheme=INT8)
    stored_projections(model, skeleton.recorded, weights=weights, scheme_of=lambda name: INT8)
    with pytest.raises(ExportError, match=r"is not in weights\.bin"):
        placed_weights(model, weights.extents(), file="weights.bin")
    stored_constants(model, skeleton.recorded, weights=weights)
    placed_weights(model, weights.extents(), file="weights.bin")
    for name, value in model.graph.initializers.items():
        assert isinstance(value.const_value, ir.ExternalTensor), name
        assert value.const_value.offset % 64 == 0
    spans = sorted((extent.offset, extent.offset + extent.spec.nbytes) for extent in weights.extents().values())
    distinct = sorted(set(spans))
    assert all(end <= start for (_, end), (start, _) in pairwise(distinct))
    assert distinct[-1][1] == weights.nbytes


def test_set_activations_applies_to_all_products_of_one_input(skeleton: Skeleton) -> None:
    model = skeleton.model
    stored_projections(model, skeleton.recorded, weights=Weights(), scheme_of=lambda name: INT8)
    parts = ("attn.qkv_proj", "attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj")
    assert product_names(model) == (*(f"model.layers.{layer}.{part}" for layer in range(2) for part in parts), HEAD)
    set_activations(model, ("model.layers.0.mlp.gate_up_proj", HEAD))
    wide = [node.name for node in model.graph if node.attributes.get_int("accuracy_level", 0) == 2]
    assert wide == ["/model/layers.0/mlp/gate_proj/MatMul", "/model/layers.0/mlp/up_proj/MatMul", "/lm_head/MatMul"]
    set_activations(model, ())
    levels = {node.attributes["accuracy_level"].as_int() for node in model.graph if node.op_type == "MatMulNBits"}
    assert levels == {4}
