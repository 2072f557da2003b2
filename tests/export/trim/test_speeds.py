"""Timing of full answers by arm, and `--report`, which needs a drafter for the trimmed head."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgedecode import Session, SessionOptions
from edgedecode.cli import main
from edgedecode.decoding.drafter import Drafter
from edgedecode.drafters.model_drafter import ModelDrafter, ModelSource
from edgedecode.drafters.source import DraftSetting
from edgedecode.errors import CapabilityError
from edgedecode.export.trim import timing as speeds
from edgedecode.export.trim import trim_pack as run
from edgedecode.export.trim.timing import ANSWER_REPETITIONS as REPETITIONS
from edgedecode.export.trim.timing import ANSWERS_PER_PROMPT, MAX_TOKENS, Speeds, measure_speeds
from edgedecode.pack.manifest import Manifest
from edgedecode.pair import Pair
from edgedecode.text.messages import Message
from edgedecode.text.prompts import Prompt
from tests.export.trim.toy_pack import CONTEXT, TrimmedTables, open_toy, toy_runtime, wide_tokenizer, write_toy_pack


class TrimmedSource(ModelSource):
    """Drafts with the first 1,300 ids of the draft model, regardless of the pack."""

    name = "trim"
    opened = 0

    def open(self, setting: DraftSetting) -> Drafter:
        import numpy as np

        assert setting.draft_model is not None
        type(self).opened += 1
        return ModelDrafter(TrimmedTables(setting.draft_model, np.arange(1300)), setting)  # type: ignore[arg-type]


def open_with_drafter(root: Path) -> Pair:
    pair = open_toy(root, toy_runtime())
    pair.add_drafter_source(TrimmedSource())
    return pair


class Clock:
    """A fake clock: each reading advances it by the pace of the current arm."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, pace: Callable[[str, int], float]) -> None:
        self._now = 0.0
        self.sessions: list[tuple[str, int | None]] = []
        open_session = Pair.session

        def session(pair: Pair, options: SessionOptions, **others: Any) -> Session:
            drafter = str(options.drafter)
            self._step = pace(drafter, sum(drafter == each for each, _ in self.sessions))
            self.sessions.append((drafter, options.draft_max))
            return open_session(pair, options, **others)

        monkeypatch.setattr(Pair, "session", session)
        monkeypatch.setattr(speeds, "perf_counter", self.read)

    def read(self) -> float:
        self._now += self._step
        return self._now


SECONDS = {"none": 6.0, "model": 4.0, "trim": 2.0}
PROMPTS = {"a": [Prompt("a", (), ("x",)), Prompt("a", (), ("y",))], "b": [Prompt("b", (), ("z",))]}


def test_measure_speeds_times_every_prompt_in_every_arm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, lambda drafter, answer: SECONDS[drafter])
    done: list[int] = []
    with open_with_drafter(write_toy_pack(tmp_path)) as pair:
        found = measure_speeds(pair, PROMPTS, whole_length=2, trimmed_length=3, advance=done.append)
    assert len(done) == len(clock.sessions) == 3 * ANSWERS_PER_PROMPT
    assert Counter(clock.sessions) == dict.fromkeys([("none", None), ("model", 2), ("trim", 3)], 3 * REPETITIONS)
    assert found == {"a": Speeds(whole=1.5, trimmed=3.0), "b": Speeds(whole=1.5, trimmed=3.0)}


def test_measure_speeds_ignores_outlier_repetitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pace(drafter: str, answer: int) -> float:
        slowed = 3.0 if answer == 3 else 1.0
        outlier = 0.1 if answer in {0, 4} and drafter == "trim" else 1.0
        return SECONDS[drafter] * slowed * outlier

    Clock(monkeypatch, pace)
    with open_with_drafter(write_toy_pack(tmp_path)) as pair:
        found = measure_speeds(pair, {"b": PROMPTS["b"]}, whole_length=2, trimmed_length=3)
    assert found == {"b": Speeds(whole=1.5, trimmed=3.0)}


@pytest.fixture
def reported(toy: Path, cheap_heads: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The toy pack, with a drafter for the trimmed head so that full answers can be timed."""
    monkeypatch.setattr(run, "load", lambda root, **_: open_with_drafter(root))
    monkeypatch.setattr(run, "find_drafter", lambda name: TrimmedSource())
    return toy


FEW = ("--prompts", "12", "--max-tokens", "24", "--per-category", "1", "--size", "300", "--report")


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(speeds, "_seconds", fail)


@pytest.mark.usefixtures("tables_too")
def test_report_without_speeds_if_the_timing_fails(
    reported: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(monkeypatch, CapabilityError("the engine\ngave up"))
    assert main(["trim", str(reported), *FEW, "--json"]) == 0
    printed = capsys.readouterr()
    notice = "is trimmed, but full answers were not timed: the engine gave up"
    assert [line for line in printed.err.splitlines() if "edgedecode: " in line] == [
        f"edgedecode: the pack {reported} {notice}"
    ]
    report = json.loads(printed.out.splitlines()[-1])
    assert (report["size"], report["measured"]) == (300, {})
    assert set(report["files"]) == {"draft/heads.onnx", "draft/trim.ids"}
    assert "300 of 1300 ids: a draft step takes" in printed.out
    assert "S measured" not in printed.out


def test_report_interrupted_while_timing_prints_the_findings(
    reported: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    drawing = reported.parent / "trim.svg"
    failing(monkeypatch, KeyboardInterrupt())
    assert main(["trim", str(reported), *FEW, "--plot", str(drawing)]) == 130
    printed = capsys.readouterr()
    assert "300 of 1300 ids: a draft step takes" in printed.out
    assert printed.err.endswith("edgedecode: interrupted\n")
    svg = drawing.read_text()
    assert all(name in svg for name in ("300", "coverage", "calibration", "multilingual"))
    trim = Manifest.load(reported).models["draft"].trim
    assert trim is not None
    assert trim.size == 300


def test_report_skips_prompts_that_leave_no_room_for_an_answer(
    reported: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    timed_prompts: list[str] = []
    monkeypatch.setattr(speeds, "_seconds", lambda pair, prompt, options: timed_prompts.append(prompt.turns[0]) or 1.0)
    room = CONTEXT - MAX_TOKENS - len(prompt_tokens(""))
    contents = {"fits": "." * room, "over": "." * (room + 1), "long": "." * CONTEXT}
    rows = [
        {"category": name, "messages": [{"role": "user", "content": text}], "answer": "bcdf" * 9}
        for name, text in (*contents.items(), ("long", "short"))
    ]
    file = reported.parent / "categories.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    few = ("--prompts", "12", "--max-tokens", "24", "--size", "300", "--report", "--json")
    assert main(["trim", str(reported), *few, "--categories", str(file)]) == 0
    assert {contents["fits"], "short"} <= set(timed_prompts)
    assert not {contents["over"], contents["long"]} & set(timed_prompts)
    measured = json.loads(capsys.readouterr().out)["measured"]
    assert set(measured) == {"calibration", "fits", "long"}


def prompt_tokens(content: str) -> list[int]:
    tokenizer = wide_tokenizer()
    return tokenizer.encode(tokenizer.chat_template.render([Message("user", content)]))


@pytest.mark.usefixtures("tables_too")
def test_report_times_full_answers(reported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    TrimmedSource.opened = 0
    assert main(["trim", str(reported), *FEW, "--json"]) == 0
    printed = capsys.readouterr().out
    measured = json.loads(printed.splitlines()[-1])["measured"]
    assert set(measured) == {"calibration", "code", "math", "prose", "structured", "multilingual"}
    assert all(each["whole"] > 0 and each["trimmed"] > 0 for each in measured.values())
    trim = Manifest.load(reported).models["draft"].trim  # the report saves the speeds in the manifest
    assert trim is not None
    assert trim.categories is not None
    assert {name: (each.measured_full, each.measured) for name, each in trim.categories.items()} == {
        name: (each["whole"], each["trimmed"]) for name, each in measured.items()
    }
    assert trim.step_share is not None
    assert TrimmedSource.opened > 0
    assert "S measured" in printed
    assert f"the median of {REPETITIONS} interleaved repetitions" in " ".join(printed.split())
