"""`plan`: the table, the cuts for a budget, the smallest budgets and refusals."""

import re

import pytest

import edgedecode
from edgedecode import SamplingOptions, SessionOptions, plan_pack
from edgedecode.cli import main
from edgedecode.pack import pack_tokenizer
from edgedecode.schedule.predicted_speed import PredictedSpeed
from tests.conftest import Told

pytest.importorskip("onnxruntime")


@pytest.fixture(autouse=True)
def process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that this process has 60 MB and that no memory limit is set."""
    monkeypatch.setattr(pack_tokenizer, "process_nbytes", lambda budget: 60_000_000)
    monkeypatch.delenv("EDGEDECODE_MEMORY", raising=False)
    monkeypatch.setenv("EDGEDECODE_RUNTIME", "onnx")


def run_plan(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> tuple[str, str]:
    assert main(["plan", *words]) == code
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_plan_lists_four_parts_and_their_sum(capsys: pytest.CaptureFixture[str], told: Told) -> None:
    out, _ = run_plan(capsys)
    value = told("plan")
    assert value["engine"] == "onnx"
    assert value["fits"]
    assert value["cuts"] == []
    assert sum(value["holders"].values()) == value["nbytes"]
    rows = [line.split("│") for line in out.splitlines() if line.startswith("│")]
    shown = {row[1].strip(): float(row[2].split()[0]) for row in rows}
    assert list(shown) == ["weights", "KV cache", "working memory", "program and engine", "sum"]
    assert shown["sum"] == pytest.approx(value["nbytes"] / 1e6, abs=0.051)
    assert shown["KV cache"] == pytest.approx(
        sum(size for name, size in value["holders"].items() if name.startswith("kv:")) / 1e6, abs=0.051
    )
    assert sum(list(shown.values())[:4]) == pytest.approx(shown["sum"], abs=0.25)
    assert value["least_running"] <= value["least_speculating"] <= value["nbytes"]
    assert "Smallest budget: " in out


def test_plan_lists_the_cuts_for_a_budget(capsys: pytest.CaptureFixture[str], told: Told) -> None:
    uncut = told("plan")
    budget = ("--memory", f"{uncut['nbytes'] - 8_000_000}")
    value = told("plan", *budget)
    out, _ = run_plan(capsys, *budget)
    assert [cut["what"] for cut in value["cuts"]] == ["drafts by " + ", ".join(uncut["choice"]["drafters"][:-1])]
    assert value["choice"]["drafters"] == ["suffix"]
    assert value["nbytes"] <= value["limit"]["nbytes"]
    assert ": less speed on new text." in out


def test_plan_predicts_the_speed_with_and_without_the_cuts(
    capsys: pytest.CaptureFixture[str], told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    def predicted(experience: object, drafters: tuple[str, ...], **shape: int) -> PredictedSpeed:
        return PredictedSpeed(100.0, 150.0 if {"model", "trim"} & {*drafters} else None)

    monkeypatch.setattr(plan_pack, "predicted_speed", predicted)
    out, _ = run_plan(capsys)
    value = told("plan")
    assert ": 100 tokens/s without drafts, 150 with the draft model; repetitive text" in out
    assert value["tokens_per_second"] == value["tokens_per_second_uncut"] == {"plain": 100.0, "drafted": 150.0}
    out, _ = run_plan(capsys, "--memory", f"{value['nbytes'] - 8_000_000}")
    assert ": 100 tokens/s without drafts (150 without a budget); repetitive text" in out


def test_plan_uses_the_experience_of_earlier_sessions(told: Told) -> None:
    with edgedecode.load() as pair, pair.session(SessionOptions(sampling=SamplingOptions())) as session:
        assert len(session.generate("Tell me a story about a boat.", max_tokens=48).tokens) > 8
    value = told("plan")
    assert value["tokens_per_second"]["plain"] > 0


def test_plan_that_does_not_fit_shows_the_table_and_the_smallest_budget(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = run_plan(capsys, "--memory", "70MB", code=1)
    assert "KV cache" in out
    assert "Smallest budget: " in out
    assert err.count("\n") == 1
    assert err.startswith("edgedecode: no plan fits 70.0 MB (--memory), this pack needs ")


def test_a_session_that_does_not_fit_names_the_plans_smallest_budget(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run_plan(capsys)
    (least,) = map(float, re.findall(r"Smallest budget: ([\d.]+)MB", out))
    for less in (3, 4, 5, 6, 7, 8, 9):
        assert main(["generate", "-p", "hi", "-n", "2", "--memory", f"{least - less}MB"]) == 1
        (named,) = map(float, re.findall(r"raise --memory to ([\d.]+)MB", capsys.readouterr().err))
        assert named == pytest.approx(least, abs=0.3), less
    assert main(["generate", "-p", "hi", "-n", "2", "--memory", f"{least}MB"]) == 0


def test_plan_keeps_the_context_that_is_asked_for(told: Told) -> None:
    value = told("plan", "-c", "900")
    assert value["choice"]["context"] == 900
    too_small = told("plan", "-c", "900", "--memory", "90MB", code=1)
    assert too_small["choice"]["context"] == 900, "a requested context is not shortened"


def test_plan_above_the_machines_memory_reports_the_limit_in_force(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = run_plan(capsys, "--memory", "900000GB")
    assert "this machine's memory" in err or "the container's memory limit" in err
    assert " asked for: " in err
    assert "sum" in out


def test_plan_of_switching_counts_both_models(told: Told) -> None:
    least = [told("plan", "-c", "512", *words)["least_running"] for words in ((), ("--mode", "switch"))]
    assert least[0] < least[1], "verified decoding may do without the draft model"
