"""Further graphs of a pack: they share the base graph's weights and match transformers."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from transformers import AutoModelForCausalLM

import edgedecode
from edgedecode import SessionDetails, SessionOptions
from edgedecode.cli import main
from edgedecode.decoding.model import AdapterModel, AdapterUse, LowRank
from edgedecode.errors import CapabilityError, ExportError, InputError
from edgedecode.export.checks import model_checks
from edgedecode.export.graph.graph_request import GRAPHS, GraphRequest
from edgedecode.pack.manifest import Manifest
from tests.conftest import Refusal

from .conftest import export, opened, recipe
from .shapes import SHAPES
from .tiny import write_model

pytestmark = pytest.mark.export

ALL = GraphRequest(GRAPHS, lora_rank=6)
TOKENS = [int(token) for token in np.random.default_rng(1).integers(0, 320, 60)]
USE = AdapterUse(name="trial", digest="t")


@pytest.fixture(scope="module", params=["llama", "llama biases", "qwen2", "qwen2 tied float16"])
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "model", SHAPES[request.param])


@pytest.fixture(scope="module")
def pack(source: Path) -> Path:
    export(source, source.parent / "pack", stored=recipe(32), graphs=ALL)
    return source.parent / "pack"


@pytest.fixture(scope="module")
def manifest(pack: Path) -> Manifest:
    return Manifest.load(pack)


@pytest.mark.parametrize("bits", [4, 8, 16])
def test_variants_share_quantized_weights(source: Path, bits: int, tmp_path: Path) -> None:
    entry = export(source, tmp_path / "pack", stored=recipe(bits), graphs=ALL).models["target"]
    parity = entry.parity
    assert set(entry.graphs) == set(GRAPHS)
    for check in ("max_error", "crop_error", "pieces_error", "tree_error"):
        assert parity[check] < 2e-5 * max(1.0, parity["deviation"]), check
    assert ("kernel_rms_error" in parity) == ("loss_kl" in parity) == (bits < 16)
    if bits < 16:
        assert parity["kernel_rms_error"] < 0.05
        assert parity["kernel_top1"] > 0.8
        assert 0 < parity["loss_kl"] < (0.3 if bits == 4 else 0.005)
    assert 0 < parity["lora_max_error"] < 1e-4
    assert 0 < parity["kv8_rms_error"] < 0.2
    assert parity["kv8_top1"] > 0.7
    assert not (tmp_path / "pack/target/exact.onnx").exists()


def test_manifest_lists_the_capabilities_of_each_graph(manifest: Manifest) -> None:
    graphs = manifest.models["target"].graphs
    assert {name: graph.capabilities for name, graph in graphs.items()} == {
        "base": ("tree", "rows"),
        "lora": ("tree", "rows", "lora"),
        "kv8": ("tree", "rows"),
    }
    assert [name for name, graph in graphs.items() if graph.kv_type == "int8"] == ["kv8"]
    assert graphs["lora"].lora_rank == 6
    assert graphs["lora"].lora_modules == ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    assert "lora.1.qkv_proj.a" in graphs["lora"].inputs


def test_variants_have_no_weights_of_their_own(manifest: Manifest, pack: Path) -> None:
    for graph in manifest.models["target"].graphs.values():
        model = onnx.load(pack / graph.file, load_external_data=False)
        inside = [tensor for tensor in model.graph.initializer if tensor.data_location != onnx.TensorProto.EXTERNAL]
        assert sum(np.prod(tensor.dims) for tensor in inside) <= 2 * 2 * 2 * 16  # the 8-bit cache's scales
        named = {entry.value for t in model.graph.initializer for entry in t.external_data if entry.key == "location"}
        assert named == {"weights.bin"}


@pytest.mark.parametrize("modules", [("k_proj",), ("q_proj", "v_proj"), ()], ids=["k", "q and v", "all"])
def test_lora_graph_matches_merged_weights(
    source: Path, manifest: Manifest, pack: Path, modules: tuple[str, ...]
) -> None:
    network = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    rng, matrices = np.random.default_rng(2), []
    model = opened(manifest.models["target"], pack, "lora")
    assert isinstance(model, AdapterModel)
    for layer, block in enumerate(network.model.layers):
        for path, part in block.named_modules():
            name = path.rpartition(".")[2]
            if name in (modules or model.card.lora_modules):
                outputs, inputs = part.weight.shape
                down = rng.standard_normal((5, inputs), np.float32) * np.float32(0.05)
                matrices.append(LowRank(layer, name, down, rng.standard_normal((outputs, 5), np.float32)))
                part.weight.data += 1.5 * torch.from_numpy(matrices[-1].product())
    assert {part.module for part in matrices} == set(modules or model.card.lora_modules)
    with torch.inference_mode():
        expected = network(torch.tensor([TOKENS])).logits[0].numpy()
    model.add_adapter(USE.digest, matrices)
    state = model.new_state(60)
    found = model.forward(TOKENS, state, rows="all", adapter=replace(USE, scale=1.5)).logits.copy()
    assert np.abs(found - expected).max() < 1e-3
    state.crop(0)
    assert np.abs(model.forward(TOKENS, state, rows="all").logits - expected).max() > 0.1
    model.close()


def test_kv8_graph_is_close_to_float_and_exact_for_trees(manifest: Manifest, pack: Path) -> None:
    base, model = opened(manifest.models["target"], pack), opened(manifest.models["target"], pack, "kv:int8")
    found = model.forward(TOKENS, model.new_state(60), rows="all").logits.copy()
    expected = base.forward(TOKENS, base.new_state(60), rows="all").logits
    assert 0 < np.sqrt(np.mean((found - expected) ** 2)) / expected.std() < 0.2
    parents, state = [-1, 0, 0, 1, 2], model.new_state(60)
    model.forward(TOKENS[:20], state, rows="none")
    state.keep(range(20))
    tree = np.concatenate(
        [
            model.forward(TOKENS[20:23], state, parents=parents[:3], rows="all").logits.copy(),
            model.forward(TOKENS[23:25], state, parents=parents[3:], rows="all").logits.copy(),
        ]
    )
    for path in ([0, 1, 3], [0, 2, 4]):
        state.crop(20)
        chain = model.forward([TOKENS[20 + node] for node in path], state, rows="all").logits
        assert np.abs(chain - tree[path]).max() < 1e-3
    base.close()
    model.close()


def test_export_refuses_a_kv8_graph_with_too_much_loss(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_checks, "LOOSE", 1e-6)
    with pytest.raises(ExportError, match="leave kv8 out of --graphs"):
        export(llama, tmp_path / "pack", graphs=GraphRequest(("base", "kv8")))
    assert not (tmp_path / "pack").exists()


@pytest.mark.parametrize(
    ("graphs", "rank", "words"),
    [
        ("base,kv4", 16, "no graph is called 'kv4'"),
        ("lora", 0, "--lora-rank 0"),
        ("kv8", 8, "needs a lora graph: add lora to --graphs"),
    ],
)
def test_graph_request_refuses_invalid_values(graphs: str, rank: int, words: str) -> None:
    with pytest.raises(InputError, match=words):
        GraphRequest.of(graphs, lora_rank=rank)


def test_graph_request_always_starts_with_the_base_graph() -> None:
    assert GraphRequest.of("kv8, lora,kv8") == GraphRequest(("base", "lora", "kv8"))


def test_export_with_kv8_generates_with_kv_type_int8(llama: Path, tmp_path: Path, refusal: Refusal) -> None:
    pack = tmp_path / "pack"
    export_words = ["export", "--target", str(llama), "--out", str(pack), "--graphs", "kv8", "--noise-positions", "0"]
    assert main(export_words) == 0
    files = {path.name for path in (pack / "target").iterdir()}
    assert files == {"base.onnx", "kv8.onnx", "weights.bin", "gguf.json"}
    with edgedecode.load(pack, kv_type="int8") as pair:
        assert pair.target.card.kv_type == "int8"
    generate_words = ["generate", "-m", str(pack), "-p", "hello", "--max-tokens", "4", "--temp", "0"]
    assert main([*generate_words, "--kv-type", "int8"]) == 0
    export(llama, tmp_path / "plain")
    assert "--graphs base,kv8" in refusal("generate", "-m", str(tmp_path / "plain"), "-p", "hello", "--kv-type", "int8")


def test_load_int8_keeps_floats_for_a_draft_without_kv8(llama: Path, tmp_path: Path) -> None:
    manifest = export(llama, tmp_path / "pack", draft=llama, graphs=GraphRequest(("base", "kv8")))
    with edgedecode.load(tmp_path / "pack", kv_type="int8") as pair:
        assert pair.draft.card.kv_type == "int8"
    draft = replace(manifest.models["draft"], graphs={"base": manifest.models["draft"].graphs["base"]})
    files = {name: entry for name, entry in manifest.files.items() if name != "draft/kv8.onnx"}
    changed = replace(manifest, models={**manifest.models, "draft": draft}, files=files)
    (tmp_path / "pack/edgedecode.json").write_text(changed.to_json())
    (tmp_path / "pack/draft/kv8.onnx").unlink()
    with edgedecode.load(tmp_path / "pack", kv_type="int8") as pair:
        assert (pair.target.card.kv_type, pair.draft.card.kv_type) == ("int8", "float32")
    with pytest.raises(InputError, match="unknown KV type"):
        edgedecode.load(tmp_path / "pack", kv_type="int4")


def test_open_names_the_missing_graph(llama: Path, tmp_path: Path) -> None:
    manifest = export(llama, tmp_path / "pack")
    with pytest.raises(CapabilityError, match="--graphs base,lora"):
        opened(manifest.models["target"], tmp_path / "pack", "lora")


def test_variants_add_at_most_3_percent_to_the_size(demo_pair: Path, tmp_path: Path) -> None:
    manifest = export(demo_pair / "target", tmp_path / "four", draft=demo_pair / "draft", graphs=GraphRequest(GRAPHS))
    four = sum(path.stat().st_size for path in (tmp_path / "four").rglob("*") if path.is_file())
    more = [graph for entry in manifest.models.values() for name, graph in entry.graphs.items() if name != "base"]
    one = four - sum(manifest.files[graph.file].nbytes for graph in more)
    one -= sum(len(json.dumps(asdict(graph))) for graph in more)  # approximately their part of the manifest
    print(four, one, four / one)
    assert four <= 1.03 * one


def test_drafts_with_int8_cache_leave_the_text_unchanged(llama: Path, tmp_path: Path) -> None:
    """Lossless against the model with the int8 graph."""
    export(llama, tmp_path / "pack", draft=llama, graphs=GraphRequest(("base", "kv8")))
    texts = set()
    with edgedecode.load(tmp_path / "pack", kv_type="int8") as pair:
        if not pair.target.card.row_invariant:
            pytest.skip("the engine's rows depend on a pass's width")
        for length in (0, 1, 2, 4, 8):
            options = SessionOptions(draft_max=length, details=SessionDetails(reproducible=True, ignore_eos=True))
            with pair.session(options) as session:
                session.generate("hello there", max_tokens=48)
                texts.add(tuple(session.tokens))
    assert len(texts) == 1
