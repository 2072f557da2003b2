"""`export --compare`: measurements and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgedecode.cli import main
from edgedecode.engines.text_scores import ScoredText
from edgedecode.errors import ExportError
from edgedecode.export.recipes.scored_texts import read_texts
from edgedecode.text.chat_template import ChatTemplate
from edgedecode.text.tokenizer import Tokenizer

pytestmark = pytest.mark.export

ROW = {"messages": [{"role": "user", "content": "What is it?"}], "answer": "A fox in the garden."}


def run(*words: str | Path) -> int:
    return main([str(word) for word in words])


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "scored.txt"
    path.write_text("A hen and a fox went to the harbor, and the fox was sad. " * 4)
    return path


@pytest.fixture
def calibration(tmp_path: Path) -> Path:
    path = tmp_path / "calibration.jsonl"
    path.write_text("\n".join(json.dumps(ROW) for _ in range(4)))
    return path


@pytest.mark.usefixtures("tables_too")
def test_compare_measures_every_recipe(
    llama: Path,
    text: Path,
    calibration: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path / "cache"))
    words = ("--compare-text", text, "--calibrate-text", calibration, "--json")
    assert run("export", "--target", llama, "--compare", *words) == 0
    printed = capsys.readouterr().out
    report = json.loads(printed.splitlines()[-1])["target"]
    recipes = {recipe["recipe"]: recipe for recipe in report["recipes"]}
    mixed = "int4 block 32, q, k, v, layers 0 and 1 and head int8"
    plain = ["int8 block 32", mixed, "int4 block 32, head int8"]
    assert list(recipes) == [
        name for found in plain for name in ([found] if "int8 block" in found else [found, f"{found}, calibrated"])
    ]
    sizes = [recipes[name]["weights_nbytes"] for name in plain]
    assert sizes[0] >= sizes[1] > sizes[2]
    assert recipes["int8 block 32"]["top1"] > 0.9
    assert all(recipe["tokens_per_second"] > 0 and recipe["c4"] > 0 for recipe in recipes.values())
    assert len(report["left_out"]) == 2  # 128 does not divide this model's sizes
    assert f"scored: {report['scored_tokens']} tokens of {text}" in printed
    kept = {path.parent.name for path in (tmp_path / "cache").rglob("*") if path.is_file()}
    assert kept <= {"kernels"}  # the result of the kernels' trial run


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--compare", "--bits", "4", "--mixed"), "leave out --bits, --mixed"),
        (("--compare", "--out", "pack"), "leave out --out"),
        (("--compare", "--dry-run", "--no-cache"), "leave out --dry-run, --no-cache"),
        (("--compare", "--graphs", "lora", "--noise-positions", "5"), "leave out --noise-positions, --graphs"),
        (("--compare", "--compare-text", "a.txt", "--calibrate-text", "a.txt"), "also the scored text"),
        ((), "required: --out"),
        (("--out", "pack", "--compare-text", "a.txt"), "it needs --compare"),
        (("--out", "pack", "--mixed"), "add --bits 4"),
        (("--out", "pack", "--calibrated"), "add --bits 4"),
    ],
)
def test_compare_refuses_bad_arguments(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        run("export", "--target", "x", *words)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_compare_without_a_target_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run("export", "--compare")
    assert "--target" in capsys.readouterr().err


def test_compare_refuses_a_missing_text(llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("export", "--target", llama, "--compare", "--compare-text", "nowhere.txt") == 1
    assert "nowhere.txt cannot be read" in capsys.readouterr().err


def read(path: Path, folder: Path, *, template: bool = True) -> tuple[ScoredText, ...]:
    found = ChatTemplate((folder / "chat_template.jinja").read_text()) if template else None
    return read_texts(path, tokenizer=Tokenizer.from_file(folder / "tokenizer.json"), template=found, context=256)


def test_read_texts_scores_the_answer_of_a_conversation(llama: Path, calibration: Path) -> None:
    tokenizer = Tokenizer.from_file(llama / "tokenizer.json")
    texts = read(calibration, llama)
    assert len(texts) == 4
    assert tokenizer.decode(texts[0].tokens[texts[0].start :]) == ROW["answer"]
    assert tokenizer.decode(texts[0].tokens[: texts[0].start]) == "user: What is it?\n"


def test_read_texts_scores_plain_text_after_the_first_token(llama: Path, text: Path) -> None:
    texts = read(text, llama)
    assert {found.start for found in texts} == {1}
    assert all(len(found.tokens) <= 256 for found in texts)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "", "contains no text to score"),
        ("a.jsonl", "\n", "contains no text to score"),
        ("a.jsonl", "{", "line 1 is not JSON"),
        ("a.jsonl", json.dumps(ROW) + "\n[]", "line 2 is not a JSON object"),
        ("a.jsonl", '{"messages": [{"role": "user"}]}', "line 1: a message has no content"),
        ("a.txt", b"\xff\xfe", "is not valid UTF-8"),
    ],
)
def test_read_texts_refuses_invalid_files(
    name: str, content: str | bytes, message: str, llama: Path, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ExportError, match=message):
        read(path, llama)


def test_read_texts_of_conversations_needs_a_template(llama: Path, calibration: Path) -> None:
    with pytest.raises(ExportError, match="no chat template"):
        read(calibration, llama, template=False)
