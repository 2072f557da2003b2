"""`bench --scale`: the widened pack gives the same text, has the requested size, and is cached."""

import errno
import json
import os
import shutil
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

import edgedecode
from edgedecode import CapabilityError, EdgeDecodeError, InputError, Pair, SamplingOptions, SessionOptions
from edgedecode.bench.scale import scaled
from edgedecode.bench.scale.mlps import find_mlps
from edgedecode.bench.scale.scaled import scaled_pack
from edgedecode.bench.scale.widening import Widening
from edgedecode.cli import main
from edgedecode.library.names import BUNDLED_PACK
from edgedecode.memory.budget import Budget
from edgedecode.onnx_format.graph_file import GraphFile
from edgedecode.onnx_format.node import Node
from edgedecode.pack.integrity import check_files
from edgedecode.pack.manifest import Manifest, ModelEntry
from tests.apps.packs import sign
from tests.conftest import Refusal

QUICK = ("bench", "--runtime", "onnx", "--quick")
PROMPTS = (
    "Write a story with a frog, a pebble and a harbor.",
    "77 + 47 =",
    "What is the capital of France?",
    "Tell me a short story about a squirrel named Elsa.",
)
SIZE = 40_000_000


def widen(scale: str = "40MB", *, model: Path | None = None, runtime: str | None = None) -> Path:
    return scaled_pack(Namespace(scale=scale, model=model, runtime=runtime))


def load(pack: Path | None, **options: object) -> Pair:
    return edgedecode.load(pack, runtime="onnx", threads=1, **options)  # type: ignore[arg-type]


def answers(pair: Pair, **options: object) -> list[str]:
    found = []
    for prompt in PROMPTS:
        with pair.session(SessionOptions(sampling=SamplingOptions(temperature=0), **options)) as session:
            found.append(session.generate(prompt, max_tokens=48).text)
    return found


def logits(pair: Pair) -> np.ndarray:
    tokens = [token for prompt in PROMPTS for token in pair.tokenizer.encode(prompt)]
    state = pair.target.new_state(len(tokens))
    rows = pair.target.forward(tokens, state, rows="all").logits.copy()
    state.close()
    return rows


@pytest.fixture(scope="module")
def module_cache(pack: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    del pack
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def wide(module_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The bundled pack widened to 40 MB, built once per module."""
    monkeypatch.setenv("EDGEDECODE_CACHE", str(module_cache))
    return widen()


@pytest.fixture
def cache(pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A fresh cache; no partial pack may be left in it."""
    del pack
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path / "cache"))
    yield tmp_path / "cache"
    folder = tmp_path / "cache" / "scaled"
    assert [path for path in (folder.iterdir() if folder.is_dir() else ()) if path.name.startswith(".")] == []


def test_scaled_pack_generates_the_same_text(wide: Path) -> None:
    with load(None) as original, load(wide) as larger:
        for options in ({"drafter": "none"}, {"drafter": "model", "draft_max": 4}):
            assert answers(larger, **options) == answers(original, **options)
        before, after = logits(original), logits(larger)
    assert np.array_equal(before.argmax(-1), after.argmax(-1))
    assert np.abs(before - after).max() < 0.02  # the order of summation differs


def test_scaled_pack_widens_every_graph(wide: Path) -> None:
    with load(None, kv_type="int8") as original, load(wide, kv_type="int8") as larger:
        assert np.array_equal(logits(original).argmax(-1), logits(larger).argmax(-1))
    with load(None) as original, load(wide) as larger:
        assert answers(larger, drafter="tree", draft_max=2) == answers(original, drafter="tree", draft_max=2)
        assert larger.manifest.models["draft"].trimmed is None


def test_scaled_pack_has_the_requested_size(wide: Path) -> None:
    manifest, original = Manifest.load(wide), Manifest.load(BUNDLED_PACK)
    check_files(manifest, wide, full=True)
    assert abs(manifest.weights_nbytes("target") / SIZE - 1) < 0.02
    assert abs(manifest.weights_nbytes("draft") / (SIZE / 10) - 1) < 0.02
    for role, entry in manifest.models.items():
        grown = manifest.weights_nbytes(role) - original.weights_nbytes(role)
        parameters = entry.parameters - original.models[role].parameters
        assert 1.1 < grown / parameters < 1.15  # 8 bits, and a float for each block of 32
        assert "lora" not in entry.graphs
        assert (entry.gguf_plan, entry.equality) == ("", None)
        assert entry.kernel_noise == original.models[role].kernel_noise


def test_scaled_pack_keeps_a_draft_that_is_large_enough(cache: Path) -> None:
    manifest, original = Manifest.load(widen("20MB")), Manifest.load(BUNDLED_PACK)
    assert abs(manifest.weights_nbytes("target") / 20e6 - 1) < 0.02
    assert manifest.files["draft/weights.bin"] == original.files["draft/weights.bin"]


def test_scaled_pack_has_random_units_with_zero_output_weights(wide: Path) -> None:
    onnx = pytest.importorskip("onnx")
    model = onnx.load(wide / "target" / "base.onnx")
    values = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    name = "model.layers.3.mlp.{}_proj.{}"
    for side in ("gate", "up"):
        packed = values[name.format(side, "packed")].astype(np.float32) - 128
        weights = packed * values[name.format(side, "scales")][..., None]
        assert 0.98 < weights[768:].std() / weights[:768].std() < 1.02
    blocks = 768 // 32
    assert (values[name.format("down", "packed")][:, blocks:] == 128).all()
    assert not values[name.format("down", "scales")][:, blocks:].any()
    assert values[name.format("down", "scales")][:, :blocks].all()


def test_scaled_pack_is_cached(wide: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(scaled, "_make", None)
    assert widen() == wide
    assert "Widened to 40 MB" in capsys.readouterr().out


def test_scaled_pack_that_is_damaged_is_rebuilt(cache: Path) -> None:
    folder = widen("20MB")
    (folder / "target" / "weights.bin").write_bytes(b"")
    assert widen("20MB") == folder
    check_files(Manifest.load(folder), folder, full=True)


def test_scaled_pack_that_is_interrupted_leaves_no_files(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Widening, "widen_graphs", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            widen("20MB")
    assert list((cache / "scaled").iterdir()) == []
    (cache / "scaled" / ".some.partial-w0").mkdir()  # leftover of a killed process
    folder = widen("20MB")
    assert list((cache / "scaled").iterdir()) == [folder]


def test_scale_refuses_in_one_line(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: Refusal
) -> None:
    assert "less than the target's own 11.8 MB" in refusal(*QUICK, "--scale", "11MB")
    assert "is not a size" in refusal(*QUICK, "--scale", "large")
    with monkeypatch.context() as patch:
        patch.setattr(Widening, "write", Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
        assert "the disk became full" in refusal(*QUICK, "--scale", "20MB")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: Namespace(free=1000))
        assert "free some space" in refusal(*QUICK, "--scale", "20MB")
    with monkeypatch.context() as patch:
        (tmp_path / "file").write_text("")
        patch.setenv("EDGEDECODE_CACHE", str(tmp_path / "file"))
        assert "cannot be written: set EDGEDECODE_CACHE" in refusal(*QUICK, "--scale", "20MB")
    with pytest.raises(CapabilityError, match="leave out --runtime llama"):
        widen("20MB", runtime="llama")


@pytest.mark.usefixtures("tables_too")
def test_bench_measures_the_widened_pack(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--families", "edit", "--repetitions", "1", "-n", "4", "--json", "--runtime", "onnx"]
    assert main(["bench", "--quick", "--scale", "20MB", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "Widened to 20 MB with MLP units whose output weights are zero: the same text at the cost of a larger model."
    )
    figures = json.loads(lines[-1])
    assert "demo, widened to 20 MB" in figures["conditions"]["pack"]
    assert [family["prompts"] for family in figures["families"]] == [1]
    assert main(["cache", "show"]) == 0
    assert "packs widened by bench --scale" in capsys.readouterr().out
    assert main(["cache", "clear", "--scaled"]) == 0
    assert not (cache / "scaled").exists()


def test_scaled_pack_needs_only_numpy_and_onnxruntime(wide: Path) -> None:
    code = f"""
import sys
sys.modules.update(dict.fromkeys(("onnx", "onnx_ir", "torch", "transformers")))
from argparse import Namespace
from edgedecode.bench.scale.scaled import scaled_pack
scaled_pack(Namespace(scale="13MB", model={str(BUNDLED_PACK)!r}, runtime=None))
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(("bits", "block"), [(4, 32), (4, 128), (8, 128)])
def test_widening_keeps_the_logits_of_other_schemes(bits: int, block: int, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    from tests.contract.conftest import open_entry
    from tests.contract.toy_graph import ToyShape, write_toy

    shape = ToyShape(bits=bits, block=block, mlp=256, hidden=128, head_size=32, graphs=("base", "kv8"))
    entry = write_toy(tmp_path / "original", shape)
    larger = widened_toy(entry, tmp_path, nbytes=1_500_000)
    assert abs((tmp_path / "larger" / "weights.bin").stat().st_size / 1_500_000 - 1) < 0.02
    tokens = [int(token) for token in np.random.default_rng(1).integers(0, shape.rows, 100)]
    for needs in ((), ("kv:int8",)):
        rows = []
        for folder, opened in (("original", entry), ("larger", larger)):
            model = open_entry(opened, tmp_path / folder, budget=Budget(), needs=needs)
            state = model.new_state(len(tokens))
            rows.append(model.forward(tokens, state, rows="all").logits.copy())
            state.close()
            model.close()
        assert np.abs(rows[0] - rows[1]).max() < 1e-3 * rows[0].std()


def widened_toy(entry: ModelEntry, folder: Path, *, nbytes: int) -> ModelEntry:
    paths = {name: folder / "original" / graph.file for name, graph in entry.graphs.items()}
    graphs = {name: GraphFile.parse(path.read_bytes()) for name, path in paths.items()}
    widening = Widening(graphs, folder / "original" / entry.weights, layers=entry.layers, name="target")
    units = widening.units_for(nbytes)
    assert units > 0
    (folder / "larger").mkdir()
    written: list[int] = []
    with (folder / "larger" / entry.weights).open("wb") as file:
        widening.write(file, units, progress=written.append)
        assert file.tell() == sum(written) == widening.nbytes(units)
    for name, content in widening.widen_graphs(units).items():
        (folder / "larger" / entry.graphs[name].file).write_bytes(content)
    return replace(entry, parameters=entry.parameters + units * widening.parameters_of_unit)


def test_widening_refuses_models_without_gated_mlps(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    from tests.contract.toy_graph import ToyShape, write_toy

    floats = write_toy(tmp_path, ToyShape())
    graphs = {"base": GraphFile.parse((tmp_path / "base.onnx").read_bytes())}
    with pytest.raises(CapabilityError, match="0 of the 2 MLPs of the target can be widened"):
        Widening(graphs, tmp_path / floats.weights, layers=2, name="target")


def test_find_mlps_skips_a_fused_gate_and_up_matrix() -> None:
    sizes = {"K": 64, "N": 256, "bits": 8, "block_size": 32}
    graph = GraphFile(
        nodes=[
            Node("MatMulNBits", inputs=["x", "w", "s"], outputs=["both"], attributes={**sizes}),
            Node("Split", inputs=["both"], outputs=["gate", "up"]),
            Node("Sigmoid", inputs=["gate"], outputs=["sigmoid"]),
            Node("Mul", inputs=["gate", "sigmoid"], outputs=["silu"]),
            Node("Mul", inputs=["silu", "up"], outputs=["product"]),
            Node("MatMulNBits", inputs=["product", "v", "t"], outputs=["y"], attributes={**sizes, "K": 128, "N": 64}),
        ]
    )
    assert find_mlps(graph) == []
    graph.nodes[1:2] = [
        Node("MatMulNBits", inputs=["x", "w", "s"], outputs=[name], attributes={**sizes, "N": 128})
        for name in ("gate", "up")
    ]
    assert [mlp.units for mlp in find_mlps(graph)] == [128]


def test_scaled_pack_reports_a_broken_graph(cache: Path, pack_copy: Path) -> None:
    (pack_copy / "draft" / "base.onnx").write_bytes(b"\x3a\xff")
    sign(pack_copy, pack_copy / "draft" / "base.onnx")
    with pytest.raises(EdgeDecodeError, match=r"draft/base\.onnx is refused: a number at byte 1 is cut off"):
        widen("20MB", model=pack_copy)
    with pytest.raises(InputError):
        widen("20", model=pack_copy)
