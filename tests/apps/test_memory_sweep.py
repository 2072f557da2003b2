"""`bench --memory-sweep`: budgets, verdicts, the chat in a child process, and full runs on the bundled pack."""

import json
from collections.abc import Callable, Mapping
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from edgedecode import Pair, SessionDetails, SessionOptions, WhenFull
from edgedecode.bench.sweep import memory_sweep
from edgedecode.bench.sweep.chat_child import prompt_of, talk
from edgedecode.bench.sweep.memory_sweep import budgets, verdict
from edgedecode.cli import main
from edgedecode.engines.registry import RUNTIMES, installed
from edgedecode.memory.process_memory import memory_now
from tests.conftest import Refusal, Told

MB = 10**6
CHAT = {
    "planned_nbytes": 110 * MB,
    "peak_nbytes": 100 * MB,
    "context": 512,
    "longest": 512,
    "drafters": "suffix",
    "given_up": ["the draft model"],
}


def test_budgets_are_evenly_spaced_and_end_with_unlimited() -> None:
    assert budgets(100, 200, 12) == (*range(100, 201, 10), None)
    assert budgets(100, 200, 3) == (100, 200, None)
    assert budgets(100, 200, 2) == (100, None)
    assert budgets(100, 100, 12) == (100, None)  # nothing can be given up


@pytest.mark.parametrize(("budget", "expected"), [(110, "kept"), (100, "kept"), (99, "over by 1.0 MB"), (None, "kept")])
def test_verdict_compares_the_budget_with_the_resident_peak(budget: int | None, expected: str) -> None:
    assert verdict(None if budget is None else budget * MB, CHAT) == expected
    assert verdict(10**9, {"failure": "it died"}) == "aborted"


def test_talk_fills_the_context_and_continues(toy: Pair) -> None:
    options = SessionOptions(context=128, seed=0, details=SessionDetails(ignore_eos=True, when_full=WhenFull.STOP))
    with toy.session(options) as session:
        texts = cycle(["hello", "good day"])
        found = talk(session, texts, encode=toy.tokenizer.encode, turns=20, max_tokens=None)
        assert found["longest"] == 128
        assert 0 < len(session.messages) < 40
        assert talk(session, texts, encode=toy.tokenizer.encode, turns=1, max_tokens=5)["planned_nbytes"]


def test_prompt_of_joins_texts_up_to_the_least_length() -> None:
    texts = cycle(["one two", "three"])
    assert prompt_of(texts, least=1, encode=split) == ("one two", 2)
    assert prompt_of(texts, least=4, encode=split) == ("three\none two\nthree", 4)


def split(text: str) -> list[int]:
    return [len(word) for word in text.split()]


def child_reply(order: Mapping[str, Any]) -> dict[str, Any]:
    """Reply as a child on two engines: first the plan, then chats. The smallest chat on llama crashes."""
    engine, budget = order["runtime"], order.get("memory")
    if order["turns"] is None:
        return {"failure": "it cannot plan"} if engine == "other" else {"least": 120 * MB, "whole": 140 * MB}
    if engine == "llama" and budget == 120 * MB:
        return {"failure": "its native code died with SIGKILL"}
    return CHAT if budget != 140 * MB else CHAT | {"peak_nbytes": 141 * MB}


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
    assert set(value) == {"runs", "not_measured"}
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
    assert (onnx["planned_nbytes"], onnx["peak_nbytes"]) == (110 * MB, 100 * MB)
    assert onnx["given_up"] == ["the draft model"]


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


def test_memory_sweep_reports_a_missing_peak_before_any_run(monkeypatch: pytest.MonkeyPatch, refusal: Refusal) -> None:
    monkeypatch.setattr(memory_sweep, "peak_nbytes", lambda: None)
    assert "peak memory is reported by psutil only here" in refusal("bench", "--memory-sweep")


@pytest.mark.memory
@pytest.mark.skipif(memory_now() is None, reason="this system does not report a process's memory")
def test_memory_sweep_keeps_its_budgets_on_the_bundled_pack(told: Told, pack: Path) -> None:
    value = told("bench", "-m", pack, "--memory-sweep", "2", "--turns", "3", "--ctx-size", "512")
    measured = [name for name in installed(RUNTIMES) if not any(name in each for each in value["not_measured"])]
    assert "onnx" in measured
    rows = value["runs"]
    assert [row["engine"] for row in rows] == [name for name in measured for _ in range(2)]
    for small, unlimited in zip(rows[::2], rows[1::2], strict=True):
        assert unlimited["budget_nbytes"] is None
        assert small["peak_nbytes"] <= small["planned_nbytes"] <= small["budget_nbytes"]
        assert small["planned_nbytes"] < unlimited["planned_nbytes"]
        assert small["given_up"]
        assert not unlimited["given_up"]
        assert small["longest"] == unlimited["longest"] == small["context"] == 512
