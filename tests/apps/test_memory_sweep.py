"""`bench --memory-sweep`: budgets, verdicts, the chat in a child process, and full runs on the bundled pack."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from edgedecode import Pair, Session, SessionOptions, WhenFull
from edgedecode.bench.sweep import memory_sweep
from edgedecode.bench.sweep.chat_child import Talk, prompt_of
from edgedecode.bench.sweep.sweep_runs import Chat, SweepRun, budgets
from edgedecode.cli import main
from edgedecode.engines.registry import RUNTIMES, installed
from edgedecode.memory.process_memory import memory_now

from .conftest import Run

MB = 10**6
CHAT = Chat(
    planned_nbytes=110 * MB,
    peak_nbytes=100 * MB,
    context=512,
    longest=512,
    drafters="suffix",
    given_up=("the draft model",),
    tokens_per_second=12.0,
)


def test_budgets_are_evenly_spaced_and_end_with_unlimited() -> None:
    assert budgets(100, 200, 12) == (*range(100, 201, 10), None)
    assert budgets(100, 200, 3) == (100, 200, None)
    assert budgets(100, 200, 2) == (100, None)
    assert budgets(100, 100, 12) == (100, None)  # nothing can be given up


@pytest.mark.parametrize(
    ("budget", "peak", "verdict", "kept"),
    [
        (110, 100, "kept", True),
        (100, 100, "kept", True),
        (99, 100, "over by 1.0 MB", False),
        (None, 900, "kept", True),
    ],
)
def test_sweep_run_compares_the_budget_with_resident_memory(
    budget: int | None, peak: int, verdict: str, kept: bool
) -> None:
    chat = replace(CHAT, peak_nbytes=peak * MB)
    run = SweepRun("onnx", None if budget is None else budget * MB, chat)
    assert (run.verdict, run.kept) == (verdict, kept)


def test_sweep_run_without_a_chat_is_aborted() -> None:
    run = SweepRun("onnx", 10**9, None, "it died")
    assert (run.verdict, run.kept, run.as_planned, run.unused_nbytes) == ("aborted", False, False, None)


@pytest.mark.parametrize(
    ("planned", "peak", "as_planned"),
    [(108, 100, True), (109, 100, False), (100, 108, True), (91, 100, False), (1050, 1000, True), (1100, 1000, False)],
)
def test_sweep_run_is_as_planned_within_a_share_or_some_megabytes(planned: int, peak: int, as_planned: bool) -> None:
    chat = replace(CHAT, planned_nbytes=planned * MB, peak_nbytes=peak * MB)
    assert SweepRun("onnx", None, chat).as_planned == as_planned


def run_talk(toy: Pair, turns: int, *, max_tokens: int | None = None) -> tuple[Session, Talk]:
    options = SessionOptions(context=128, ignore_eos=True, seed=0, when_full=WhenFull.STOP)
    with toy.session(options) as session:
        talk = Talk(session, cycle(["hello", "good day"]), encode=toy.tokenizer.encode)
        talk.run(turns, max_tokens=max_tokens)
    return session, talk


def test_talk_fills_the_context_and_continues(toy: Pair) -> None:
    session, talk = run_talk(toy, 20)
    assert talk.longest == 128
    assert 0 < len(session.messages) < 40
    assert session.messages[0].role == "user"
    assert talk.planned_nbytes > 0
    assert talk.tokens_per_second > 0


def test_talk_limits_answers_to_max_tokens(toy: Pair) -> None:
    session, talk = run_talk(toy, 6, max_tokens=5)
    assert session.stats.verified_tokens == 5
    assert talk.longest == 128


def test_prompt_of_joins_texts_up_to_the_least_length() -> None:
    texts = cycle(["one two", "three"])
    assert prompt_of(texts, least=1, encode=split) == ("one two", 2)
    assert prompt_of(texts, least=4, encode=split) == ("three\none two\nthree", 4)


def split(text: str) -> list[int]:
    return [len(word) for word in text.split()]


def child_reply(order: Mapping[str, Any]) -> dict[str, Any]:
    """Reply as a child on two engines: first the plan, then chats. The smallest chat on llama crashes."""
    engine, budget = order["opening"]["runtime"], order.get("memory")
    if order["turns"] is None:
        return {"failure": "it cannot plan"} if engine == "other" else {"least": 120 * MB, "whole": 140 * MB}
    if engine == "llama" and budget == 120 * MB:
        return {"failure": "its native code died with SIGKILL"}
    chat = CHAT if budget != 140 * MB else replace(CHAT, peak_nbytes=141 * MB)
    fields = {
        name: getattr(chat, name) for name in chat.__slots__
    }  # JSON turns tuples into lists, as in a child's line
    return json.loads(json.dumps({"chat": fields}))  # type: ignore[no-any-return]


def sweep(
    monkeypatch: pytest.MonkeyPatch,
    *words: str,
    engines: tuple[str, ...],
    children: Callable[[Mapping[str, Any]], dict[str, Any]] = child_reply,
) -> int:
    monkeypatch.setattr(memory_sweep, "_child_reply", children)
    monkeypatch.setattr(memory_sweep, "installed", lambda group: dict.fromkeys(engines))
    return main(["bench", "--memory-sweep", *words])


@pytest.mark.usefixtures("tables_too")
def test_memory_sweep_has_a_row_per_engine_and_budget_and_fails_over_budget(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep(monkeypatch, "3", "--json", engines=("llama", "onnx", "other")) == 1
    out = capsys.readouterr().out
    value = json.loads(out.splitlines()[-1])
    assert set(value) == {"conditions", "runs", "not_measured"}
    assert value["not_measured"] == ["other: it cannot plan"]
    rows = [(run["engine"], run["budget_nbytes"], run["verdict"]) for run in value["runs"]]
    expected = [(120 * MB, "kept"), (140 * MB, "over by 1.0 MB"), (None, "kept")]
    assert rows == [("llama", 120 * MB, "aborted"), *(("llama", *row) for row in expected[1:])] + [
        ("onnx", *row) for row in expected
    ]
    assert "Aborted: llama, 120.0 MB: its native code died with SIGKILL" in out
    assert "Not measured: other: it cannot plan" in out
    assert "over by 1.0 MB" in out
    onnx = value["runs"][3]
    assert (onnx["planned_nbytes"], onnx["peak_resident_nbytes"]) == (110 * MB, 100 * MB)
    assert onnx["given_up"] == ["the draft model"]


def test_memory_sweep_within_its_budgets_exits_with_0(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep(monkeypatch, "2", engines=("onnx",)) == 0
    assert "unlimited" in capsys.readouterr().out


def test_memory_sweep_that_is_interrupted_shows_the_runs_so_far(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(order: Mapping[str, Any]) -> dict[str, Any]:
        if order.get("memory") == 140 * MB:
            raise KeyboardInterrupt
        return child_reply(order)

    assert sweep(monkeypatch, "3", engines=("onnx",), children=interrupted) == 130
    out = capsys.readouterr().out
    assert "120.0 MB" in out
    assert "140.0 MB" not in out


def test_memory_sweep_without_any_run_prints_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep(monkeypatch, engines=("other",)) == 1
    assert capsys.readouterr().err == "edgedecode: nothing could be measured: other: it cannot plan\n"


def test_memory_figure_has_a_column_per_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    from edgedecode.bench.report.memory_chart import memory_figure

    file = tmp_path / "sweep.png"
    assert sweep(monkeypatch, "3", "--plot", str(file), engines=("llama", "onnx")) == 1
    assert file.read_bytes().startswith(b"\x89PNG")
    runs = [SweepRun(engine, budget, CHAT) for engine in ("llama", "onnx") for budget in (120 * MB, 140 * MB, None)]
    axes = memory_figure(runs, conditions="here").axes
    assert [each.get_title() for each in axes] == ["Peaks on llama", "Peaks on onnx"]
    lines = {line.get_label(): line for line in axes[0].lines}
    assert list(lines["planned"].get_ydata()) == [110, 110]
    assert list(lines["budget"].get_ydata()) == [120, 140]
    assert list(lines["peak"].get_ydata()) == [100, 100]


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (["--memory-sweep", "0"], 2, "'0' is too small: the minimum is 2"),
        (["--memory-sweep", "two"], 2, "'two' is not a whole number"),
        (["--memory-sweep", "--turns", "0"], 2, "'0' is too small: the minimum is 1"),
        (["--memory-sweep", "--memory", "1GB"], 2, "leave --memory out"),
        (["--memory-sweep", "--per-family", "2"], 2, "leave --per-family out"),
        (["--memory-sweep", "--calibrate"], 2, "not allowed with"),
        (["--memory-sweep", "--against", "genai"], 2, "give it alone"),
        (["--turns", "4"], 2, "give --memory-sweep with it"),
        (["--memory-sweep", "--runtime", "abacus"], 1, "there is no runtime 'abacus'; installed: "),
        (["--memory-sweep", "--plot", "x.pdf"], 1, "charts are .svg or .png files"),
        (["--memory-sweep", "-m", "/no/such/pack"], 1, "/no/such/pack"),
    ],
)
def test_memory_sweep_refuses_bad_input(
    words: list[str], code: int, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if code == 2:
        with pytest.raises(SystemExit, match="2"):
            main(["bench", *words])
    else:
        assert main(["bench", *words]) == code
    err = capsys.readouterr().err
    assert expected in err
    assert code == 2 or err.count("\n") == 1


def missing_plot(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("edgedecode.plot_file.find_spec", lambda name: None)
    return "pip install 'edgedecode[plot]'"


def missing_peak(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(memory_sweep, "peak_nbytes", lambda: None)
    return "peak memory is reported by psutil only here"


@pytest.mark.parametrize("missing", [missing_plot, missing_peak])
def test_memory_sweep_reports_missing_parts_before_any_run(
    missing: Callable[[pytest.MonkeyPatch], str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = missing(monkeypatch)
    assert main(["bench", "--memory-sweep", "--plot", "x.svg"]) == 1
    err = capsys.readouterr().err
    assert expected in err
    assert err.count("\n") == 1


@pytest.mark.memory
@pytest.mark.skipif(memory_now() is None, reason="this system does not report a process's memory")
def test_memory_sweep_keeps_its_budgets_on_the_bundled_pack(run: Run, pack: Path) -> None:
    words = ["--memory-sweep", "2", "--turns", "3", "--ctx-size", "512", "--json"]
    done = run("bench", "-m", str(pack), *words)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    value = json.loads(done.stdout.splitlines()[-1])
    measured = [name for name in installed(RUNTIMES) if not any(name in each for each in value["not_measured"])]
    assert "onnx" in measured
    rows = value["runs"]
    assert [row["engine"] for row in rows] == [name for name in measured for _ in range(2)]
    for small, unlimited in zip(rows[::2], rows[1::2], strict=True):
        assert unlimited["budget_nbytes"] is None
        assert small["peak_resident_nbytes"] <= small["planned_nbytes"] <= small["budget_nbytes"]
        assert small["planned_nbytes"] < unlimited["planned_nbytes"]
        assert small["given_up"]
        assert not unlimited["given_up"]
        assert small["longest"] == unlimited["longest"] == small["context"] == 512
