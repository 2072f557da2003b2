"""The real peers in child processes on the bundled pack: their answers are the same as ours."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from edgedecode import CapabilityError, RuntimeUnavailable, SamplingOptions, SessionOptions, load
from edgedecode.bench.peers.peer import PeerOrder
from edgedecode.bench.peers.peer_process import PeerProcess
from edgedecode.pack.manifest import Manifest

CONTEXT = 192
COUNT = 16
QUESTION = "Write a story with a frog, a pebble and a harbor."

Open = Callable[..., PeerProcess]


@pytest.fixture(scope="module")
def plain_answer(pack: Path) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The prompt's ids and our plain answer's ids on ONNX Runtime."""
    options = SessionOptions(sampling=SamplingOptions(), drafter="none", context=CONTEXT)
    with load(pack, runtime="onnx") as pair, pair.session(options) as session:
        tokens = session.generate(QUESTION, max_tokens=COUNT).tokens
        return session.tokens[: session.stats.prompt_tokens], tokens


@pytest.fixture
def opened(pack: Path) -> Iterator[Open]:
    running: list[PeerProcess] = []

    def open_peer(name: str, root: Path = pack) -> PeerProcess:
        ends = Manifest.load(pack).generation.end_token_ids
        running.append(PeerProcess(PeerOrder(name, str(root), 1, 1, "float32", CONTEXT, ends)))
        return running[-1]

    yield open_peer
    for peer in running:
        peer.close()


def test_genai_runs_the_packs_graphs_in_every_mode(
    opened: Open, plain_answer: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    pytest.importorskip("onnxruntime_genai")
    pytest.importorskip("onnx_ir")
    prompt, ours = plain_answer
    peer = opened("genai")
    assert {mode.split()[0] for mode in peer.modes} == {"plain", "draft", "lookup"}
    for mode in peer.modes:
        assert peer.answer(mode, prompt, count=COUNT).tokens == ours, mode


def test_llama_answers_as_ours_with_and_without_lookups(
    opened: Open, plain_answer: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    pytest.importorskip("llama_cpp")
    prompt, ours = plain_answer
    peer = opened("llama")
    assert peer.modes == ("plain", "lookup 2", "lookup 4", "lookup 8", "lookup 10")
    for mode in peer.modes:
        answer = peer.answer(mode, prompt, count=COUNT)
        assert answer.tokens == ours, mode
        assert answer.first_tokens == 1


def test_genai_reports_a_missing_pack(opened: Open, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_genai")
    with pytest.raises(RuntimeUnavailable, match="is not a pack"):
        opened("genai", root=tmp_path)


def test_genai_folder_refuses_graphs_that_genai_cannot_run(pack: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnx_ir")
    from edgedecode.bench.peers.genai_folder import GenaiFolder

    entry = Manifest.load(pack).located("target")
    folder = GenaiFolder(tmp_path, context=CONTEXT, ends=[0])
    joined = {name: replace(graph, inputs=("input_ids", "attention_mask")) for name, graph in entry.graphs.items()}
    for odd in (replace(entry, window=64), replace(entry, graphs={}), replace(entry, graphs=joined)):
        with pytest.raises(CapabilityError, match="has no graph that onnxruntime-genai can run"):
            folder.add_model("target", odd, pack, threads=1)
    assert list(tmp_path.iterdir()) == []
