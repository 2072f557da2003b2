"""Qualcomm's NPUs: which compiled graph is opened, refusals, and passes on the emulator through the provider."""

import shutil
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedecode.decoding.model import AdapterModel, AdapterUse, LanguageModel, LowRank
from edgedecode.engines.child import ask_child, child_command, tell_parent
from edgedecode.engines.interface import ModelRequest
from edgedecode.engines.registry import find_runtime
from edgedecode.errors import CapabilityError
from edgedecode.library.names import BUNDLED_PACK
from edgedecode.memory.budget import Budget
from edgedecode.pack.entries import CompiledEntry
from edgedecode.pack.manifest import Graph, Manifest, ModelEntry

pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")

from edgedecode.runtimes.onnx.graph_choice import choose_graph
from edgedecode.runtimes.onnx.providers import qnn
from edgedecode.runtimes.onnx.providers.provider import GraphFiles, assigned_nodes
from edgedecode.runtimes.onnx.providers.qnn import QnnProvider

on_the_emulator = pytest.mark.skipif(
    find_spec("onnxruntime_qnn") is None, reason="onnxruntime-qnn is not installed: pip install 'edgedecode[qnn]'"
)


def compiled(*socs: int) -> CompiledEntry:
    name = "+".join(map(str, socs))
    return CompiledEntry(file=f"npu/{name}/a.onnx", binary=f"npu/{name}/a.bin", provider="qnn", socs=socs)


@pytest.fixture
def entry() -> ModelEntry:
    return Manifest.load(BUNDLED_PACK).models["draft"]


def static(entry: ModelEntry, *parts: CompiledEntry) -> Graph:
    return replace(entry.graphs["base"], capabilities=("tree", "rows", "static"), width=8, slots=64, compiled=parts)


@pytest.mark.parametrize(
    ("chip", "emulates", "file"),
    [
        ("", True, "npu/57/a.onnx"),
        ("", False, "npu/43+60/a.onnx"),
        ("60", False, "npu/43+60/a.onnx"),
        ("69", True, "npu/69/a.onnx"),
    ],
)
def test_the_graph_of_the_chosen_chip_is_opened(
    chip: str, emulates: bool, file: str, entry: ModelEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qnn.platform, "machine", lambda: "x86_64" if emulates else "aarch64")
    graph, provider = static(entry, compiled(43, 60), compiled(57), compiled(69)), QnnProvider(chip)
    assert provider.refusal(entry, graph) == ""
    assert provider.files(entry, graph) == GraphFiles(file, file.replace(".onnx", ".bin"))
    assert provider.full_name == ("qnn" if not chip else f"qnn:{chip}")


@pytest.mark.parametrize(
    ("chip", "parts", "said"),
    [
        ("", (), "the pack is not compiled: run `edgedecode compile PACK --device qnn --soc N`"),
        (
            "87",
            (compiled(57), compiled(69)),
            "is compiled for 57, 69: run `edgedecode compile PACK --device qnn --soc 87`",
        ),
        ("57", (compiled(57, 69),), "the emulator loads no binary for several chips"),
        ("", (replace(compiled(57), provider="other"),), "the pack is not compiled"),
    ],
)
def test_a_pack_without_the_chip_is_refused_with_the_remedy(
    chip: str, parts: tuple[CompiledEntry, ...], said: str, entry: ModelEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qnn.platform, "machine", lambda: "x86_64")
    provider, graph = QnnProvider(chip), static(entry, *parts)
    assert said in provider.refusal(entry, graph)
    assert "--provider cpu" in provider.refusal(entry, graph) or "edgedecode compile" in provider.refusal(entry, graph)
    with pytest.raises(CapabilityError, match="cannot run"):
        provider.files(entry, graph)


def test_an_unknown_chip_is_refused() -> None:
    with pytest.raises(CapabilityError, match=r"no device '58'; it has: qnn:30, .*qnn:93"):
        QnnProvider("58")


def test_a_pack_without_static_graphs_names_what_is_missing(entry: ModelEntry) -> None:
    with pytest.raises(CapabilityError, match=r"no graph that offers static.*edgedecode compile PACK"):
        choose_graph(entry, BUNDLED_PACK, name="draft", needs=QnnProvider.needs)


def opened(pack: str, provider: str, *needs: str) -> LanguageModel:
    entry = Manifest.load(Path(pack)).models["target"]
    request = ModelRequest(entry, Path(pack), "target", entry.rows, Budget(), threads=1, provider=provider, needs=needs)
    return find_runtime("onnx").open(request)


def run_passes(root: str, chip: str) -> None:
    """Run chains and trees through the provider and on the processor; in a child process."""
    from edgedecode.export.npu.parity_passes import compared_passes

    base, npu = opened(root, "cpu"), opened(root, f"qnn:{chip}")
    agreed: list[bool] = []
    tokens = np.random.default_rng(3).integers(3, 8192, 60).tolist()
    for wanted, found in compared_passes(base, npu, tokens, width=8, count=4):
        agreed += (wanted.argmax(axis=1) == found.argmax(axis=1)).tolist()
    (session,) = npu._session.values()  # type: ignore[attr-defined]
    tell_parent({"agreed": sum(agreed), "positions": len(agreed), "nodes": assigned_nodes(session)})


def swap_adapters(root: str, chip: str) -> None:
    """Run one tree with no adapter, two others and none again, on one compiled graph; in a child process."""
    models = [opened(root, provider, "static", "lora") for provider in (f"qnn:{chip}", "cpu")]
    entry, rng = Manifest.load(Path(root)).models["target"], np.random.default_rng(1)
    for name in ("first", "second"):
        down, up = (rng.standard_normal(shape, np.float32) / 4 for shape in ((8, 128), (entry.hidden_size, 8)))
        for model in models:
            assert isinstance(model, AdapterModel)
            model.add_adapter(name, [LowRank(0, "o_proj", down, up)])
    told: list[dict[str, float]] = []
    for name in ("", "first", "second", ""):
        use = AdapterUse(name=name, digest=name) if name else None
        parents = (-1, 0, 1, 2, 3, 1, 5, 5)
        found, wanted = (
            model.forward(
                range(40, 48), model.new_state(16, tree=True), parents=parents, rows="all", adapter=use
            ).logits
            for model in models
        )
        agreed = float((found.argmax(axis=1) == wanted.argmax(axis=1)).mean())
        error = float(np.sqrt(np.square(found - wanted).mean() / wanted.var()))
        told.append({"agreed": agreed, "error": error, "first": float(found[0, 0])})
    tell_parent(told)


def ask(function: str, *words: str | Path) -> Any:
    command = child_command(f"tests.contract.test_onnx_qnn:{function}")
    assert command is not None
    root = str(Path(__file__).parents[2])
    reply = ask_child(command, *map(str, words), seconds=300, environment={"PYTHONPATH": root})
    assert not reply.failure, reply.words
    return reply.told[0]


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a pack compiled for two chips."""
    pytest.importorskip("onnx_ir", reason="the export extras are not installed")
    from edgedecode.cli import main
    from tests.export.test_compile import small_pack

    pack = small_pack(tmp_path_factory.mktemp("compiled") / "pack")
    words = ["compile", str(pack), "--device", "qnn", "--soc", "57,69", "--widths", "8", "--context", "64"]
    assert main(words) == 0
    return pack


@on_the_emulator
def test_adapters_are_swapped_on_a_compiled_graph(pack: Path) -> None:
    none, first, second, again = ask("swap_adapters", pack, "57")
    assert all(one["agreed"] >= 7 / 8 and one["error"] < 0.05 for one in (none, first, second, again))
    assert none == again
    assert len({one["first"] for one in (none, first, second)}) == 3


@on_the_emulator
def test_passes_on_the_emulator_agree_and_run_nowhere_else(pack: Path) -> None:
    found = ask("run_passes", pack, "69")
    assert found["nodes"] == {"QNNExecutionProvider": {"EPContext": 1}}
    assert found["positions"] == 32
    assert found["agreed"] >= 30  # random text: near ties


@on_the_emulator
def test_a_damaged_binary_is_refused_in_one_line(pack: Path, tmp_path: Path) -> None:
    copy = tmp_path / "pack"
    shutil.copytree(pack, copy)
    binary = next((copy / "npu" / "69_v79").glob("*static-8*.bin"))
    binary.write_bytes(binary.read_bytes()[: 1 << 20])
    with pytest.raises(AssertionError, match=r"does not open .*compile the pack for this chip"):
        ask("run_passes", copy, "69")


def generate(root: str, provider: str, *lengths: str) -> None:
    """Answer a prompt greedily with each draft length; in a child process."""
    import edgedecode
    from edgedecode import LoadOptions, SamplingOptions, SessionOptions

    greedy, told = SamplingOptions(temperature=0.0), []
    with edgedecode.load(root, runtime="onnx", options=LoadOptions(provider=provider)) as pair:
        card = {"widths": pair.target.card.widths, "context": pair.target.card.context}
        for length in map(int, lengths):
            with pair.session(SessionOptions(sampling=greedy, draft_max=length, drafter="suffix")) as session:
                answer = session.generate("Tell me a story about a duck named Maya.", max_tokens=16)
                told.append({"tokens": list(answer.tokens), "proposed": answer.stats.proposed, **card})
    tell_parent(told)


@on_the_emulator
def test_sessions_on_the_emulator_write_the_processors_text(pack: Path) -> None:
    """Plain decoding, and lookups in the text, whose drafts are verified in padded passes."""
    plain, drafting = ask("generate", pack, "qnn:57", "0", "4")
    (processor,) = ask("generate", pack, "cpu", "0")
    assert (plain["widths"], plain["context"]) == ([8], 64)
    assert plain["tokens"] == drafting["tokens"] == processor["tokens"]
    assert drafting["proposed"] > 0
