"""`plan`: the table, the cuts for a budget, the smallest budgets and refusals."""

import json

import pytest

import edgedecode
from edgedecode import SamplingOptions, SessionOptions, open_pack
from edgedecode.cli import main
from edgedecode.pack import pack_tokenizer
from edgedecode.schedule.predicted_speed import PredictedSpeed

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


def test_plan_lists_four_parts_and_their_sum(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run_plan(capsys)
    value = json.loads(run_plan(capsys, "--json")[0])
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


def test_plan_lists_the_cuts_for_a_budget(capsys: pytest.CaptureFixture[str]) -> None:
    uncut = json.loads(run_plan(capsys, "--json")[0].splitlines()[-1])
    budget = ("--memory", f"{uncut['nbytes'] - 8_000_000}")
    value = json.loads(run_plan(capsys, *budget, "--json")[0])
    out, _ = run_plan(capsys, *budget)
    assert [cut["what"] for cut in value["cuts"]] == ["drafts by " + ", ".join(uncut["choice"]["drafters"][:-1])]
    assert value["choice"]["drafters"] == ["suffix"]
    assert value["nbytes"] <= value["limit"]["nbytes"]
    assert ": less speed on new text." in out


def test_plan_predicts_the_speed_with_and_without_the_cuts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def predicted(experience: object, drafters: tuple[str, ...], **shape: int) -> PredictedSpeed:
        return PredictedSpeed(100.0, 150.0 if {"model", "trim"} & {*drafters} else None)

    monkeypatch.setattr(open_pack, "predicted_speed", predicted)
    out, _ = run_plan(capsys)
    value = json.loads(run_plan(capsys, "--json")[0])
    assert ": 100 tokens/s without drafts, 150 with the draft model; repetitive text" in out
    assert value["tokens_per_second"] == value["tokens_per_second_uncut"] == {"plain": 100.0, "drafted": 150.0}
    out, _ = run_plan(capsys, "--memory", f"{value['nbytes'] - 8_000_000}")
    assert ": 100 tokens/s without drafts (150 without a budget); repetitive text" in out


def test_plan_uses_the_experience_of_earlier_sessions(capsys: pytest.CaptureFixture[str]) -> None:
    with edgedecode.load() as pair, pair.session(SessionOptions(sampling=SamplingOptions())) as session:
        assert len(session.generate("Tell me a story about a boat.", max_tokens=48).tokens) > 8
    value = json.loads(run_plan(capsys, "--json")[0].splitlines()[-1])
    assert value["tokens_per_second"]["plain"] > 0


def test_plan_that_does_not_fit_shows_the_table_and_the_smallest_budget(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = run_plan(capsys, "--memory", "70MB", code=1)
    assert "KV cache" in out
    assert "Smallest budget: " in out
    assert err.count("\n") == 1
    assert err.startswith("edgedecode: no plan fits 70.0 MB (--memory), this pack needs ")


def test_plan_keeps_the_context_that_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    value = json.loads(run_plan(capsys, "-c", "900", "--json")[0].splitlines()[-1])
    assert value["choice"]["context"] == 900
    too_small = run_plan(capsys, "-c", "900", "--memory", "90MB", "--json", code=1)[0]
    assert json.loads(too_small.splitlines()[-1])["choice"]["context"] == 900, "a requested context is not shortened"


def test_plan_above_the_machines_memory_reports_the_limit_in_force(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = run_plan(capsys, "--memory", "900000GB")
    assert "this machine's memory" in err or "the container's memory limit" in err
    assert " asked for: " in err
    assert "sum" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--memory", "0"), "'0' is not a size"),
        (("--memory", "1e9x"), "'1e9x' is not a size"),
        (("--memory", "10B"), "no plan fits 10 bytes (--memory)"),
        (("--memory", "500"), "'500' has no unit, so it is in bytes: did you mean 500MB?"),
        (("--memory", "-5MB"), "expected one argument"),
        (("--drafter", "tree"), "give --draft-max N, 1 to 16 nodes"),
        (("-c", "9999999"), "out of range"),
        (("--drafter", "nobody"), "nobody"),
        (("some/where", "-m", "else/where"), "name one of them"),
        (("./nowhere",), "nowhere"),
        (("--runtime", "nothing"), "nothing"),
        (("--kv-type", "float16"), "float16"),
    ],
)
def test_plan_refuses_in_one_line(words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(["plan", *words])
    except SystemExit as left:
        code = int(left.code or 0)
    err = capsys.readouterr().err
    assert code in (1, 2)
    assert message in err
    assert "Traceback" not in err


def test_plan_of_switching_counts_both_models(capsys: pytest.CaptureFixture[str]) -> None:
    least = [
        json.loads(run_plan(capsys, "-c", "512", *words, "--json")[0].splitlines()[-1])["least_running"]
        for words in ((), ("--mode", "switch"))
    ]
    assert least[0] < least[1], "verified decoding may do without the draft model"
