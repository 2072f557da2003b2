"""The target's answers: deterministic for a seed, cached in files, and resumed after an interruption."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from edgedecode import Pair
from edgedecode.errors import ContextExceeded
from edgedecode.export.trim import answers as answering
from edgedecode.export.trim.answers import Answering, KeptAnswers, answer_prompts
from edgedecode.text.messages import Message
from edgedecode.text.prompts import Prompt
from tests.export.trim.toy_pack import VOCABULARY, TrimRuntime, open_toy, toy_runtime, write_toy_pack

PROMPTS = [Prompt("a", (), (f"ask {number}",)) for number in range(4)]
TWICE = Answering(max_tokens=12, answers=2, seed=5)


@pytest.fixture
def runtime() -> TrimRuntime:
    return toy_runtime()


@pytest.fixture
def pair(tmp_path: Path, runtime: TrimRuntime, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path / "cache"))
    return open_toy(write_toy_pack(tmp_path / "pack"), runtime)


def no_cache() -> KeptAnswers:
    return KeptAnswers(None, vocabulary_size=VOCABULARY)


def test_answer_prompts_first_answer_is_greedy_and_others_follow_the_seed(pair: Pair) -> None:
    one = answer_prompts(pair, PROMPTS, TWICE, kept=no_cache())
    assert one == answer_prompts(pair, PROMPTS, TWICE, kept=no_cache())
    other = answer_prompts(pair, PROMPTS, Answering(12, 2, seed=6), kept=no_cache())
    assert [texts[0] for texts in one] == [texts[0] for texts in other]
    assert [texts[1] for texts in one] != [texts[1] for texts in other]
    assert [[text.greedy for text in texts] for texts in one] == [[True, False]] * 4
    assert [text.group for texts in one for text in texts] == [0, 0, 1, 1, 2, 2, 3, 3]
    # an answer does not depend on earlier prompts
    assert answer_prompts(pair, PROMPTS[2:3], TWICE, kept=no_cache())[0][1].tokens == one[2][1].tokens


def test_answer_prompts_scores_only_the_assistants_tokens(pair: Pair) -> None:
    prompt = Prompt("a", (Message("user", "hi"), Message("assistant", "ho")), ("one", "two"))
    first, second = answer_prompts(pair, [prompt], Answering(max_tokens=9), kept=no_cache())[0]
    header = pair.tokenizer.encode("<|im_start|>assistant\n")
    for text in (first, second):
        assert list(text.tokens[text.start - len(header) : text.start]) == header
        assert 1 <= len(text.scored) <= 9
        assert text.ended == (len(text.scored) < 9)
    assert second.tokens[: len(first.tokens)] == first.tokens, "the second turn sees the first"


def test_answer_prompts_resumes_an_interrupted_run(pair: Pair, runtime: TrimRuntime) -> None:
    done: list[int] = []

    def interrupt(amount: int) -> None:
        done.append(amount)
        if len(done) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        answer_prompts(pair, PROMPTS, TWICE, kept=KeptAnswers.of(pair), advance=interrupt)
    complete = answer_prompts(pair, PROMPTS, TWICE, kept=no_cache())
    passes = len(pair.target.passes)  # type: ignore[attr-defined]
    again = answer_prompts(pair, PROMPTS, TWICE, kept=KeptAnswers.of(pair))
    resumed = len(pair.target.passes) - passes  # type: ignore[attr-defined]
    assert again == complete
    assert 0 < resumed < passes
    answer_prompts(pair, PROMPTS, TWICE, kept=KeptAnswers.of(pair))
    assert len(pair.target.passes) == passes + resumed, "all answers come from the cache"  # type: ignore[attr-defined]


def test_answer_prompts_replaces_damaged_files(pair: Pair, tmp_path: Path) -> None:
    complete = answer_prompts(pair, PROMPTS, TWICE, kept=KeptAnswers.of(pair))
    files = sorted((tmp_path / "cache" / "trim").iterdir())
    assert len(files) == 8
    kept = [file.read_text() for file in files]
    damaged = ["{", "[]", '{"key": "x"}', '{"texts": [{"tokens": [99999], "start": 1}]}', kept[4][:40]]
    for file, text in zip(files, damaged, strict=False):
        file.write_text(text)
    assert answer_prompts(pair, PROMPTS, TWICE, kept=KeptAnswers.of(pair)) == complete
    assert [file.read_text() for file in files] == kept


def test_answer_prompts_names_a_prompt_that_does_not_fit(pair: Pair) -> None:
    with pytest.raises(ContextExceeded, match=r"the prompt 'x{40}' cannot be answered: prompt is too long"):
        answer_prompts(pair, [Prompt("a", (), ("x" * 1200,))], TWICE, kept=no_cache())


@pytest.mark.skipif(os.name == "nt", reason="POSIX file modes")
def test_kept_answers_are_private_and_older_files_are_made_private(pair: Pair, tmp_path: Path) -> None:
    """Answers reveal the user's prompts."""
    folder = tmp_path / "cache" / "trim"
    folder.mkdir(parents=True)
    (folder / "older.jsonl").write_text("{}\n")
    for path, mode in ((folder, 0o755), (folder / "older.jsonl", 0o644)):
        path.chmod(mode)
    answer_prompts(pair, PROMPTS[:1], TWICE, kept=KeptAnswers.of(pair))
    new_file = next(iter({*folder.iterdir()} - {folder / "older.jsonl"}))
    assert new_file.stat().st_size
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (folder, new_file, folder / "older.jsonl")]
    assert modes == [0o700, 0o600, 0o600]


def test_kept_answers_are_deleted_by_age_and_total_size(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_prompts(pair, PROMPTS[:1], TWICE, kept=KeptAnswers.of(pair))
    folder = tmp_path / "cache" / "trim"
    new_files = {path.stem for path in folder.iterdir()}
    for name, days in (("old", 31), ("large", 20), ("small", 10), ("new", 0)):
        path = folder / f"{name}.json"
        path.write_bytes(bytes(1000 if name == "large" else 10))
        os.utime(path, (time.time() - days * 86400,) * 2)
    kept = sum(path.stat().st_size for path in folder.iterdir() if path.stem in new_files)
    monkeypatch.setattr(answering, "_MAX_CACHE_NBYTES", kept + 500)
    KeptAnswers.of(pair)
    assert {path.stem for path in folder.iterdir()} == {*new_files, "small", "new"}
