"""Adapters of GGUF files on our own kernels: answers are those of weights with the change merged."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

import edgedecode
from edgedecode import SamplingOptions, SessionOptions
from edgedecode.adapters import adapter_change
from edgedecode.adapters.adapter_change import add_adapter
from edgedecode.adapters.adapter_parts import graph_projections
from edgedecode.adapters.gguf_adapter import LORA_RANK, graph_products, read_gguf_matrices
from edgedecode.adapters.peft_folder import CONFIG, WEIGHTS, read_peft_adapter
from edgedecode.arrays import FloatArray
from edgedecode.cli import main
from edgedecode.decoding.model import AdapterModel, AdapterUse, LowRank
from edgedecode.engines.interface import ModelRequest
from edgedecode.engines.registry import find_runtime
from edgedecode.gguf.header import read_header
from edgedecode.library.find import find_pack
from edgedecode.library.names import BUNDLED_PACK
from edgedecode.memory.budget import Budget
from edgedecode.memory.limit import Limit
from edgedecode.pack.manifest import Manifest
from edgedecode.runtimes.onnx.gguf.opening import gguf_graph, with_gguf_graph
from edgedecode.runtimes.onnx.kernels.trial import tried
from tests.conftest import Refusal
from tests.peft_folders import LAYER, PARENTS, safetensors
from tests.peft_folders import write_peft as write_random
from tests.small_tokenizers import byte_level

from .files import HEAD_SIZE, HIDDEN, MLP, File, Floats, tensors, write_adapter, write_file

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytestmark = pytest.mark.skipif(tried() is None, reason="GGUF files need edgedecode's own kernels")

RANK, ALPHA = 4, 6.0
PLACES = {
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_output",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
}
USE = AdapterUse(name="formal", digest="f")


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path / "cache"))


STACKED = {"qkv_proj": "attn_qkv", "o_proj": "attn_output", "gate_up_proj": "ffn_up", "down_proj": "ffn_down"}
WIDTHS = {"qkv_proj": 3 * HIDDEN, "gate_proj": MLP, "up_proj": MLP, "gate_up_proj": 2 * MLP}
"""Outputs, where they are not the hidden size."""


def matrices(places: Mapping[str, str], *, rank: int = RANK) -> dict[tuple[int, str], tuple[Floats, Floats]]:
    """Return PEFT's A and B by layer and module."""
    rng = np.random.default_rng(5)
    found = {}
    for layer in range(2):
        for module in places:
            shapes = (rank, MLP if module == "down_proj" else HIDDEN), (WIDTHS.get(module, HIDDEN), rank)
            down, up = (rng.standard_normal(shape).astype(np.float32) / 4 for shape in shapes)
            found[layer, module] = down, up
    return found


def converted(values: Floats, module: str, *, size: int = HEAD_SIZE) -> Floats:
    """Return the rows of a llama's weight, with heads of this size, as llama.cpp's converter orders them."""
    if module not in ("q_proj", "k_proj"):
        return values
    return values.reshape(len(values) // size, 2, size // 2, -1).swapaxes(1, 2).reshape(values.shape)


def write_gguf(path: Path, changes: Sequence[LowRank], *, size: int) -> Path:
    """Write the adapter as `convert_lora_to_gguf` does."""
    sides = {}
    for change in changes:
        name = f"blk.{change.layer}.{PLACES[change.module]}.weight"
        sides[f"{name}.lora_a"] = change.down
        sides[f"{name}.lora_b"] = converted(change.up, change.module, size=size) / np.float32(ALPHA / change.rank)
    return write_adapter(path, modules=(), invocation=(), more=sides)


def deltas(places: Mapping[str, str]) -> dict[str, Floats]:
    return {
        f"blk.{layer}.{places[module]}.weight": converted(up @ down * np.float32(ALPHA / RANK), module)
        for (layer, module), (down, up) in matrices(places).items()
    }


def write_peft(folder: Path, places: Mapping[str, str] = PLACES, *, rank: int = RANK) -> Path:
    folder.mkdir()
    values = {}
    for (layer, module), sides in matrices(places, rank=rank).items():
        for side, matrix in zip("AB", sides, strict=True):
            values[LAYER.format(layer, f"{PARENTS.get(module, 'mlp')}.{module}", side)] = matrix
    (folder / WEIGHTS).write_bytes(safetensors(values))
    (folder / CONFIG).write_text(json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": ALPHA}), encoding="utf-8")
    return folder


def logits_of(path: Path, *needs: str, adapter: Sequence[LowRank] = ()) -> FloatArray:
    pack = find_pack(path)
    manifest = Manifest.load(pack)
    request = ModelRequest(manifest.located("target"), pack, "target", manifest.vocabulary_size, Budget(), threads=1)
    model = find_runtime("onnx").open(replace(request, needs=needs))
    if adapter:
        assert isinstance(model, AdapterModel)
        model.add_adapter(USE.digest, adapter)
    state = model.new_state(64)
    tokens = [7 * token % 300 for token in range(64)]
    logits = model.forward(tokens, state, rows="all", adapter=USE if adapter else None).logits.copy()
    state.close()
    model.close()
    return logits


def rounding(file: File) -> Mapping[str, Floats]:
    """Return what storing the weights in the file's blocks changes."""
    if file.kind == "F32":
        return {}
    number = GGMLQuantizationType[file.kind]
    return {
        name: dequantize(quantize(values, number), number) - values
        for name, values in tensors(file).items()
        if values.ndim == 2
    }


LLAMA, PHI = File(kind="Q8_0"), File(kind="Q8_0", architecture="phi3", stacked=True)


@pytest.mark.parametrize(
    ("file", "places"),
    [(replace(LLAMA, kind="F32"), PLACES), (LLAMA, PLACES), (replace(LLAMA, kind="Q4_1"), PLACES), (PHI, STACKED)],
    ids=["floats", "Q8_0", "Q4_1", "stacked"],
)
def test_a_peft_adapter_equals_merged_weights(file: File, places: Mapping[str, str], tmp_path: Path) -> None:
    path, adapter = write_file(tmp_path / "a.gguf", byte_level(), file), write_peft(tmp_path / "peft", places)
    changed = rounding(file)
    added = {name: delta + changed.get(name, np.float32(0)) for name, delta in deltas(places).items()}
    merged = replace(file, kind="F32", added={**changed, **added})
    expected = logits_of(write_file(tmp_path / "merged.gguf", byte_level(), merged))
    found = logits_of(path, "lora", adapter=read_peft_adapter(adapter / CONFIG, adapter / WEIGHTS).matrices())
    assert np.abs(found - expected).max() < 1e-3 * expected.std()
    plain = logits_of(path)
    assert np.abs(plain - expected).max() > 0.5 * expected.std()
    assert np.array_equal(logits_of(path, "lora"), plain)


def test_an_adapter_of_a_stacked_query_key_and_value_equals_merged_weights(tmp_path: Path) -> None:
    """Rows of query and key are in the order of the file, those of value are not reordered."""
    file, name = File(stacked=True), "blk.0.attn_qkv.weight"
    down, up = matrices(STACKED)[0, "qkv_proj"]
    sides = {f"{name}.lora_a": down, f"{name}.lora_b": up}
    adapter = write_adapter(tmp_path / "formal.gguf", modules=(), invocation=(), more=sides)
    path = write_file(tmp_path / "a.gguf", byte_level(), file)
    model = Manifest.load(find_pack(path)).models["target"]
    found = logits_of(path, "lora", adapter=read_gguf_matrices(adapter, model, name="target").matrices())
    merged = replace(file, added={name: up @ down * np.float32(ALPHA / RANK)})
    expected = logits_of(write_file(tmp_path / "merged.gguf", byte_level(), merged))
    assert np.abs(found - expected).max() < 1e-3 * expected.std()
    assert np.abs(logits_of(path) - expected).max() > 0.5 * expected.std()


def generate(pack: Path, *, adapter: str | None, drafter: str = "none") -> str:
    options = SessionOptions(drafter=drafter, sampling=SamplingOptions(temperature=0.0), adapter=adapter)
    with edgedecode.load(pack, runtime="onnx", adapters=True) as pair, pair.session(options) as session:
        return session.generate("the quick fox the quick fox", max_tokens=60).text


def test_a_pack_of_two_files_takes_adapters_of_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Drafts change no answer with an adapter, with one of the draft model's own, and without."""
    target = write_file(tmp_path / "a.gguf", byte_level(), File(kind="Q8_0"))
    draft = write_file(tmp_path / "b.gguf", byte_level(), File(kind="Q4_0"))
    pack, source = tmp_path / "pack", write_peft(tmp_path / "peft")
    assert main(["import", "--target", str(target), "--draft", str(draft), "--out", str(pack)]) == 0
    plain = generate(pack, adapter=None)
    assert main(["adapter", "add", str(pack), f"formal={source}"]) == 0
    adapted = generate(pack, adapter="formal")
    assert adapted != plain
    assert generate(pack, adapter=None, drafter="model") == plain
    assert generate(pack, adapter="formal", drafter="model") == adapted
    matrices = read_peft_adapter(source / CONFIG, source / WEIGHTS).matrices()
    add_adapter(pack, "draft:formal", write_gguf(tmp_path / "formal.gguf", matrices, size=HEAD_SIZE))
    assert generate(pack, adapter="formal", drafter="model") == adapted
    capsys.readouterr()
    words = ["-m", str(pack), "--runtime", "onnx", "-n", "8", "--temp", "0", "-p", "the quick fox the quick fox"]
    assert main(["generate", *words, "--adapter", "formal"]) == 0
    assert main(["adapter", "list", str(pack)]) == 0
    assert "onnx, llama" in capsys.readouterr().out


NORMS = {f"blk.{layer}.attn_{each}_norm.weight": np.ones(HEAD_SIZE, np.float32) for layer in (0, 1) for each in "qk"}


@pytest.mark.parametrize(
    ("file", "modules"),
    [
        (LLAMA, {"qkv_proj", "gate_proj"}),
        (PHI, {"qkv_proj", "gate_proj"}),
        (File(architecture="qwen3", replaced=NORMS), {"q_proj", "k_proj", "v_proj", "gate_proj"}),
    ],
    ids=["joined", "stacked", "norms between"],
)
def test_planned_products_are_those_of_the_graph(file: File, modules: set[str], tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.gguf", byte_level(), file)
    pack = find_pack(path)
    entry = with_gguf_graph(Manifest.load(pack).located("target"), pack)
    graph, _ = gguf_graph(entry, path, entry.graphs["lora"], digest="", findings={})
    shapes = {name: tensor.dims for name, tensor in graph.initializers.items()}
    found = list(graph_products(read_header(path)))
    assert sorted(map(astuple, found)) == sorted(map(astuple, graph_projections(shapes)))
    assert {each.module for each in found} == modules | {"up_proj", "down_proj", "o_proj"}


@pytest.mark.parametrize("modules", [["q_proj"], list(PLACES)], ids=["query", "all"])
def test_an_adapter_of_a_file_fits_what_is_planned_for_it(modules: list[str], tmp_path: Path) -> None:
    pack = tmp_path / "pack"
    assert (
        main(["import", "--target", str(write_file(tmp_path / "a.gguf", byte_level(), LLAMA)), "--out", str(pack)]) == 0
    )
    add_adapter(pack, "odd", write_peft(tmp_path / "odd", {each: PLACES[each] for each in modules}, rank=64))
    options = SessionOptions(adapter="odd", drafter="none")
    planned = dict(edgedecode.plan(pack, options, runtime="onnx").memory.holders)
    with (
        edgedecode.load(pack, runtime="onnx", adapters=True) as pair,
        pair.session(replace(options, adapter=None)) as session,
    ):
        pair.budget.limit = Limit(pair.budget.used_nbytes + planned["adapter:odd"])
        session.use_adapter("odd")
        (held,) = [lease.nbytes for lease in pair.budget.leases if lease.name == "adapter:odd"]
    assert 0 < held <= planned["adapter:odd"]


@pytest.mark.parametrize("kind", ["file", "graphs"])
def test_an_adapter_in_a_gguf_file_equals_the_folder_of_peft(kind: str, tmp_path: Path) -> None:
    pack = tmp_path / "pack"
    if kind == "file":
        source = write_peft(tmp_path / "peft")
        assert (
            main(["import", "--target", str(write_file(tmp_path / "a.gguf", byte_level(), LLAMA)), "--out", str(pack)])
            == 0
        )
    else:
        source = write_random(tmp_path / "peft", seed=2, rank=RANK)
        shutil.copytree(BUNDLED_PACK, pack)
    size = Manifest.load(pack).models["target"].head_size
    changes = read_peft_adapter(source / CONFIG, source / WEIGHTS).matrices()
    file = write_gguf(tmp_path / "formal.gguf", changes, size=size)
    for name, given in (("peft", source), ("file", file)):
        add_adapter(pack, name, given)
    assert Manifest.load(pack).adapters["file"].modules == Manifest.load(pack).adapters["peft"].modules
    texts = [generate(pack, adapter=name) for name in ("peft", "file", None)]
    assert texts[0] == texts[1] != texts[2]
    found = read_gguf_matrices(file, Manifest.load(pack).models["target"], name="target").matrices()
    for one, other in zip(changes, found, strict=True):
        assert (one.layer, one.module) == (other.layer, other.module)
        assert np.array_equal(one.down, other.down)
        np.testing.assert_allclose(one.up, other.up, rtol=1e-6)


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_ranks_above_that_of_our_kernels_are_refused_when_an_adapter_is_added(
    kind: str, tmp_path: Path, refusal: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack, limit = tmp_path / "pack", 8
    monkeypatch.setattr(adapter_change, "LORA_RANK", limit)
    assert main(["import", "--target", str(write_file(tmp_path / "a.gguf", byte_level())), "--out", str(pack)]) == 0
    for rank in (limit, limit + 1):
        source = write_peft(tmp_path / f"peft{rank}", rank=rank)
        if kind == "file":
            changes = read_peft_adapter(source / CONFIG, source / WEIGHTS).matrices()
            source = write_gguf(tmp_path / f"{rank}.gguf", changes, size=HEAD_SIZE)
        if rank == limit:
            add_adapter(pack, "fits", source)
        else:
            line = refusal("adapter", "add", str(pack), f"odd={source}")
            assert "an adapter of rank 9 does not fit the pack's target, which takes ranks up to 8: give" in line
    assert [path.name for path in (pack / "adapters").iterdir()] == ["fits"]
    graph = with_gguf_graph(Manifest.load(pack).located("target"), pack).graphs["lora"]
    assert graph.lora_rank == LORA_RANK == 256


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"output.weight.lora_a": (4, HIDDEN), "output.weight.lora_b": (352, 4)}, "which only llama.cpp does"),
        ({"blk.0.attn_q.weight.lora_a": (4, HIDDEN)}, "one half of a product"),
        ({"blk.0.attn_q.weight.lora_a": (4, 32), "blk.0.attn_q.weight.lora_b": (32, 4)}, "is for another model"),
    ],
    ids=["output", "half", "sizes"],
)
def test_an_adapter_that_does_not_fit_a_pack_of_graphs_is_refused(
    more: Mapping[str, tuple[int, int]], message: str, tmp_path: Path, refusal: Refusal
) -> None:
    pack = tmp_path / "pack"
    shutil.copytree(BUNDLED_PACK, pack)
    sides = {name: np.ones(shape, np.float32) for name, shape in more.items()}
    file = write_adapter(tmp_path / "bad.gguf", modules=(), invocation=(), more=sides)
    assert message in refusal("adapter", "add", str(pack), f"bad={file}")
