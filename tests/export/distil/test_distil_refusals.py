"""What `distil` refuses, in one line, and what it keeps when it is interrupted."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="the export extras are not installed")

import torch

from edgedecode.cli import main
from edgedecode.errors import ExportError
from edgedecode.export.distil.distil import Distillation, DistilRequest
from edgedecode.export.distil.texts import HELD_OUT
from edgedecode.export.distil.training import Training
from edgedecode.export.stages import Stages
from edgedecode.memory.pressure import FreeMemory
from edgedecode.pack.manifest import Manifest
from edgedecode.runtimes.onnx.kernels.trial import tried

pytestmark = [pytest.mark.export, pytest.mark.skipif(tried() is None, reason="no kernels for this processor")]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--out", "full"], "is not empty: --resume goes on"),
        (["--out", "empty.txt"], "is a file: name a folder"),
        (["--prompts", "empty.bin"], "is not valid UTF-8"),
        (["--out", "none", "--resume"], "holds no work to go on with"),
        (["--out", "begun", "--resume", "--tokens", "9"], "was begun with another --tokens"),
        (["--out", "list", "--resume"], "holds no work to go on with"),
        (["--minutes", "0"], "leaves no time"),
        (["--minutes", "-3"], "leaves no time"),
        (["--answers", "few.jsonl", "--init", "damaged"], "holds no head of this target"),
        (["--prompts", "missing.txt"], "cannot be read"),
        (["--prompts", "empty.txt"], "holds no prompts"),
        (["--prompts", "bad.jsonl"], "line 2 has neither messages nor turns"),
        (["--answers", "bad.jsonl"], "line 1 is no text"),
        (["--answers", "few.jsonl"], "too few to train on"),
        (["--answers", "few.jsonl", "--init", "full"], "cannot be read: No such file"),
        (["--out", "other", "--resume", "--tokens", "8"], "was begun with another target"),
    ],
)
def test_what_cannot_be_trained_is_one_line(
    given: list[str],
    message: str,
    pack: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("full", "begun", "list", "damaged", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "full" / "file").write_text("x")
    (tmp_path / "list" / "distil.json").write_text("[1]")
    (tmp_path / "damaged" / "model.safetensors").write_bytes(b"\xff" * 99)
    options = {"kind": "head", "prompts": None, "answers": None, "init": None, "minutes": None, "tokens": 8}
    (tmp_path / "other" / "distil.json").write_text(json.dumps(options))
    manifest = Manifest.load(pack)
    options["target"] = manifest.files[manifest.models["target"].weights].sha256
    (tmp_path / "begun" / "distil.json").write_text(json.dumps(options))
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "empty.bin").write_bytes(b"\xff\xfe\x00 nonsense")
    (tmp_path / "bad.jsonl").write_text('{"prompt": "Hi"}\n{"text": "Hi"}\n')
    lines = [{"prompt": [1, index], "answer": [3, 4]} for index in range(2 if "--init" in given else 1)]
    (tmp_path / "few.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert main(["distil", str(pack), *given]) == 1
    error = capsys.readouterr().err
    assert message in error.replace("\n", " ")
    assert "Traceback" not in error


@pytest.mark.parametrize("command", [["distil", "demo"], ["head", "add", "demo", "head"], ["head", "remove", "demo"]])
def test_the_installations_pack_is_not_changed(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(command) == 1
    assert "is part of the installation" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def test_one_process_works_in_a_folder(pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "head"
    with Distillation(DistilRequest(pack, out, tokens=9), Stages()):
        assert main(["distil", str(pack), "--tokens", "9", "--out", str(out), "--resume"]) == 1
    assert "another process works in" in capsys.readouterr().err


@pytest.mark.parametrize("stage", ["writing answers", "reading answers", "training", "measuring the speed"])
def test_an_interruption_says_how_to_go_on(
    stage: str, pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Stages.stage

    def interrupted(stages: Stages, title: str, total: int = 0) -> AbstractContextManager[Callable[[int], None]]:
        if title == stage:
            raise KeyboardInterrupt
        return whole(stages, title, total)

    monkeypatch.setattr(Stages, "stage", interrupted)
    monkeypatch.setattr("edgedecode.export.distil.distil.EPOCHS", 1)
    given = tmp_path / "answers.jsonl"
    given.write_text("".join(f'{{"prompt": [1, {index}], "answer": [3, 4]}}\n' for index in range(2 * HELD_OUT)))
    more = ["--tokens", "8"] if stage == "writing answers" else ["--answers", str(given)]
    assert main(["distil", str(pack), *more, "--out", str(tmp_path / "head")]) == 130
    assert "with --resume goes on" in capsys.readouterr().err


@pytest.mark.parametrize(("what", "message"), [("disk", "of disk, "), ("memory", "of memory, 1.0 MB are free: end")])
def test_a_work_that_memory_or_disk_is_too_small_for_is_refused_before_it_begins(
    what: str,
    message: str,
    pack: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if what == "disk":
        monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=10**6))
    else:
        monkeypatch.setattr("edgedecode.export.distil.distil.free_memory", lambda: FreeMemory(10**6, 10**9))
        monkeypatch.setattr("edgedecode.export.distil.distil.resident_nbytes", lambda: 0)
    given = tmp_path / "answers.jsonl"
    given.write_text("".join(f'{{"prompt": [1, {index}], "answer": [3, 4]}}\n' for index in range(2 * HELD_OUT)))
    assert main(["distil", str(pack), "--answers", str(given), "--out", str(tmp_path / "head")]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert "tokens of answers" in error, "the plan is told, too"
    assert not (tmp_path / "head" / "labels.bin").exists()


def test_a_state_that_cannot_be_written_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise RuntimeError("PytorchStreamWriter failed writing file\nat ...")

    training = Training(torch.nn.Linear(2, 2), torch.zeros(2, 2), None, [])  # type: ignore[arg-type]
    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(ExportError, match=r"cannot be written: PytorchStreamWriter failed writing file$"):
        training.save(tmp_path / "training.pt")
    assert not any(tmp_path.iterdir())
