"""`edgedecode trim` on a toy pack: changes, output and refusals."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgedecode.cli import main
from edgedecode.errors import ExportError
from edgedecode.export import frameworks
from edgedecode.export.trim import answers, measuring, pack_change
from edgedecode.export.trim import head_files as heads
from edgedecode.export.trim import sweep as prediction
from edgedecode.export.trim import trim_pack as run
from edgedecode.export.trim.timing import HeadTimes, PassTimes
from edgedecode.pack import gate
from edgedecode.pack.integrity import check_files
from edgedecode.pack.manifest import MANIFEST_NAME, Manifest
from edgedecode.pack.token_map import read_token_ids
from tests.export.trim.toy_pack import ALWAYS, VOCABULARY, open_toy, toy_runtime, write_toy_pack
from tests.hub import Hub, check_download

FEW = ("--prompts", "48", "--max-tokens", "40", "--per-category", "2")


def content(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def run_trim(toy: Path, *words: str) -> int:
    return main(["trim", str(toy), *FEW, *words])


@pytest.mark.usefixtures("tables_too")
def test_trim_writes_the_best_size(toy: Path, cheap_heads: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_trim(toy, "--json") == 0
    printed = capsys.readouterr().out
    report = json.loads(printed.splitlines()[-1])
    # 320 is the smallest size with enough coverage
    assert [each["size"] for each in report["sizes"]] == [320, 325, 650, 1024]
    assert report["size"] == report["best"] == 320
    assert report["recommended"] is True
    main_row = report["sizes"][0]["categories"]["calibration"]
    assert main_row["coverage"] >= 0.99
    assert main_row["speed_up"] > report["whole"]["categories"]["calibration"]["speed_up"]
    assert report["sizes"][0]["step_seconds"] == pytest.approx(0.5 * 320 / VOCABULARY)
    manifest = Manifest.load(toy)
    check_files(manifest, toy, full=True)
    entry = manifest.models["draft"].trim
    assert entry is not None
    assert (entry.size, entry.recommended, entry.length) == (320, True, main_row["length"])
    assert list(entry.categories or {}) == ["calibration", "code", "math", "prose", "structured", "multilingual"]
    assert "answers to 48 of the bundled prompts, 2 each, 40 at most, seed 0" in entry.calibration
    kept = read_token_ids(toy / entry.token_ids, rows=320, vocabulary_size=VOCABULARY)
    assert set(range(ALWAYS)) <= set(kept.ids.tolist())
    assert report["files"] == {name: manifest.files[name].nbytes for name in ("draft/heads.onnx", "draft/trim.ids")}
    assert "320 of 1300 ids: a draft step takes 75.4% less" in printed
    assert "; recommended" in printed


def test_a_trimmed_pack_comes_from_the_hub(
    toy: Path, cheap_heads: None, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_trim(toy) == 0
    monkeypatch.setattr(gate, "_check_models", lambda *_: None)  # its graphs are placeholders
    check_download(hub, toy)


def test_trim_warns_of_text_outside_the_vocabulary(
    toy: Path, cheap_heads: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """The given answer has pairs of letters that the toy never generates."""
    rows = [
        {"category": "given", "messages": [{"role": "user", "content": "x"}], "answer": "bcdfghjkabacadaeaf" * 4},
        {"category": "generated", "messages": [{"role": "user", "content": "x"}]},
    ]
    file = toy.parent / "categories.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    assert run_trim(toy, "--size", "330", "--categories", str(file)) == 0
    entry = Manifest.load(toy).models["draft"].trim
    assert entry is not None
    (warning,) = [warning for warning in entry.warnings if warning.startswith("given")]
    assert "of its tokens outside" in warning
    assert not [warning for warning in entry.warnings if warning.startswith("generated")]
    printed = capsys.readouterr().out
    assert f"warning: {warning}" in printed
    assert main(["show", "--full", str(toy)]) == 0
    shown = capsys.readouterr().out
    assert "models.draft.trim.warnings.1" in shown


def test_trim_with_the_same_seed_gives_the_same_bytes(toy: Path, cheap_heads: None) -> None:
    maps = []
    for seed in ("1", "1", "2"):
        assert run_trim(toy, "--size", "300", "--seed", seed, "--prompts", "24") == 0
        entry = Manifest.load(toy).models["draft"].trim
        assert entry is not None
        maps.append((toy / entry.token_ids).read_bytes())
    assert maps[0] == maps[1] != maps[2]


def test_trim_without_a_faster_size_changes_nothing(
    toy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measuring, "time_target", lambda *_, **__: PassTimes(dict.fromkeys(range(1, 10), 1.0)))
    monkeypatch.setattr(measuring, "time_heads", lambda *_, **__: HeadTimes(0.5, 1.2))
    before = content(toy)
    assert run_trim(toy) == 0
    assert content(toy) == before
    out = capsys.readouterr().out
    assert "no size is faster, and nothing was changed: the best size, " in out
    assert "the pack keeps its trim" not in out
    assert run_trim(toy, "--size", "400") == 0
    assert "not recommended: the best size, 400 ids" in capsys.readouterr().out
    entry = Manifest.load(toy).models["draft"].trim
    assert entry is not None
    assert not entry.recommended
    assert run_trim(toy) == 0
    assert "; the pack keeps its trim of 400 ids" in capsys.readouterr().out


def test_trim_refuses_an_unwritable_disk_before_answering(
    toy: Path, cheap_heads: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = content(toy)
    monkeypatch.setattr(run, "gather", None)  # no prompt may be answered
    with monkeypatch.context() as patch:
        patch.setattr(pack_change.shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
        assert run_trim(toy) == 1
    assert "ids need about 1.1 MB and " in capsys.readouterr().err

    def read_only(**_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patch:
        patch.setattr(pack_change.tempfile, "TemporaryFile", read_only)
        assert run_trim(toy) == 1
    assert "cannot be written (Read-only file system)" in capsys.readouterr().err
    assert content(toy) == before


def test_trim_coverage_bound_limits_the_best_size(
    toy: Path, cheap_heads: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = toy.parent / "prompts.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": f"tell me {number}"}) for number in range(24)))
    words = ("--calibrate", str(file), "--answers", "1", "--json")
    assert run_trim(toy, *words, "--coverage", "1") == 0
    assert "held-out tokens are too few" in capsys.readouterr().out
    monkeypatch.setattr(prediction, "LEAST_TOKENS", 0)
    assert run_trim(toy, *words, "--coverage", "1") == 0
    report = json.loads(capsys.readouterr().out)
    covered = [each["size"] for each in report["sizes"] if each["categories"]["calibration"]["coverage"] == 1.0]
    assert report["best"] == (min(covered) if covered else None)
    assert report["coverage_bound"] == 1.0
    assert report["calibration"].endswith("answers to 24 of prompts.jsonl, 1 each, 40 at most, seed 0")


def test_trim_times_real_passes_and_takes_text(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = toy.parent / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 40)
    assert run_trim(toy, "--size", "300", "--text", str(text), "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert all(seconds > 0 for seconds in report["target_seconds"].values())
    assert report["sizes"][0]["step_seconds"] > 0
    assert "of text.txt, seed 0" in report["calibration"]


def test_trim_remove_restores_the_pack(toy: Path, cheap_heads: None, capsys: pytest.CaptureFixture[str]) -> None:
    before = Manifest.load(toy)
    assert run_trim(toy, "--size", "280") == 0
    assert run_trim(toy, "--size", "300") == 0
    capsys.readouterr()
    assert main(["trim", str(toy), "--remove", "--json"]) == 0
    removed = json.loads(capsys.readouterr().out)["removed"]
    assert removed == ["draft/heads-2.onnx", "draft/trim-2.ids"]
    assert Manifest.load(toy) == before
    assert main(["trim", str(toy), "--remove"]) == 1
    assert "has no trim to remove" in capsys.readouterr().err


def test_trim_interrupted_leaves_the_pack_and_keeps_the_answers(
    toy: Path, cheap_heads: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = content(toy)

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(measuring, "measure_acceptance", interrupted)
        assert run_trim(toy) == 130
    assert content(toy) == before
    assert "interrupted" in capsys.readouterr().err
    kept = sorted((toy.parent / "cache" / "trim").iterdir())
    assert kept
    asked: list[object] = []
    monkeypatch.setattr(answers, "_answer", lambda *_, **__: asked.append(1))
    assert run_trim(toy) == 0
    assert not asked, "all answers come from the cache"
    assert sorted((toy.parent / "cache" / "trim").iterdir()) == kept


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--size", "100"],
            f"a size of 100 is too small: {ALWAYS} special, added, end and byte tokens are always kept; give",
        ),
        (["--size", "1300"], "a size of 1300 trims nothing: the vocabulary has 1300 ids"),
        (["--calibrate", "EMPTY"], "EMPTY holds no prompts"),
        (["--calibrate", "BINARY"], "BINARY is not text: it has a zero byte at character 1"),
        (["--calibrate", "INVALID"], "INVALID, line 2 has neither messages nor turns (a list of strings) nor a prompt"),
        (["--calibrate", "/no/such"], "No such file or directory: /no/such"),
        (["--text", "EMPTY"], "EMPTY has no text to count"),
        (["--categories", "INVALID"], "INVALID, line 1 has no category"),
        (["--prompts", "1"], "calibration needs at least two texts"),
        (["--plot", "x.pdf"], "charts are .svg or .png files"),
        (["--plot", "/no/such/x.svg"], "there is no folder /no/such"),
    ],
)
def test_trim_refuses_bad_input_in_one_line(
    words: Sequence[str], message: str, toy: Path, cheap_heads: None, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"EMPTY": b"", "BINARY": b"a\0b", "INVALID": b'{"prompt": "x"}\n{"question": "y"}\n'}
    for name, data in files.items():
        (toy.parent / name).write_bytes(data)
    before = content(toy)
    words = [str(toy.parent / word) if word in files else word for word in words]
    assert main(["trim", str(toy), "--max-tokens", "20", "--per-category", "1", *words]) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("edgedecode: ")]
    assert message in line
    assert content(toy) == before


def test_trim_refuses_an_unsupported_head_before_answering(
    toy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ExportError("the head of base.onnx is a Conv: it cannot be cut")

    monkeypatch.setattr(heads, "_write_graph", refuse)
    before = content(toy)
    assert run_trim(toy) == 1
    assert "edgedecode: the head of base.onnx is a Conv: it cannot be cut" in capsys.readouterr().err
    assert content(toy) == before
    assert not list((toy.parent / "cache").glob("trim/*"))


@pytest.mark.parametrize(
    ("option", "line"),
    [("--calibrate", '{"question": "x"}'), ("--text", '{"prompt": "x"}'), ("--categories", '{"prompt": "x"}')],
)
def test_trim_refuses_invalid_files_before_loading_the_pack(
    option: str, line: str, toy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded: list[object] = []
    monkeypatch.setattr(run, "load", lambda root, **_: loaded.append(root))
    file = toy.parent / "given.jsonl"
    file.write_text(line)
    assert run_trim(toy, option, str(file)) == 1
    assert f"{file}, line 1 has n" in capsys.readouterr().err
    assert not loaded


def test_trim_needs_the_frameworks_except_to_remove(
    toy: Path, cheap_heads: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_trim(toy, "--size", "300") == 0
    monkeypatch.setattr(frameworks, "find_spec", lambda name: None)
    assert main(["trim", str(toy), "--size", "300"]) == 1
    assert "trim needs onnx_ir, onnxruntime, not installed: pip install" in capsys.readouterr().err
    assert main(["trim", str(toy), "--remove"]) == 0
    assert Manifest.load(toy).models["draft"].trim is None


def test_trim_refuses_a_pack_without_a_draft(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_toy_pack(tmp_path / "alone", draft=False)
    assert main(["trim", str(root)]) == 1
    assert "has no draft model to trim: export it with --draft" in capsys.readouterr().err
    assert main(["trim", str(tmp_path / "nowhere")]) == 1
    assert "there is no folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--size", "300", "--sweep"], "argument --sweep: not allowed with argument --size"),
        (["--size", "0"], "argument --size: '0' is too small: the minimum is 1"),
        (["--coverage", "1.5"], "argument --coverage: '1.5' is not a share: above 0, up to 1"),
        (["--text", "a", "--calibrate", "b"], "not allowed with argument"),
        (["--remove", "--seed", "3", "--report"], "argument --remove: it measures nothing, leave out --seed, --report"),
    ],
)
def test_trim_refuses_bad_arguments(
    words: Sequence[str], message: str, toy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as error:
        main(["trim", str(toy), *words])
    assert error.value.code == 2
    assert message in capsys.readouterr().err


def test_trim_passes_its_options_to_load(toy: Path, cheap_heads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    runtime = toy_runtime()

    def load(root: Path, **options: object) -> object:
        asked.append(options)
        return open_toy(root, runtime)

    monkeypatch.setattr(run, "load", load)
    assert run_trim(toy, "--size", "300", "--runtime", "onnx", "-t", "2") == 0
    assert asked == [{"runtime": "onnx", "threads": 2}]
    assert (toy / MANIFEST_NAME).is_file()
