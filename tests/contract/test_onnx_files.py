"""Opening ONNX packs: damaged files, unexpected graphs, missing providers and engines give a one-line error."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from edgedecode.errors import CapabilityError, EdgeDecodeError, InputError, ManifestError, RuntimeUnavailable
from edgedecode.memory.budget import Budget
from edgedecode.pack.manifest import ModelEntry
from edgedecode.runtimes.onnx import OnnxRuntime
from tests.contract.conftest import DAMAGE, Opener, damage, open_entry, request_of
from tests.contract.toy_graph import GRAPH, WEIGHTS, ToyShape


@pytest.fixture
def pack(opener: Opener, tmp_path: Path) -> Path:
    opener.entry(ToyShape())
    return Path(shutil.copytree(opener.root(ToyShape()), tmp_path / "pack"))


@pytest.fixture
def entry(opener: Opener) -> ModelEntry:
    return opener.entry(ToyShape())


def refused(entry: ModelEntry, root: Path) -> str:
    """Open the entry, expect a ManifestError of one line, and check that no lease remains."""
    budget = Budget()
    with pytest.raises(ManifestError) as caught:
        open_entry(entry, root, budget=budget)
    assert "\n" not in str(caught.value)
    assert budget.leases == ()
    return str(caught.value)


def test_open_with_weights_in_another_folder(pack: Path, entry: ModelEntry, tmp_path: Path) -> None:
    together = open_entry(entry, pack, budget=Budget())
    elsewhere = tmp_path / "elsewhere" / WEIGHTS
    elsewhere.parent.mkdir()
    (pack / WEIGHTS).rename(elsewhere)
    apart = open_entry(replace(entry, weights=str(elsewhere)), pack, budget=Budget())
    found = [model.forward([1, 2, 3], model.new_state(8), rows="all").logits for model in (together, apart)]
    assert np.array_equal(*found)
    elsewhere.unlink()
    assert str(elsewhere) in refused(replace(entry, weights=str(elsewhere)), pack)


@pytest.mark.parametrize("name", [GRAPH, WEIGHTS])
@pytest.mark.parametrize("how", DAMAGE)
def test_open_damaged_onnx_files(pack: Path, entry: ModelEntry, name: str, how: str) -> None:
    if how == "noise" and name == WEIGHTS:
        pytest.skip("other weights of the same size are detected by the digest only")
    damage(pack / name, how)
    assert str(pack) in refused(entry, pack)


@pytest.mark.parametrize("place", ["node", "file"])
def test_open_of_an_unreadable_graph_prints_nothing_from_the_engine(
    pack: Path, entry: ModelEntry, place: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Including names that are not UTF-8, which the engine's Python would retry; no raw name reaches the terminal."""
    model = onnx.load(pack / GRAPH, load_external_data=False)
    if place == "node":
        model.graph.node[0].op_type = "Unreadable"
        data = model.SerializeToString().replace(b"Unreadable", b"Unread\xffble")
    else:
        next(tensor for tensor in model.graph.initializer if tensor.external_data).external_data[
            0
        ].value = "\x1b]0;x\x07"
        data = model.SerializeToString()
    (pack / GRAPH).write_bytes(data)
    assert refused(entry, pack).isprintable()
    out, err = capfd.readouterr()
    assert not out
    assert all(line.startswith("edgedecode: ") for line in err.splitlines())  # at most a notice of ours


def test_open_refuses_a_graph_without_the_contracts_inputs(pack: Path, entry: ModelEntry) -> None:
    model = onnx.load(pack / GRAPH, load_external_data=False)
    model.graph.output.pop()
    model.graph.node[-1].output[0] = "scores"
    model.graph.output[0].name = "scores"
    onnx.save(model, pack / GRAPH)
    assert "is not a base graph" in refused(entry, pack)


def test_open_refuses_sizes_that_differ_from_the_manifest(pack: Path, entry: ModelEntry) -> None:
    assert "manifest says" in refused(replace(entry, rows=130), pack)
    assert "manifest says" in refused(replace(entry, kv_heads=4), pack)
    assert "present.2.key" in refused(replace(entry, layers=3), pack)
    assert "unknown input" in refused(replace(entry, layers=1), pack)


def test_open_refuses_a_pack_without_graphs(pack: Path, entry: ModelEntry) -> None:
    with pytest.raises(CapabilityError, match=r"no ONNX graphs .*--formats onnx,gguf.*--runtime llama"):
        open_entry(replace(entry, graphs={}), pack, budget=Budget())


@pytest.mark.parametrize(
    ("provider", "threads", "error", "words"),
    [("nonsense", None, CapabilityError, "it has: cpu"), ("cpu", 0, InputError, "threads")],
)
def test_open_refuses_bad_options(
    pack: Path, entry: ModelEntry, provider: str, threads: int | None, error: type[EdgeDecodeError], words: str
) -> None:
    with pytest.raises(error, match=words):
        OnnxRuntime().open(request_of(entry, pack, threads=threads, provider=provider))


def test_runtime_that_is_not_installed_names_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(RuntimeUnavailable, match=r"pip install 'edgedecode\[onnx\]'"):
        OnnxRuntime()


def test_devices_and_card_of_an_onnx_model(opener: Opener, entry: ModelEntry) -> None:
    device, *_ = OnnxRuntime().devices()
    assert (device.runtime, device.provider, device.available) == ("onnx", "cpu", True)
    request = replace(request_of(entry, opener.root(ToyShape()), name="draft"), vocabulary_size=100)
    card = OnnxRuntime().open(request).card
    assert (card.name, card.rows, card.vocabulary_size, card.context) == ("draft", 128, 100, 512)
