"""`import --onnx` of onnxruntime-genai folders: the pack computes the same, and the weights stay where they are."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import edgedecode
from edgedecode import SessionDetails, SessionOptions
from edgedecode.errors import EdgeDecodeError, ManifestError
from edgedecode.export.graph.passes.stored_weights import viewed_tables
from edgedecode.export.imports.imported_pack import ImportRequest
from edgedecode.export.imports.onnx_import import import_pair
from edgedecode.export.stages import Stages
from edgedecode.pack.manifest import Manifest
from tests.conftest import Refusal, Told
from tests.hub import Hub, check_download
from tests.small_tokenizers import byte_fallback

from .genai import build
from .tiny import TinyModel, write_model

pytestmark = pytest.mark.export

GRAPH, WEIGHTS = "model.onnx", "model.onnx.data"


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny tied Qwen2 in int4; tests that change it use a copy."""
    folder = tmp_path_factory.mktemp("genai")
    model = write_model(folder / "model", TinyModel("qwen2", tied=True))
    return build(model, folder / "tiny-qwen2")


@pytest.fixture
def copied(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "folder"))


def imported(folder: Path, out: Path, *, draft: Path | None = None, copy: bool = False) -> Manifest:
    return import_pair(ImportRequest(folder, draft, out, copy=copy), Stages())


def change(folder: Path, edit: Callable[[ir.Model], None]) -> Path:
    """Edit a folder's graph in place and leave its weights."""
    model = ir.load(folder / GRAPH)
    edit(model)
    ir.save(model, folder / GRAPH)
    return folder


def attention(model: ir.Model) -> list[ir.Node]:
    return [node for node in model.graph if node.op_type == "GroupQueryAttention"]


def test_import_leaves_the_weights_in_place(built: Path, tmp_path: Path) -> None:
    manifest = imported(built, tmp_path / "pack")
    entry = manifest.models["target"]
    files = {path.relative_to(tmp_path / "pack").as_posix() for path in (tmp_path / "pack").rglob("*.*")}
    assert files == {"edgedecode.json", "tokenizer.json", "chat_template.jinja", "target/base.onnx"}
    assert manifest.outside[entry.weights].path == str((built / WEIGHTS).resolve())
    assert manifest.weights_nbytes("target") == (built / WEIGHTS).stat().st_size
    assert (entry.rows, entry.context, entry.layers, entry.kv_heads, entry.head_size) == (352, 256, 2, 2, 16)
    assert (entry.bits, entry.block_size, entry.head_bits, entry.hidden_size) == (4, 32, 4, 64)
    assert entry.graphs["base"].capabilities == ("tree", "rows")
    assert set(manifest.generation.end_token_ids) >= {3, 5}
    for way in ("max", "crop", "pieces", "tree", "source"):
        assert entry.parity[f"{way}_error"] < 1e-3, way


def test_import_with_copy_makes_a_movable_pack(built: Path, hub: Hub, tmp_path: Path) -> None:
    manifest = imported(built, tmp_path / "pack", copy=True)
    assert not manifest.outside
    check_download(hub, tmp_path / "pack")
    (tmp_path / "pack").rename(tmp_path / "moved")
    with edgedecode.load(tmp_path / "moved") as pair:
        assert pair.session().generate("hello", max_tokens=8).tokens


def test_imported_pair_decodes_like_its_target_alone(built: Path, tmp_path: Path) -> None:
    manifest = imported(built, tmp_path / "pack", draft=built)
    assert set(manifest.models) == {"target", "draft"}
    with edgedecode.load(tmp_path / "pack") as pair:
        if not pair.target.card.row_invariant:
            pytest.skip("the engine's rows depend on a pass's width")
        texts = [
            pair.session(SessionOptions(drafter=drafter, details=SessionDetails(reproducible=True)))
            .generate("hello", max_tokens=24)
            .tokens
            for drafter in ("none", "model", "suffix")
        ]
    assert texts[0] == texts[1] == texts[2]


def test_viewed_tables_share_a_tied_table(built: Path) -> None:
    model = ir.load(built / GRAPH)
    assert "Reshape" in {node.op_type for node in model.graph}
    viewed_tables(model)
    assert "Reshape" not in {node.op_type for node in model.graph}
    lookup = next(node for node in model.graph if node.op_type == "GatherBlockQuantized")
    assert lookup.inputs[0].shape == ir.Shape([352, 32])


@pytest.mark.parametrize("precision", ["fp32", "int4"])
def test_import_of_untied_and_float_models(precision: str, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", TinyModel())
    folder = build(model, tmp_path / "folder", "include_hidden_states=true", precision=precision)
    entry = imported(folder, tmp_path / "pack").models["target"]
    assert entry.bits == (32 if precision == "fp32" else 4)
    assert entry.parity["source_error"] < 1e-3
    assert entry.graphs["base"].outputs[:2] == ("logits", "present.0.key")


def test_import_limits_the_context_to_the_window(copied: Path, tmp_path: Path) -> None:
    def narrow(model: ir.Model) -> None:
        for node in attention(model):
            node.attributes["local_window_size"] = ir.AttrInt64("local_window_size", 96)
            node.attributes["sliding_window_cache"] = ir.AttrInt64("sliding_window_cache", 1)

    entry = imported(change(copied, narrow), tmp_path / "pack").models["target"]
    assert entry.context == 96
    assert entry.notes == ("context limited to 96 of 256 tokens: the model's sliding window",)


def test_import_follows_a_link_to_the_weights(copied: Path, tmp_path: Path) -> None:
    (copied / WEIGHTS).rename(tmp_path / "blob")
    (copied / WEIGHTS).symlink_to(tmp_path / "blob")
    manifest = imported(copied, tmp_path / "pack")
    assert [file.path for file in manifest.outside.values()] == [str((tmp_path / "blob").resolve())]
    edgedecode.load(tmp_path / "pack").close()


def test_load_refuses_changed_and_moved_weights(copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path / "cache"))
    imported(copied, tmp_path / "pack")
    content = (copied / WEIGHTS).read_bytes()
    (copied / WEIGHTS).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ManifestError, match=r"does not have the content .* put it back, or import it again"):
        edgedecode.load(tmp_path / "pack")
    (copied / WEIGHTS).rename(copied / "elsewhere")
    with pytest.raises(ManifestError, match="no longer exists"):
        edgedecode.load(tmp_path / "pack")


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def edited(edit: Callable[[ir.Model], None]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        change(folder, edit)

    return apply


DECODER = {"head_size": 16, "hidden_size": 64, "num_hidden_layers": 2, "num_key_value_heads": 2}


def configured(**changes: object) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / "genai_config.json"
        config = json.loads(path.read_text())
        config["model"] |= changes
        path.write_text(json.dumps(config))

    return apply


def renamed_attention(kind: str) -> Callable[[ir.Model], None]:
    def apply(model: ir.Model) -> None:
        for node in attention(model):
            node.op_type = kind

    return apply


def float16_outputs(model: ir.Model) -> None:
    for value in model.graph.outputs:
        value.type = ir.TensorType(ir.DataType.FLOAT16)


def another_input(model: ir.Model) -> None:
    model.graph.inputs.append(
        ir.Value(name="prompt_lengths", type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([1]))
    )


def renamed_logits(model: ir.Model) -> None:
    model.graph.outputs[0].name = "scores"


def operator_of_another_provider(model: ir.Model) -> None:
    attention(model)[0].domain = "com.qti.aisw"


def weights_inside(folder: Path) -> None:
    model = ir.load(folder / GRAPH)
    for value in model.graph.initializers.values():
        value.const_value = ir.tensor(value.const_value.numpy(), name=value.name, dtype=value.dtype)
    ir.save(model, folder / GRAPH)


def weights_elsewhere(model: ir.Model) -> None:
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if isinstance(tensor, ir.ExternalTensor):
            value.const_value = ir.ExternalTensor(
                f"../{WEIGHTS}", tensor.offset, tensor.length, tensor.dtype, shape=tensor.shape, name=str(value.name)
            )


def many_tokens(folder: Path) -> None:
    inner = byte_fallback()
    inner.add_tokens([f"<{index}>" for index in range(400)])
    inner.save(str(folder / "tokenizer.json"))


def truncated(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-5000])


def constant_elsewhere(model: ir.Model) -> None:
    tensor = ir.ExternalTensor("/etc/hostname", 0, 4, ir.DataType.UINT8, shape=ir.Shape([4]), name="c", base_dir="/")
    model.graph.append(ir.node("Constant", [], {"value": tensor}))


CASES: dict[str, tuple[Callable[[Path], None], str]] = {
    "no graph": (without(GRAPH), "has no model.onnx: give the output folder of the exporter"),
    "no builder's folder": (
        without("genai_config.json"),
        "has no genai_config.json: .* GGUF file to `import --target`",
    ),
    "no tokenizer": (without("tokenizer.json"), "has no tokenizer.json: copy it there"),
    "larger tokenizer": (many_tokens, "do not belong together"),
    "no weights": (without(WEIGHTS), "model.onnx.data, which is missing"),
    "truncated weights": (truncated, "is truncated: it has"),
    "weights inside": (weights_inside, "has its weights in the graph's own file: save them as one file next to it"),
    "weights elsewhere": (edited(weights_elsewhere), "not next to it: unsupported"),
    "a constant elsewhere": (edited(constant_elsewhere), "its tensor 'c' is stored in '/etc/hostname'"),
    "no ONNX file": (lambda folder: (folder / GRAPH).write_text("<html>"), "is not a valid ONNX file"),
    "another input": (edited(another_input), "has the unknown input prompt_lengths"),
    "no logits": (edited(renamed_logits), "has the outputs scores.*, but no logits"),
    "concatenated caches": (
        edited(renamed_attention("Attention")),
        "has no GroupQueryAttention, which updates its cache in place: give the base model's folder to .*export",
    ),
    "another attention": (edited(renamed_attention("MultiHeadAttention")), "uses com.microsoft.MultiHeadAttention"),
    "sparse attention": (edited(renamed_attention("SparseAttention")), "uses com.microsoft.SparseAttention"),
    "operator of another provider": (edited(operator_of_another_provider), "uses com.qti.aisw.GroupQueryAttention"),
    "half precision": (edited(float16_outputs), "logits in float16: it was built for another provider"),
    "several parts": (configured(vision={}), "a model of several graphs"),
    "damaged configuration": (lambda folder: (folder / "genai_config.json").write_text("{"), "cannot be read"),
    "no context": (configured(context_length=None), "genai_config.json.model.context_length is .None.: expected int"),
    "graph outside": (configured(decoder={**DECODER, "filename": "../model.onnx"}), "has no ../model.onnx"),
    "no sizes": (configured(decoder={"filename": GRAPH}), "decoder: .*missing required field head_size"),
}


@pytest.mark.parametrize("name", CASES)
def test_import_refuses(name: str, copied: Path, tmp_path: Path) -> None:
    change_folder, message = CASES[name]
    change_folder(copied)
    with pytest.raises(EdgeDecodeError, match=message) as caught:
        imported(copied, tmp_path / "new" / "pack")
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder"]


def test_import_refuses_a_graph_with_only_the_last_rows_logits(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", TinyModel())
    folder = build(model, tmp_path / "folder", "prune_lm_head=true")
    with pytest.raises(EdgeDecodeError, match="build it without prune_lm_head"):
        imported(folder, tmp_path / "pack")


def test_import_checks_the_rewritten_graph(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong_bias(model: ir.Model) -> None:
        attention(model)[0].attributes["scale"] = ir.AttrFloat32("scale", 0.01)

    monkeypatch.setattr("edgedecode.export.imports.foreign_graphs.tree_bias", wrong_bias)
    with pytest.raises(EdgeDecodeError):
        imported(built, tmp_path / "pack")
    assert not (tmp_path / "pack").exists()


def test_import_prints_a_json_report(built: Path, tmp_path: Path, told: Told, refusal: Refusal) -> None:
    out = tmp_path / "pack"
    report = told("import", "--onnx", built, "--out", out, "--license", "MIT")
    assert report["models"]["target"]["weights_nbytes"] == (built / WEIGHTS).stat().st_size
    assert report["models"]["target"]["license"] == "MIT"
    assert "exists and is not empty" in refusal("import", "--onnx", built, "--out", out)


def test_import_loads_no_training_framework(built: Path, tmp_path: Path) -> None:
    code = f"""
import sys
for name in ("torch", "transformers", "safetensors", "onnxruntime_genai"):
    sys.modules[name] = None
from edgedecode.cli import main
sys.exit(main(["import", "--onnx", {str(built)!r}, "--out", {str(tmp_path / "pack")!r}]))
"""
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert child.returncode == 0, child.stderr


def test_imported_pack_generates_the_text_of_onnxruntime_genai(demo_pair: Path, tmp_path: Path) -> None:
    import onnxruntime_genai as genai

    for role in ("target", "draft"):
        shutil.copytree(demo_pair / role, tmp_path / role)
        build(tmp_path / role, tmp_path / f"{role}-onnx")
    imported(tmp_path / "target-onnx", tmp_path / "pack", draft=tmp_path / "draft-onnx")
    model = genai.Model(str(tmp_path / "target-onnx"))
    with edgedecode.load(tmp_path / "pack") as pair:
        for prompt in ("What is the capital of France?", "Tell me a story about a fox."):
            session = pair.session(SessionOptions(drafter="none"))
            reply = session.generate(prompt, max_tokens=60)
            tokens = list(session.tokens)
            start = len(tokens) - len(reply.tokens)
            assert genai_greedy(genai, model, tokens[:start], count=len(reply.tokens)) == tokens[start:]
        drafted = pair.session(SessionOptions(drafter="model", draft_max=2)).generate("What is the capital of France?")
    assert "Paris" in drafted.text
    assert drafted.stats.accepted > 0


def genai_greedy(genai: object, model: object, prompt: list[int], *, count: int) -> list[int]:
    parameters = genai.GeneratorParams(model)  # type: ignore[attr-defined]
    parameters.set_search_options(do_sample=False, max_length=len(prompt) + count + 1)
    generator = genai.Generator(model, parameters)  # type: ignore[attr-defined]
    generator.append_tokens(np.asarray(prompt, np.int32))
    found: list[int] = []
    while len(found) < count and not generator.is_done():
        generator.generate_next_token()
        found.append(int(generator.get_next_tokens()[0]))
    return found
