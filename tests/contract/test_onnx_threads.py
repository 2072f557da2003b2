"""The number of threads of a model: the user's, the measured one, or a rule where no measurement fits."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from edgedecode import load
from edgedecode.decoding.model import Output
from edgedecode.runtimes.onnx.kernels import thread_choice
from edgedecode.runtimes.onnx.kernels.thread_choice import LEAST_SAMPLES, SAMPLES, WARM_UP, chosen_threads, fewest_fast
from edgedecode.runtimes.onnx.kernels.trial import load_kernels
from edgedecode.runtimes.onnx.onnx_model import OnnxModel

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
def test_fewest_fast_takes_the_fewest_threads_that_are_nearly_fastest(seconds: dict[int, float], threads: int) -> None:
    assert fewest_fast(seconds) == threads


@pytest.mark.parametrize(("most", "counts"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])])
def test_chosen_threads_tries_powers_of_two_and_the_maximum_equally_often(most: int, counts: list[int]) -> None:
    runs: Counter[int] = Counter()
    assert chosen_threads(lambda threads: runs.update([threads]), most=most, kept=None) in counts
    assert runs == dict.fromkeys(counts, WARM_UP + SAMPLES)


def test_chosen_threads_measures_a_slow_model_with_fewer_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr(thread_choice, "perf_counter", lambda: float(next(clock)))
    runs: Counter[int] = Counter()
    chosen_threads(lambda threads: runs.update([threads]), most=2, kept=None)
    assert runs == dict.fromkeys([1, 2], WARM_UP + LEAST_SAMPLES)


def test_chosen_threads_are_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_chosen_threads_are_measured_again_for_a_damaged_cache(tmp_path: Path, content: str) -> None:
    kept = tmp_path / "choice.json"
    kept.write_text(content)
    runs: Counter[int] = Counter()
    assert chosen_threads(lambda threads: runs.update([threads]), most=2, kept=kept) in (1, 2)
    assert runs[2] == WARM_UP + SAMPLES


def test_chosen_threads_measured_under_load_expire_after_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_choice, "_busy_cores", lambda: 64.0)
    monkeypatch.setattr(thread_choice, "cores", lambda: 2)
    kept = tmp_path / "choice.json"
    clock = [1000.0]
    monkeypatch.setattr(thread_choice, "time", lambda: clock[0])
    threads = chosen_threads(lambda threads: None, most=2, kept=kept)
    clock[0] += 299
    assert chosen_threads(_refuse, most=2, kept=kept) == threads
    clock[0] += 2
    with pytest.raises(AssertionError, match="no measurement is expected"):
        chosen_threads(_refuse, most=2, kept=kept)


@needs_kernels
def test_open_uses_the_chosen_threads_and_gives_the_same_text_with_any(monkeypatch: pytest.MonkeyPatch) -> None:
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
@pytest.mark.parametrize(("wide", "threads"), [({1: 4.0, 2: 2.5}, 2), ({1: 2.5, 2: 2.5}, 1)], ids=["slower", "as fast"])
def test_open_weighs_passes_of_one_row_and_wide_ones(
    wide: dict[int, float], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row is nearly as fast with either number of threads."""
    clock, passes, forward = [0.0], Counter[tuple[int, int]](), OnnxModel.forward

    def timed(self: OnnxModel, tokens: Sequence[int], *given: Any, **how: Any) -> Output:
        used = self.card.threads or 0
        clock[0] += {1: {1: 1.0, 2: 1.1}, 8: wide}[len(tokens)][used] / 1000
        passes[len(tokens), used] += 1
        return forward(self, tokens, *given, **how)

    monkeypatch.setattr(OnnxModel, "forward", timed)
    monkeypatch.setattr(thread_choice, "perf_counter", lambda: clock[0])
    monkeypatch.setattr("edgedecode.runtimes.onnx.onnx_runtime.most_threads", lambda: 2)
    monkeypatch.setattr("edgedecode.runtimes.onnx.onnx_runtime.kept_choice", lambda facts: None)
    with load(runtime="onnx") as pair:
        assert pair.target.card.threads == threads
    assert passes == dict.fromkeys([(1, 1), (1, 2), (8, 1), (8, 2)], WARM_UP + SAMPLES)


@needs_kernels
def test_open_uses_the_users_threads_without_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgedecode.runtimes.onnx.onnx_model.chosen_threads", _refuse)
    with load(runtime="onnx", threads=2) as pair:
        assert pair.target.card.threads == 2


def _refuse(*arguments: object, **named: object) -> int:
    raise AssertionError("no measurement is expected")
