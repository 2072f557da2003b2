"""Peers in child processes, and their comparison with ours: order, best settings, texts and failures."""

import json
import os
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast
from unittest.mock import Mock

import pytest

from edgedecode import CapabilityError, Pair, RuntimeUnavailable, SamplingOptions, SessionOptions, load
from edgedecode.bench.peers.against import _answers, notes, open_peers, show_peer
from edgedecode.bench.peers.peer import PEERS, Answer, PeerOrder, PeerProcess
from edgedecode.bench.peers.peer_comparison import OURS, REHEARSED, SCHEDULED, compare
from edgedecode.bench.settings import Settings
from edgedecode.cli import main
from edgedecode.pack.manifest import Manifest
from edgedecode.text.prompts import Prompt

ORDER = PeerOrder("fake", "/pack", 2, 1, "float32", 64, (0,))
ONE = tuple(Prompt("one", (), (f"say {letter}",)) for letter in "abc")
PROMPTS = (*ONE, Prompt("two", (), ("say d",)))
SETTINGS = Settings(prompts=PROMPTS, drafters=(), lengths=(), repetitions=2, max_tokens=6, context=128)


Answers = dict[tuple[int, ...], tuple[int, ...]]


class Fake:
    """A peer whose native code prints, and may die, exit or hang; mode "wide" knows two tokens after prefill."""

    setting, modes = "fake", ("plain", "wide", "die", "stop", "sleep")

    def __init__(self, order: PeerOrder) -> None:
        os.write(1, b"native noise\n")

    def answer(self, mode: str, prompt: Sequence[int], *, count: int) -> Answer:
        if mode == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if mode == "stop":
            os._exit(3)
        if mode == "sleep":
            time.sleep(60)
        return Answer(tuple(prompt)[:count], 2.0, 1.0, 2 if mode == "wide" else 1)


class Unsuitable:
    def __init__(self, order: PeerOrder) -> None:
        raise CapabilityError("no\n  such model")


class Missing:
    def __init__(self, order: PeerOrder) -> None:
        raise ImportError("x", name="engine")


class Broken:
    def __init__(self, order: PeerOrder) -> None:
        raise KeyError("a")


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Unsuitable, "no such model"),
        (Missing, r"engine is not installed: pip install 'edgedecode\[export\]'"),
        (Broken, "KeyError: 'a'"),
    ],
)
def test_peer_process_reports_why_a_peer_does_not_open(kind: type, expected: str) -> None:
    with pytest.raises(RuntimeUnavailable, match=expected):
        PeerProcess(ORDER, f"{__name__}:{kind.__name__}")


@pytest.fixture
def fake() -> Iterator[PeerProcess]:
    peer = PeerProcess(ORDER, f"{__name__}:Fake")
    yield peer
    peer.close()
    peer.close()


def test_peer_process_ignores_output_of_native_code(fake: PeerProcess) -> None:
    assert (fake.setting, fake.modes) == ("fake", ("plain", "wide", "die", "stop", "sleep"))
    assert fake.answer("plain", (4, 5, 6), count=2).tokens == (4, 5)
    assert fake.answer("wide", (7, 8, 9), count=3).decode_tokens == 1


@pytest.mark.skipif(sys.platform == "win32", reason="signals are a Unix matter")
def test_peer_process_that_crashes_raises_runtime_unavailable(fake: PeerProcess) -> None:
    with pytest.raises(RuntimeUnavailable, match="its native code died with SIGKILL"):
        fake.answer("die", (1,), count=1)


def test_peer_process_that_exits_reports_its_code(fake: PeerProcess) -> None:
    for mode in ("stop", "plain"):
        with pytest.raises(RuntimeUnavailable, match="ended with code 3"):
            fake.answer(mode, (1,), count=1)


def test_peer_process_that_does_not_answer_is_ended(fake: PeerProcess) -> None:
    with pytest.raises(RuntimeUnavailable, match=r"did not answer within 0\.2 s"):
        fake.answer("sleep", (1,), count=1, seconds=0.2)


def test_open_peers_skips_a_peer_that_cannot_open_the_pack(toy: Pair) -> None:
    pytest.importorskip("onnxruntime_genai")
    opened, (reason,) = open_peers(Namespace(against=["genai"], threads=1), toy, capacity=128)
    assert opened == []
    assert reason == "genai: manifest: object missing required field format; export the pack again"


@dataclass
class FakePeer:
    """A peer in this process with given speeds. It repeats our answers; the mode `wrong` gives a different text."""

    name: str
    speeds: dict[str, float]
    plain_answers: Answers
    wrong: str = ""
    dies_at: int = 10**6
    asked: list[str] = field(default_factory=list)
    closed: bool = False
    setting = "rehearsed"

    @property
    def modes(self) -> tuple[str, ...]:
        return tuple(self.speeds)

    def answer(self, mode: str, prompt: Sequence[int], *, count: int) -> Answer:
        self.asked.append(mode)
        if len(self.asked) > self.dies_at:
            raise RuntimeUnavailable("its process died with SIGSEGV")
        tokens = self.plain_answers[tuple(prompt)]
        seconds = len(tokens) / self.speeds[mode]
        return Answer(tokens[:-1] if mode == self.wrong else tokens, seconds, seconds / 2, 0)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def plain_answers(toy: Pair) -> Answers:
    """Our plain answers, by the prompt's tokens."""
    found = {}
    for prompt in PROMPTS:
        options = SessionOptions(sampling=SamplingOptions(), drafter="none", context=128, seed=0)
        with toy.session(options) as session:
            tokens = tuple(t for chunk in session.stream(prompt.turns[0], max_tokens=6) for t in chunk.tokens)
            found[session.tokens[: session.stats.prompt_tokens]] = tokens
    return found


def test_compare_measures_the_fastest_setting_of_each_kind(toy: Pair, plain_answers: Answers) -> None:
    peer = FakePeer(
        "a", {"plain": 10.0, "draft 2": 20.0, "draft 4": 40.0, "lookup 2": 5.0, "lookup 4": 4.0}, plain_answers
    )
    advanced: list[None] = []
    result = compare(
        toy, [cast(PeerProcess, peer)], settings=SETTINGS, reasons=["b: missing"], advance=lambda: advanced.append(None)
    )
    assert [family.family for family in result.families] == ["one", "two"]
    for family in result.families:
        assert [(way.peer, way.mode) for way in family.ways] == [
            (OURS, "plain"),
            (OURS, SCHEDULED),
            ("a", "plain"),
            ("a", "draft 4"),
            ("a", "lookup 2"),
        ]
        best = family.best_speculative("a")
        assert (best.mode, best.whole) == ("draft 4", pytest.approx(40.0))
        assert all(way.same_texts == family.prompts for way in family.ways)
    tried = REHEARSED + 1  # rehearsed on both families' prompts (3 and 1) before the measurement
    assert peer.asked.count("draft 2") == tried
    assert peer.asked.count("draft 4") == tried + len(PROMPTS) * SETTINGS.repetitions
    assert len(advanced) == tried * 5 + len(PROMPTS) * (2 + SETTINGS.repetitions * 5)
    assert len(advanced) == _answers([cast(PeerProcess, peer)], SETTINGS)
    assert result.settings == {"a": "rehearsed"}
    assert result.reasons == ("b: missing",)


def test_compare_ratios_are_ours_over_theirs_and_count_same_texts(toy: Pair, plain_answers: Answers) -> None:
    peer = FakePeer("a", {"plain": 10.0, "draft 2": 10.0}, plain_answers, wrong="draft 2")
    family = compare(toy, [cast(PeerProcess, peer)], settings=SETTINGS, reasons=(), advance=lambda: None).families[0]
    plain, ours = family.way("a", "plain"), family.way(OURS, "plain")
    assert plain.whole_speed_up == pytest.approx(ours.whole / 10.0)
    assert ours.whole_speed_up == 1.0
    drafted = family.way("a", "draft 2")
    assert (plain.same_texts, drafted.same_texts) == (3, 0)


def test_compare_speculative_takes_the_fastest_peer_of_each_family(toy: Pair, plain_answers: Answers) -> None:
    slow = FakePeer("slow", {"plain": 9e9, "lookup 2": 1.0}, plain_answers)
    fast = FakePeer("fast", {"plain": 1.0, "draft 2": 1e9}, plain_answers)
    peers = [cast(PeerProcess, slow), cast(PeerProcess, fast)]
    result = compare(toy, peers, settings=SETTINGS, reasons=(), advance=lambda: None)
    best, fastest = result.speculative(), result.speculative("fast")
    assert best == fastest
    assert best.worst in ("one, fast draft 2", "two, fast draft 2")
    ratios = [way.whole_speed_up for family in result.families if (way := family.way("fast", "draft 2"))]
    assert (best.mean_whole, best.worst_whole) == (pytest.approx(sum(ratios) / 2), min(ratios))
    assert result.speculative("nobody") is None


@pytest.mark.parametrize("dies_at", [0, 3, 9])
def test_compare_drops_a_peer_that_dies_and_keeps_the_others(toy: Pair, plain_answers: Answers, dies_at: int) -> None:
    dying = FakePeer("dying", {"plain": 10.0, "draft 2": 20.0}, plain_answers, dies_at=dies_at)
    other = FakePeer("other", {"plain": 10.0}, plain_answers)
    peers = [cast(PeerProcess, dying), cast(PeerProcess, other)]
    result = compare(toy, peers, settings=SETTINGS, reasons=(), advance=lambda: None)
    assert dying.closed
    assert result.settings == {"other": "rehearsed"}
    assert len(result.reasons) == 1
    assert result.reasons[0].startswith("dying: its process died with SIGSEGV (mode ")
    assert all({way.peer for way in family.ways} == {OURS, "other"} for family in result.families)


def test_show_peer_lists_every_family_the_mean_and_the_worst(toy: Pair, plain_answers: Answers) -> None:
    peer = FakePeer("a", {"plain": 10.0, "lookup 2": 20.0}, plain_answers)
    result = compare(toy, [cast(PeerProcess, peer)], settings=SETTINGS, reasons=["b: gone"], advance=lambda: None)
    report = Mock()
    show_peer(report, result, "a")
    ((_, columns, families), shown) = report.table.call_args
    cells = [[cell(family) for cell in columns.values()] for family in families]
    assert [row[0] for row in (*cells, *shown["summaries"])] == ["one", "two", "mean", "worst"]
    assert [row[5] for row in cells] == ["lookup 2: 20.0"] * 2
    assert {len(row) for row in shown["summaries"]} == {len(columns) - 1}
    assert notes(result)[0].startswith("Against the fastest speculation of any peer, by family: full requests ")
    assert notes(result)[1] == "a: rehearsed"
    assert notes(result)[-1] == "Not compared: b: gone"


@pytest.mark.usefixtures("toy")
@pytest.mark.usefixtures("tables_too")
def test_against_without_any_peer_reports_the_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--quick", "--against", "genai", "--json"]) == 0
    out = capsys.readouterr().out
    assert "Not compared: genai: " in out
    value = json.loads(out.splitlines()[-1])
    assert value["families"] == []
    assert len(value["not_compared"]) == 1


# -- the real peers: their answers are the same as ours ----------------------------------------------------------------

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
        running.append(PeerProcess(PeerOrder(name, str(root), 1, 1, "float32", CONTEXT, ends), PEERS[name]))
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
    from edgedecode.bench.peers.genai_peer import write_model

    entry = Manifest.load(pack).located("target")
    joined = {name: replace(graph, inputs=("input_ids", "attention_mask")) for name, graph in entry.graphs.items()}
    for odd in (replace(entry, window=64), replace(entry, graphs={}), replace(entry, graphs=joined)):
        with pytest.raises(CapabilityError, match="has no graph that onnxruntime-genai can run"):
            write_model(tmp_path / "target", odd, pack, threads=1)
    assert list(tmp_path.iterdir()) == []
