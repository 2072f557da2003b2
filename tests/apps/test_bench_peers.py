"""Peers in child processes, and their comparison with ours: order, best settings, texts and failures."""

import io
import json
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest

from edgedecode import CapabilityError, Pair, RuntimeUnavailable, SamplingOptions, SessionOptions, load
from edgedecode.bench.peers import peer_child as child
from edgedecode.bench.peers.against import _answers, notes, open_peers, show_peer
from edgedecode.bench.peers.peer import Answer, PeerFactory, PeerOrder
from edgedecode.bench.peers.peer_comparison import REHEARSED, compare
from edgedecode.bench.peers.peer_process import PeerProcess
from edgedecode.bench.peers.peer_results import OURS, SCHEDULED
from edgedecode.bench.settings import Settings
from edgedecode.cli import main
from edgedecode.pack.manifest import Manifest
from edgedecode.text.prompts import Prompt

ORDER = PeerOrder("fake", "/pack", 2, 1, "float32", 64, (0,))
ONE = tuple(Prompt("one", (), (f"say {letter}",)) for letter in "abc")
PROMPTS = (*ONE, Prompt("two", (), ("say d",)))
SETTINGS = Settings(prompts=PROMPTS, drafters=(), lengths=(), repetitions=2, max_tokens=6, context=128)


Answers = dict[tuple[int, ...], tuple[int, ...]]


class Echo:
    """Answers with the prompt's ids; mode "wide 2" reports two tokens after prefill instead of one."""

    modes = ("plain", "wide 2")

    def __init__(self, order: PeerOrder) -> None:
        self.setting = f"{order.root} with {order.threads} threads"

    def answer(self, mode: str, prompt: Sequence[int], *, count: int, read: Callable[[int], None]) -> Sequence[int]:
        read(2 if mode == "wide 2" else 1)
        return list(prompt)[:count]


def served(factory: object, *requests: dict[str, object]) -> list[dict[str, Any]]:
    """Return the child's responses to an order and these requests."""
    lines = "".join(json.dumps(line) + "\n" for line in (asdict(ORDER), *requests))
    answers = io.StringIO()
    child.serve(io.StringIO(lines), answers, find=lambda name: cast(PeerFactory, factory))
    return [json.loads(line) for line in answers.getvalue().splitlines()]


def test_peer_child_opens_the_order_and_answers_line_by_line() -> None:
    requests = [{"mode": mode, "prompt": [5, 6, 7], "count": 2} for mode in Echo.modes]
    opened, plain, wide = served(Echo, *requests)
    assert opened == {"setting": "/pack with 2 threads", "modes": ["plain", "wide 2"]}
    assert plain["tokens"] == wide["tokens"] == [5, 6]
    assert (plain["first_tokens"], wide["first_tokens"]) == (1, 2)
    assert 0 <= plain["first_seconds"] <= plain["seconds"]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (CapabilityError("no\n  such model"), "no such model"),
        (ImportError("x", name="engine"), "engine is not installed"),
        (KeyError("a"), "KeyError: 'a'"),
    ],
)
def test_peer_child_reports_why_a_factory_failed(error: Exception, expected: str) -> None:
    def refusing(*arguments: object, **options: object) -> None:
        raise error

    assert served(refusing) == [{"refused": expected}]


def test_peer_child_refuses_an_unknown_peer_and_lists_the_known() -> None:
    answers = io.StringIO()
    child.serve(io.StringIO(json.dumps(asdict(ORDER)) + "\n"), answers, find=child._find)
    assert "there is no peer 'fake'; there are: genai, llama" in answers.getvalue()


SERVING = """
import os, sys, time
from edgedecode.bench.peers import peer_child as child
class Peer:
    setting, modes = "fake", ("plain", "die", "stop", "sleep")
    def __init__(self, order): os.write(1, b"native noise\\n")
    def answer(self, mode, prompt, *, count, read):
        if mode == "die": os.kill(os.getpid(), 9)
        if mode == "stop": sys.stderr.write("first\\nlast words\\n"); sys.stderr.flush(); os._exit(3)
        if mode == "sleep": time.sleep(60)
        read(1)
        return prompt[:count]
child._find = lambda name: Peer
child.main()
"""


@pytest.fixture
def fake() -> Callable[..., PeerProcess]:
    def opened(**options: float) -> PeerProcess:
        return PeerProcess(ORDER, python=(sys.executable, "-c", SERVING), **options)

    return opened


def test_peer_process_ignores_output_of_native_code(fake: Callable[..., PeerProcess]) -> None:
    peer = fake()
    assert (peer.setting, peer.modes) == ("fake", ("plain", "die", "stop", "sleep"))
    assert peer.answer("plain", (4, 5, 6), count=2).tokens == (4, 5)
    assert peer.answer("plain", (7,), count=2).tokens == (7,)
    peer.close()
    peer.close()


@pytest.mark.skipif(sys.platform == "win32", reason="signals are a Unix matter")
def test_peer_process_that_crashes_raises_runtime_unavailable(fake: Callable[..., PeerProcess]) -> None:
    peer = fake()
    with pytest.raises(RuntimeUnavailable, match="its native code died with SIGKILL"):
        peer.answer("die", (1,), count=1)
    peer.close()


def test_peer_process_that_exits_reports_its_last_line_of_stderr(fake: Callable[..., PeerProcess]) -> None:
    peer = fake()
    with pytest.raises(RuntimeUnavailable, match="ended with code 3: last words"):
        peer.answer("stop", (1,), count=1)
    with pytest.raises(RuntimeUnavailable, match="ended with code 3"):
        peer.answer("plain", (1,), count=1)
    peer.close()


def test_peer_process_that_does_not_answer_is_ended(fake: Callable[..., PeerProcess]) -> None:
    peer = fake(patience=20)
    peer._patience = 0.2
    with pytest.raises(RuntimeUnavailable, match=r"did not answer within 0\.2 s"):
        peer.answer("sleep", (1,), count=1)
    peer.close()


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
        assert best is not None
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
    assert plain is not None
    assert ours is not None
    assert plain.whole_speed_up == pytest.approx(ours.whole / 10.0)
    assert ours.whole_speed_up == 1.0
    drafted = family.way("a", "draft 2")
    assert drafted is not None
    assert (plain.same_texts, drafted.same_texts) == (3, 0)


def test_compare_speculative_takes_the_fastest_peer_of_each_family(toy: Pair, plain_answers: Answers) -> None:
    slow = FakePeer("slow", {"plain": 9e9, "lookup 2": 1.0}, plain_answers)
    fast = FakePeer("fast", {"plain": 1.0, "draft 2": 1e9}, plain_answers)
    peers = [cast(PeerProcess, slow), cast(PeerProcess, fast)]
    result = compare(toy, peers, settings=SETTINGS, reasons=(), advance=lambda: None)
    best, fastest = result.speculative(), result.speculative("fast")
    assert best is not None
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
