"""`import --onnx` of optimum folders: packs for chains only; a window missing in the graph limits the context."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from onnx import helper

import edgedecode
from edgedecode import SessionOptions
from edgedecode.errors import CapabilityError, ExportError
from edgedecode.export.graph.passes.picked_rows import picked_head_rows
from edgedecode.export.imports.imported_pack import ImportRequest
from edgedecode.export.imports.onnx_import import import_pair
from edgedecode.export.imports.onnx_source import open_onnx_source
from edgedecode.export.pack_texts import NO_TEMPLATE
from edgedecode.export.stages import Stages
from edgedecode.pack.manifest import Manifest
from tests.optimum_layout import FOLDER, load_recipe
from tests.small_tokenizers import byte_level

pytestmark = pytest.mark.export

GRAPH = "model.onnx"


def write_folder(folder: Path, *, graph: Path | None = None, **config: object) -> Path:
    """Lay out a folder as optimum does, with the committed graph or another."""
    folder.mkdir()
    shutil.copyfile(graph or FOLDER / GRAPH, folder / GRAPH)
    byte_level().save(str(folder / "tokenizer.json"))
    values = {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 256, "eos_token_id": 3, **config}
    (folder / "config.json").write_text(json.dumps(values))
    (folder / "LICENSE").write_text("MIT\n")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "folder")


def imported(folder: Path, out: Path, *, draft: Path | None = None, noise: int = 0) -> Manifest:
    return import_pair(ImportRequest(folder, draft, out, noise_positions=noise), Stages())


def build_graph(tmp_path: Path, **layout: object) -> Path:
    recipe = load_recipe()
    recipe.write(tmp_path / "built.onnx", recipe.Layout(**layout))
    return tmp_path / "built.onnx"


def change(folder: Path, edit: Callable[[ir.Model], None]) -> None:
    model = ir.load(folder / GRAPH)
    edit(model)
    ir.save(model, folder / GRAPH)


def test_committed_graph_matches_its_recipe_and_optimums_inputs(tmp_path: Path) -> None:
    graph = onnx.load(FOLDER / GRAPH).graph
    rebuilt = onnx.load(build_graph(tmp_path)).graph
    assert [node.op_type for node in graph.node] == [node.op_type for node in rebuilt.node]
    cache = [f"{{}}.{layer}.{part}" for layer in (0, 1) for part in ("key", "value")]
    plain = ["input_ids", "attention_mask", "position_ids"]
    assert [value.name for value in graph.input] == [*plain, *(name.format("past_key_values") for name in cache)]
    assert [value.name for value in graph.output] == ["logits", *(name.format("present") for name in cache)]
    sizes = [size.dim_param or size.dim_value for size in graph.input[3].type.tensor_type.shape.dim]
    assert sizes == ["batch_size", 2, "past_sequence_length", 6]
    assert (FOLDER / GRAPH).stat().st_size < 150_000


def test_import_of_optimum_supports_chains_only(folder: Path, tmp_path: Path) -> None:
    manifest = imported(folder, tmp_path / "pack", noise=40)
    entry = manifest.models["target"]
    assert entry.graphs["base"].capabilities == ("concat", "rows")
    assert (entry.layers, entry.kv_heads, entry.head_size, entry.hidden_size, entry.bits) == (2, 2, 6, 24, 32)
    assert (entry.context, entry.notes, entry.window) == (256, (NO_TEMPLATE,), 0)
    assert manifest.generation.end_token_ids == (3,)
    assert not manifest.outside  # the weights were inside the graph, so they were copied into the pack
    assert (tmp_path / "pack" / "licenses" / "target" / "LICENSE").is_file()
    assert "tree_error" not in entry.parity
    assert max(entry.parity[f"{way}_error"] for way in ("max", "crop", "pieces", "source")) < 1e-3
    with edgedecode.load(tmp_path / "pack") as pair:
        assert not pair.target.card.tree
        state = pair.target.new_state(8)
        with pytest.raises(CapabilityError, match="reads chains only"):
            pair.target.forward([4, 5, 6], state, parents=[-1, -1, 0])


def test_imported_optimum_pack_drafts_without_changing_the_text(folder: Path, tmp_path: Path) -> None:
    imported(folder, tmp_path / "pack", draft=folder)
    with edgedecode.load(tmp_path / "pack") as pair:
        replies = {
            drafter: pair.session(SessionOptions(drafter=drafter, draft_max=length)).generate(
                "one two one two", max_tokens=48
            )
            for drafter, length in (("none", None), ("model", 2), ("suffix", 2))
        }
    assert replies["none"].tokens == replies["model"].tokens == replies["suffix"].tokens
    assert replies["model"].stats.accepted > 0


def test_import_leaves_external_weights_in_place(folder: Path, tmp_path: Path) -> None:
    model = onnx.load(folder / GRAPH)
    onnx.save(model, folder / GRAPH, save_as_external_data=True, location="model.onnx_data", size_threshold=256)
    manifest = imported(folder, tmp_path / "pack")
    assert [file.path for file in manifest.outside.values()] == [str((folder / "model.onnx_data").resolve())]
    edgedecode.load(tmp_path / "pack").close()


def test_import_accepts_a_graph_without_position_ids(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder", graph=build_graph(tmp_path, positions=False))
    entry = imported(folder, tmp_path / "pack").models["target"]
    assert "position_ids" not in entry.graphs["base"].inputs
    assert entry.parity["crop_error"] < 1e-3


def test_import_of_an_unknown_head_computes_every_row(folder: Path, tmp_path: Path) -> None:
    def add_identity_after_logits(model: ir.Model) -> None:
        logits = model.graph.outputs[0]
        node = ir.node("Identity", [logits], name="last")
        model.graph.append(node)
        node.outputs[0].type, node.outputs[0].shape = logits.type, logits.shape
        model.graph.outputs[0] = node.outputs[0]
        logits.name, node.outputs[0].name = "scores", "logits"

    change(folder, add_identity_after_logits)
    entry = imported(folder, tmp_path / "pack").models["target"]
    assert entry.graphs["base"].capabilities == ("concat",)
    with edgedecode.load(tmp_path / "pack") as pair:
        assert pair.session().generate("hello", max_tokens=5).tokens


def test_picked_head_rows_selects_rows_before_the_head(folder: Path) -> None:
    model = open_onnx_source(folder).model
    assert picked_head_rows(model)
    logits = next(value for value in model.graph.outputs if value.name == "logits")
    assert logits.shape == ir.Shape(["R", 352])
    assert [node.op_type for node in model.graph][-3:] == ["Constant", "Squeeze", "MatMul"]


@pytest.mark.parametrize(
    ("graph_window", "config", "context", "note"),
    [
        (16, {"sliding_window": 16}, 256, None),
        (0, {"sliding_window": 80}, 80, "the model's sliding window, which the graph ignores"),
        (0, {"sliding_window": 16, "use_sliding_window": False}, 256, None),
        (0, {"sliding_window": None}, 256, None),
        (
            0,
            {"sliding_window": 200},
            200,
            "the model's sliding window, which is too long to probe",
        ),
    ],
)
def test_import_limits_the_context_if_the_graph_ignores_the_window(
    graph_window: int, config: dict[str, object], context: int, note: str | None, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path / "folder", graph=build_graph(tmp_path, window=graph_window), **config)
    entry = imported(folder, tmp_path / "pack").models["target"]
    assert entry.context == context
    limits = () if note is None else (f"context limited to {context} of 256 tokens: {note}",)
    assert entry.notes == (*limits, NO_TEMPLATE)


def without_input(name: str) -> Callable[[ir.Model], None]:
    def edit(model: ir.Model) -> None:
        value = next(value for value in model.graph.inputs if value.name == name)
        value.name = "something_else"

    return edit


def without_past(model: ir.Model) -> None:
    for value in model.graph.inputs:
        if str(value.name).startswith("past_key_values."):
            value.name = f"cache_{str(value.name)[len('past_key_values.') :]}"


def float16_outputs(model: ir.Model) -> None:
    for value in model.graph.outputs:
        value.type = ir.TensorType(ir.DataType.FLOAT16)


def quantized_together(model: ir.Model) -> None:
    hidden = next(node for node in model.graph if node.op_type == "Gather").outputs[0]
    model.graph.append(ir.node("DynamicQuantizeLinear", [hidden], num_outputs=3))


CASES: dict[str, tuple[Callable[[ir.Model], None], str]] = {
    "no mask": (without_input("attention_mask"), "no input attention_mask: export it with --task text-generation-with"),
    "no past": (without_past, "has no past_key_values: export it with --task"),
    "another input": (without_input("position_ids"), "has the unknown input something_else"),
    "half precision": (float16_outputs, "logits in float16: export it with --dtype fp32"),
    "quantized together": (quantized_together, "DynamicQuantizeLinear, which rounds the rows of a pass together"),
}


@pytest.mark.parametrize("name", CASES)
def test_import_refuses_optimum_graphs(name: str, folder: Path, tmp_path: Path) -> None:
    edit, message = CASES[name]
    change(folder, edit)
    with pytest.raises(ExportError, match=message) as caught:
        imported(folder, tmp_path / "pack")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "pack").exists()


def test_import_refuses_a_graph_without_logits(folder: Path, tmp_path: Path) -> None:
    value = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [value], [])
    graph.output.append(helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1]))
    onnx.save(helper.make_model(graph), folder / GRAPH)
    with pytest.raises(ExportError, match=r"has the outputs y, but no logits of known width"):
        imported(folder, tmp_path / "pack")
