"""How many threads a model uses: what the user said, what was measured here, or what a rule says where nothing fits."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from edgedecode import load
from edgedecode.runtimes.onnx.kernels import thread_choice
from edgedecode.runtimes.onnx.kernels.thread_choice import LEAST_SAMPLES, SAMPLES, WARM_UP, chosen_threads, fewest_fast
from edgedecode.runtimes.onnx.kernels.trial import load_kernels

needs_kernels = pytest.mark.skipif(load_kernels() is None, reason="edgedecode was installed without its kernels")


@pytest.mark.parametrize(
    ("seconds", "threads"),
    [
        ({1: 1.0}, 1),
        ({1: 2.0, 2: 1.0, 4: 0.99}, 2),
        ({1: 1.0, 2: 0.99, 3: 0.98}, 1),
        ({1: 1.0, 2: 0.6, 4: 0.4, 6: 0.5}, 4),
    ],
)
def test_the_fewest_threads_that_are_nearly_fastest_are_chosen(seconds: dict[int, float], threads: int) -> None:
    assert fewest_fast(seconds) == threads


@pytest.mark.parametrize(("most", "counts"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])])
def test_every_power_of_two_and_the_most_are_tried_as_often(most: int, counts: list[int]) -> None:
    runs: Counter[int] = Counter()
    assert chosen_threads(lambda threads: runs.update([threads]), most=most, kept=None) in counts
    assert runs == dict.fromkeys(counts, WARM_UP + SAMPLES)


def test_a_slow_model_is_measured_with_fewer_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr(thread_choice, "perf_counter", lambda: float(next(clock)))
    runs: Counter[int] = Counter()
    chosen_threads(lambda threads: runs.update([threads]), most=2, kept=None)
    assert runs == dict.fromkeys([1, 2], WARM_UP + LEAST_SAMPLES)


def test_what_was_found_is_kept_and_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_choice, "_busy_cores", lambda: 0.0)
    kept = tmp_path / "choice.json"
    threads = chosen_threads(lambda threads: None, most=1, kept=kept)
    assert json.loads(kept.read_text())["threads"] == threads == 1
    kept.write_text(json.dumps({"threads": 3}))
    assert chosen_threads(_refuse, most=4, kept=kept) == 3


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        '{"threads": 0}',
        '{"threads": 9}',
        '{"threads": "many"}',
        "[]",
        '{"threads": 1, "ends": "x"}',
        '{"threads": Infinity}',
        "[" * 9000,
    ],
)
def test_a_damaged_choice_is_measured_again(tmp_path: Path, content: str) -> None:
    kept = tmp_path / "choice.json"
    kept.write_text(content)
    runs: Counter[int] = Counter()
    assert chosen_threads(lambda threads: runs.update([threads]), most=2, kept=kept) in (1, 2)
    assert runs[2] == WARM_UP + SAMPLES


def test_what_was_found_beside_other_work_holds_for_an_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_choice, "_busy_cores", lambda: 64.0)
    monkeypatch.setattr(thread_choice, "cores", lambda: 2)
    kept = tmp_path / "choice.json"
    threads = chosen_threads(lambda threads: None, most=2, kept=kept)
    assert chosen_threads(_refuse, most=2, kept=kept) == threads
    monkeypatch.setattr(thread_choice, "time", lambda: json.loads(kept.read_text())["ends"] + 1)
    with pytest.raises(AssertionError, match="nothing is to be measured"):
        chosen_threads(_refuse, most=2, kept=kept)


@needs_kernels
def test_a_pack_opens_with_what_is_measured_and_gives_the_same_text_with_any_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = []
    for count in (1, 2):
        monkeypatch.setattr(
            "edgedecode.runtimes.onnx.onnx_model.chosen_threads",
            lambda run, *, most, kept, count=count: min(count, most),
        )
        with load(runtime="onnx") as pair, pair.session() as session:
            assert pair.target.card.threads <= count
            texts.append(session.generate("Tell me about a fox.", max_tokens=16).tokens)
    assert texts[0] == texts[1]


@needs_kernels
def test_the_number_that_the_user_gives_is_used_unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgedecode.runtimes.onnx.onnx_model.chosen_threads", _refuse)
    with load(runtime="onnx", threads=2) as pair:
        assert pair.target.card.threads == 2


def _refuse(*arguments: object, **named: object) -> int:
    raise AssertionError("nothing is to be measured")
