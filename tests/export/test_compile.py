"""`compile` and `export --device`: bad input in one line, and a real model compiled and run on the NPU's emulator."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

import edgedecode
from edgedecode.cli import main
from edgedecode.engines.child import ChildReply
from edgedecode.errors import ManifestError
from edgedecode.library.names import BUNDLED_PACK
from edgedecode.pack import pack_change
from edgedecode.pack.context_check import check_context
from edgedecode.pack.gate import check_pack
from edgedecode.pack.manifest import MANIFEST_NAME, Manifest
from tests.hub import Hub, check_download

pytest.importorskip("onnx_ir")
from edgedecode.export.npu import compile_pack as compiling
from edgedecode.export.npu import compile_request

on_the_emulator = pytest.mark.skipif(
    find_spec("onnxruntime_qnn") is None, reason="onnxruntime-qnn is not installed: pip install 'edgedecode[qnn]'"
)


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    return small_pack(tmp_path / "pack")


def small_pack(folder: Path) -> Path:
    """Write a pack whose target is the bundled draft: trained weights, 1.4 million of them."""
    manifest = Manifest.load(BUNDLED_PACK)
    draft = manifest.models["draft"]
    graphs = {name: draft.graphs[name] for name in ("base", "lora")}
    entry = replace(draft, graphs=graphs, trimmed=None, gguf="", gguf_plan="", activations=None)
    small = replace(manifest, models={"target": entry}, switching=None, files={})
    small = replace(small, files={name: manifest.files[name] for name in sorted(small.named())})
    for name in small.files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(BUNDLED_PACK / name, folder / name)
    (folder / MANIFEST_NAME).write_text(small.to_json(), encoding="utf-8")
    return folder


def run(*words: str | Path) -> int:
    return main([str(word) for word in words])


def refused(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    """Run a command that fails, and return its only line."""
    assert run(*words) == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line


QNN = ("--device", "qnn")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--soc", "58"), r"'58' is not a known system on chip, which are 30: .*57: Snapdragon 8 Gen 3"),
        ((), r"give the chips to compile for"),
        (("--soc", "57,"), r"'' is not a known system on chip"),
        (("--soc", "1" * 5000), r"is not a known system on chip"),
        (("--soc", "57,69,57"), r"57 names a chip twice"),
        (("--soc", "57+57"), r"57\+57 names a chip twice"),
        (("--soc", "93"), r"QCS6490 \(Hexagon v68\) has no 16-bit float products.*leave it out"),
        (("--soc", "57", "--widths", "0"), r"--widths: '0' is not a number of rows from 1 to 512"),
        (("--soc", "57", "--widths", "8,x"), r"--widths: 'x' is not a number of rows"),
        (("--soc", "57", "--widths", "128,32"), r"--widths: the narrowest pass, 32 rows, .*: add a width of 1 to 16"),
        (("--soc", "57", "--widths", "1,2,3,4,5,6,7"), r"--widths: 7 widths, each a copy of the weights: .*at most 6"),
    ],
)
def test_impossible_requests_are_refused_in_one_line(
    words: tuple[str, ...], said: str, pack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import re

    line = refused(capsys, "compile", pack, *QNN, *words)
    assert re.search(said, line), line
    assert (pack / MANIFEST_NAME).read_text(encoding="utf-8") == Manifest.load(pack).to_json()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--context", "2049"), "the pack's models have a context of 2048: give at most that"),
        (("--context", "64", "--widths", "65,1"), "a pass cannot be wider than the context of 64"),
    ],
)
def test_sizes_beyond_the_model_are_refused(
    words: tuple[str, ...], said: str, pack: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compiling, "require_compiler", lambda: None)
    assert said in refused(capsys, "compile", pack, *QNN, "--soc", "57", *words)


def test_soc_list_needs_no_pack(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("compile", "--soc", "list") == 0
    assert "57: Snapdragon 8 Gen 3\n" in capsys.readouterr().out


def test_a_missing_or_other_compiler_is_named_with_its_remedy(
    pack: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("compile", pack, *QNN, "--soc", "57")
    monkeypatch.setattr(compile_request, "find_spec", lambda name: None)
    line = refused(capsys, *words)
    assert "onnxruntime-qnn, which compiles for Hexagon NPUs, is not installed" in line
    assert "pip install 'edgedecode[export,qnn]'" in line
    monkeypatch.setattr(compile_request, "find_spec", lambda name: object())
    monkeypatch.setattr(compile_request, "version", lambda name: "1.24.0")
    assert "onnxruntime-qnn 1.24.0 is installed, 2.7.* is needed" in refused(capsys, *words)


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (ChildReply(failure="its native code died with SIGSEGV"), "not compiled for 57_v75: its native code died"),
        (ChildReply(failure="it did not answer within 3600 s"), "it did not answer within 3600 s"),
        (ChildReply(), "it wrote no file"),
    ],
)
def test_a_compiler_that_crashes_or_hangs_leaves_the_pack_as_it_was(
    reply: ChildReply, said: str, pack: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(path.relative_to(pack) for path in pack.rglob("*"))
    text = (pack / MANIFEST_NAME).read_text(encoding="utf-8")
    monkeypatch.setattr(compiling, "require_compiler", lambda: None)
    monkeypatch.setattr(compiling, "ask_child", lambda *words, **_: reply)
    assert run("compile", pack, *QNN, "--soc", "57", "--context", "64", "--widths", "8") == 1
    assert said in capsys.readouterr().err
    assert sorted(path.relative_to(pack) for path in pack.rglob("*")) == before
    assert (pack / MANIFEST_NAME).read_text(encoding="utf-8") == text
    assert [path.name for path in pack.parent.iterdir() if path.name.startswith(".")] == []


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a pack compiled with two widths for one chip, and for two chips together."""
    pack = small_pack(tmp_path_factory.mktemp("compiled") / "pack")
    words = ("--soc", "57,69+87", "--widths", "8,1", "--context", "128")
    assert run("compile", pack, *QNN, *words) == 0
    return pack


@on_the_emulator
def test_a_compiled_pack_comes_from_the_hub(compiled: Path, hub: Hub) -> None:
    check_download(hub, compiled)


@on_the_emulator
def test_a_real_model_runs_wholly_on_the_emulator_and_agrees_with_the_processor(compiled: Path) -> None:
    graphs = check_pack(compiled).models["target"].graphs
    assert list(graphs) == ["base", "lora", "static-1", "static-8", "static-lora-1", "static-lora-8"]
    for name in ("static-1", "static-8", "static-lora-1", "static-lora-8"):
        graph = graphs[name]
        assert (graph.width, graph.slots) == (int(name.rpartition("-")[2]), 128)
        assert "static" in graph.capabilities
        alone, together = graph.compiled
        assert (alone.socs, together.socs) == ((57,), (69, 87))
        assert alone.agreement >= 0.98
        assert together.agreement is None
        assert alone.sdk.startswith("2.")
        assert alone.file == f"npu/57_v75/target-{name}_ctx.onnx"


def test_graphs_for_openvino_are_made_without_a_compiler(
    pack: Path, hub: Hub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_request, "find_spec", lambda name: None)
    assert run("compile", pack, "--device", "openvino", "--widths", "8,1", "--context", "64", "--json") == 0
    report = {"pack": str(pack), "compiled": [], "device": "openvino", "widths": [1, 8]}
    assert json.loads(capsys.readouterr().out) == report
    graphs = check_pack(pack).models["target"].graphs
    assert set(graphs) == {"base", "lora", "static-1", "static-8", "static-lora-1", "static-lora-8"}
    assert [(graphs[name].width, graphs[name].compiled) for name in ("static-1", "static-8")] == [(1, ()), (8, ())]
    words = ("compile", pack, "--device", "openvino", "--soc", "57")
    assert "--soc 57: --device openvino compiles for no chip: leave --soc out" in refused(capsys, *words)
    check_download(hub, pack)


OPENVINO = ("--device", "openvino", "--context", "64")


def test_a_new_compilation_replaces_the_graphs_and_says_so(pack: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("compile", pack, *OPENVINO, "--widths", "8,1") == 0
    printed = capsys.readouterr()
    assert "graphs of 1, 8 rows; run them with --provider openvino" in printed.out
    assert "will be replaced" not in printed.err
    assert run("compile", pack, *OPENVINO, "--widths", "8") == 0
    assert "the pack's earlier graphs of fixed shapes (1, 8 rows) will be replaced" in capsys.readouterr().err
    manifest = check_pack(pack, full=True)
    assert {name for name in manifest.models["target"].graphs if "static" in name} == {"static-8", "static-lora-8"}
    static = [graph.file for name, graph in manifest.models["target"].graphs.items() if "static" in name]
    assert sorted(path.relative_to(pack).as_posix() for path in pack.rglob("static-*")) == sorted(static)
    with edgedecode.load(pack, runtime="onnx") as pair, pair.session() as session:
        assert session.generate("Tell me a story.", max_tokens=4).tokens


@pytest.mark.parametrize("moment", ["file_entry", "replace_manifest"])
def test_a_replacement_that_fails_keeps_the_earlier_graphs(
    moment: str, pack: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("compile", pack, *OPENVINO, "--widths", "8,1") == 0
    before = {path.relative_to(pack): path.read_bytes() for path in pack.rglob("*") if path.is_file()}
    monkeypatch.setattr(pack_change, moment, Mock(side_effect=OSError(28, "No space left on device")))
    assert run("compile", pack, *OPENVINO, "--widths", "8") == 1
    assert "No space left" in capsys.readouterr().err
    assert {path.relative_to(pack): path.read_bytes() for path in pack.rglob("*") if path.is_file()} == before
    check_pack(pack, full=True)


def test_a_compilation_removes_what_a_killed_one_left(pack: Path) -> None:
    abandoned = pack.parent / f".{pack.name}.partial-w0123abcd"
    abandoned.mkdir()
    (abandoned / "static-8.onnx").write_bytes(b"half")
    folder = (pack / Manifest.load(pack).models["target"].graphs["base"].file).parent
    unnamed = folder / "static-8.onnx"
    unnamed.write_bytes(b"moved before the manifest was replaced")
    assert run("compile", pack, *OPENVINO, "--widths", "8") == 0
    assert not abandoned.exists()
    assert not unnamed.exists()
    check_pack(pack, full=True)


@on_the_emulator
def test_show_lists_what_was_compiled(compiled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", "--full", compiled) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "compiled.1 file " in shown
    assert "provider qnn, socs " in shown


@on_the_emulator
def test_a_compiled_pack_still_runs_on_the_processor(compiled: Path) -> None:
    with edgedecode.load(compiled, runtime="onnx") as pair, pair.session() as session:
        assert session.generate("Tell me a story.", max_tokens=8).tokens


@on_the_emulator
def test_a_second_run_replaces_the_graphs_and_remove_takes_them_out(
    compiled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pack = tmp_path / "pack"
    shutil.copytree(compiled, pack)
    words = ("--soc", "69", "--widths", "4", "--context", "64", "--json")
    assert run("compile", pack, *QNN, *words) == 0
    report = json.loads(capsys.readouterr().out)
    assert [graph["graph"] for graph in report["compiled"]] == ["static-4", "static-lora-4"]
    assert all(
        graph["agreed"] >= 0.95 * graph["positions"] > 0 and graph["error"] < 0.02 for graph in report["compiled"]
    )
    assert not (pack / "npu" / "57_v75").exists()
    check_pack(pack)
    assert run("compile", pack, "--remove") == 0
    assert "npu/69_v79/target-static-4_ctx.onnx" in capsys.readouterr().out
    assert set(check_pack(pack).models["target"].graphs) == {"base", "lora"}
    assert not (pack / "npu" / "69_v79").exists()


@on_the_emulator
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data.replace(b"static-8_ctx_qnn.bin", b"static-1_ctx_qnn.bin"), "does not name"),
        (lambda data: data.replace(b"embed_mode", b"embed_mods"), "unknown attribute"),
        (lambda data: data.replace(b"EPContext", b"EPContexs"), "not one EPContext"),
        (lambda data: data.replace(b"logits", b"logitz"), "inputs or outputs"),
        (lambda data: data[:-40], "."),
    ],
    ids=["other binary", "attribute", "operator", "output", "cut"],
)
def test_a_changed_compiled_graph_is_refused(
    change: Callable[[bytes], bytes], said: str, compiled: Path, tmp_path: Path
) -> None:
    graph = Manifest.load(compiled).models["target"].graphs["static-8"]
    path, binary = tmp_path / "a_ctx.onnx", tmp_path / Path(graph.compiled[0].binary).name
    content = (compiled / graph.compiled[0].file).read_bytes()
    path.write_bytes(content)
    check_context(path, binary, inputs=graph.inputs, outputs=graph.outputs)
    path.write_bytes(change(content))
    with pytest.raises(ValueError, match=said):
        check_context(path, binary, inputs=graph.inputs, outputs=graph.outputs)


@on_the_emulator
def test_a_pack_without_its_binary_is_refused(compiled: Path, tmp_path: Path) -> None:
    pack = tmp_path / "pack"
    shutil.copytree(compiled, pack)
    (pack / "npu" / "57_v75" / "target-static-8_ctx_qnn.bin").unlink()
    with pytest.raises(ManifestError, match=r"target-static-8_ctx_qnn\.bin"):
        check_pack(pack)


@on_the_emulator
def test_both_models_of_a_pair_are_compiled_for_one_context(
    llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "pack"
    assert run("export", "--target", llama, "--draft", llama, "--out", out, "--context", "192") == 0
    capsys.readouterr()
    assert run("compile", out, *QNN, "--soc", "57", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert [graph["graph"] for graph in report["compiled"]] == 2 * ["static-1", "static-8", "static-128"]
    manifest = check_pack(out)
    for entry in manifest.models.values():
        assert {graph.slots for graph in entry.graphs.values() if graph.width} == {192}


def test_a_full_disk_is_refused_before_anything_is_compiled(
    pack: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compiling, "require_compiler", lambda: None)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1_000_000))
    line = refused(capsys, "compile", pack, *QNN, "--soc", "57", "--context", "64", "--widths", "8")
    assert "MB are needed and " in line
    assert "make room, or give fewer chips or widths" in line
