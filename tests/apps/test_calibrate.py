"""The verb `calibrate`: a curve is measured, saved and used; bad input is one line that changes nothing."""

import json
import logging
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import edgedecode
from edgedecode import LoadOptions, SessionDetails, SessionOptions, SwitchOptions
from edgedecode.apps import bundled_prompts
from edgedecode.apps.calibrate.arms import ArmResult, point_of, quality_low
from edgedecode.apps.calibrate.calibrate_run import PLAIN, halves
from edgedecode.apps.calibrate.task_files import Kind, Task
from edgedecode.apps.calibrate.text_signals import AnswerSignals, best_signal, thresholds
from edgedecode.cli import main
from edgedecode.library import find
from edgedecode.library.names import BUNDLED_PACK
from edgedecode.pack.entries import SwitchCurve, SwitchPoint
from edgedecode.pack.integrity import models_digest
from edgedecode.pack.manifest import Manifest
from edgedecode.sessions.switch_choice import CAREFUL, switch_rule
from edgedecode.switching.rule import SIGNALS
from edgedecode.user_notices import NOTICES
from tests.conftest import Refusal, Told

PROMPTS = Path(bundled_prompts.__file__).parent / "prompts.jsonl"
FEW = ("--limit", "44", "-n", "12", "--runtime", "onnx")


def point(up: float, low: float, share: float) -> SwitchPoint:
    return SwitchPoint(up, accuracy=0.5, quality=low + 0.01, quality_low=low, target_share=share, speed=1.0)


@pytest.fixture(autouse=True)
def _few_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgedecode.apps.calibrate.calibrate_run.POINTS", 2)


def curve(*points: SwitchPoint, models: str = "") -> SwitchCurve:
    return SwitchCurve("doubt", points, 100, "p", 0.8, 0.4, "onnx", models)


def test_curve_picks_the_least_share_of_the_target_that_keeps_the_quality() -> None:
    found = curve(point(0.1, 0.99, 0.6), point(0.2, 0.975, 0.4), point(0.3, 0.98, 0.45), point(0.5, 0.7, 0.1))
    assert found.threshold(1.0) is None
    assert [found.threshold(quality) for quality in (0.98, 0.97, 0.5)] == [found.points[i] for i in (2, 1, 3)]


def test_switch_rule_is_that_of_the_curve_or_careful(caplog: pytest.LogCaptureFixture) -> None:
    manifest = Manifest.load(BUNDLED_PACK)
    own = curve(point(0.2, 0.975, 0.4), models=models_digest(manifest))
    with caplog.at_level(logging.INFO, logger=NOTICES):
        rule = switch_rule(SwitchOptions(), replace(manifest, switching=own))
        assert (rule.up, rule.signal) == (0.2, "doubt")
        assert not caplog.records
        assert switch_rule(SwitchOptions(quality=0.99), replace(manifest, switching=own)).up == 0
        assert switch_rule(SwitchOptions(), replace(manifest, switching=None)) == CAREFUL
        assert switch_rule(SwitchOptions(), replace(manifest, switching=replace(own, models="other"))) == CAREFUL
    words = ("keeps 99%", "has no switching curve", "curve of other models")
    assert all(word in record.getMessage() for word, record in zip(words, caplog.records, strict=True))


def test_quality_bound_of_known_answers() -> None:
    target = [True] * 80 + [False] * 20
    assert quality_low(target, target) == 1
    worse = [True] * 60 + [False] * 40
    low = quality_low(worse, target)
    assert 0.66 < low < 0.70, "three quarters, less 1.64 standard deviations of 4.8%"
    assert quality_low(worse, [False] * 100) == 0
    assert quality_low([True, False, True, False], [True, False, False, False]) >= 0, "also if a resampled set has none"
    target_arm = ArmResult(correct=target, tokens=100, verified=100, seconds=2.0)
    found = ArmResult(correct=worse, tokens=100, verified=30, seconds=1.0)
    assert point_of(0.5, found, target_arm) == SwitchPoint(0.5, 0.6, pytest.approx(0.75), low, 0.3, 2.0)


def test_best_signal_catches_the_differences_with_the_fewest_tokens() -> None:
    differs = np.array([False] * 8 + [True] * 2)
    clear, vague = np.arange(10.0), np.array([9.0, 8, 7, 6, 5, 4, 3, 2, 1, 0.5])
    values = {name: clear if name == "rivalry" else vague for name in SIGNALS}
    assert best_signal(AnswerSignals(values, differs)) == "rivalry"
    ups = thresholds(np.linspace(0, 1, 1001), 4)
    assert ups == sorted(ups)
    assert [round(1 - up, 2) for up in ups] == [0.6, 0.28, 0.13, 0.06]


def test_calibrate_saves_a_curve_that_sessions_use(pack_copy: Path, told: Told) -> None:
    value = told("calibrate", str(pack_copy), "--prompts", str(PROMPTS), *FEW)
    found = Manifest.load(pack_copy).switching
    assert value["saved"]
    assert [up["up"] for up in value["curve"]["points"]] == [each.up for each in found.points]
    assert found.prompts == 22
    assert found.target_accuracy == 1, "questions without a reference are compared with the target's answers"
    options = SessionOptions(details=SessionDetails(switch=SwitchOptions(quality=0.01)))
    with (
        edgedecode.load(pack_copy, runtime="onnx", options=LoadOptions(verify=True)) as pair,
        pair.session(options) as session,
    ):
        session.generate("Tell me a story.", max_tokens=24)
        assert session.stats.unverified_tokens > 0


@pytest.mark.parametrize("families", [1, 2, 3, 4, 7])
def test_both_halves_have_questions_of_every_family(families: int) -> None:
    tasks = [
        Task(f"{family}:{number}", f"family {family}", Kind.EXACT, (), ("q",), "a")
        for number in range(9)
        for family in range(families)
    ]
    first, second = halves(tasks)
    assert sorted(task.name for task in first + second) == sorted(task.name for task in tasks)
    assert abs(len(first) - len(second)) <= 1
    for half in (first, second):
        counts = Counter(task.family for task in half)
        assert len(counts) == families
        assert {*counts.values()} <= {4, 5}


def test_calibrate_shows_a_target_that_answers_no_held_out_question(
    pack_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(find, "BUNDLED_PACK", pack_copy)
    rows = [json.dumps({"question": "Say x.", "answer": "nothing says this"})] * 40
    with edgedecode.load(pack_copy, runtime="onnx") as pair, pair.session(PLAIN) as session:
        rows[0] = json.dumps({"question": "77 + 47 =", "answer": session.generate("77 + 47 =", max_tokens=4).text})
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(rows), encoding="utf-8")
    words = ["calibrate", "demo", "--prompts", str(file), "--runtime", "onnx", "-n", "4"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "held-out prompts" in out
    assert "the target answers no held-out prompt" in out or "No measured threshold" in out
    assert Manifest.load(pack_copy).switching is not None


LONG = json.dumps({"question": "a fox " * 3000, "answer": "y"})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is empty"),
        ('{"question": "a", "answer": "b"}\n' * 5, "5 prompts cannot calibrate: give at least 40"),
        ('{"question": "Say x.", "answer": "nothing says this"}\n' * 40, "answers none of these prompts correctly"),
        ('{"question": "Say x.", "answer": "y"}\n' * 40 + LONG, "prompts:41 has 6"),
    ],
    ids=["empty", "too few", "no accuracy", "too long"],
)
def test_calibrate_refuses_prompts_that_measure_nothing(
    content: str, words: str, pack_copy: Path, tmp_path: Path, refusal: Refusal
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(content, encoding="utf-8")
    before = (pack_copy / "edgedecode.json").read_bytes()
    assert words in refusal("calibrate", str(pack_copy), "--prompts", str(file), "--runtime", "onnx", "-n", "4")
    assert (pack_copy / "edgedecode.json").read_bytes() == before
