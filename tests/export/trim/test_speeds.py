"""Whole answers timed by arm, and the report's option, which needs a drafter for the trimmed head."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgedecode.cli import main
from edgedecode.drafters.model import ModelDrafter, ModelSource
from edgedecode.export.trim import run, speeds
from edgedecode.export.trim.speeds import ANSWERS_PER_PROMPT, measure_speeds
from edgedecode.pair import Pair
from edgedecode.prompts import Prompt
from edgedecode.protocols import Drafter, DraftSetting
from tests.export.trim.toy_pack import TrimmedTables, open_toy, toy_runtime, write_toy_pack


class TrimmedSource(ModelSource):
    """Drafts with some of the draft model's ids, whatever the pack says."""

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


def test_every_arm_answers_every_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10**6))
    monkeypatch.setattr(speeds, "perf_counter", lambda: float(next(clock)))
    done: list[int] = []
    prompts = {"a": [Prompt("a", (), ("x",)), Prompt("a", (), ("y",))], "b": [Prompt("b", (), ("z",))]}
    with open_with_drafter(write_toy_pack(tmp_path)) as pair:
        found = measure_speeds(pair, prompts, whole_length=2, trimmed_length=3, advance=done.append)
    assert len(done) == 3 * ANSWERS_PER_PROMPT
    assert set(found) == {"a", "b"}
    assert all((each.whole, each.trimmed) == (1.0, 1.0) for each in found.values()), "by a clock that counts answers"


def test_the_report_times_whole_answers(
    toy: Path, cheap_heads: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "load", lambda root, **_: open_with_drafter(root))
    monkeypatch.setattr(run, "find_drafter", lambda name: TrimmedSource())
    TrimmedSource.opened = 0
    few = ("--prompts", "12", "--max-tokens", "24", "--per-category", "1", "--size", "300")
    assert main(["trim", str(toy), *few, "--report", "--json"]) == 0
    printed = capsys.readouterr().out
    measured = json.loads(printed.splitlines()[-1])["measured"]
    assert set(measured) == {"calibration", "code", "math", "prose", "structured", "multilingual"}
    assert all(each["whole"] > 0 and each["trimmed"] > 0 for each in measured.values())
    assert TrimmedSource.opened > 0
    assert "S measured" in printed
