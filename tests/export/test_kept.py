"""Resuming an interrupted export: kept units are verified before use, and old ones are deleted."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from edgedecode.errors import ExportError
from edgedecode.export import model_export as model
from edgedecode.export.pair_export import PairRequest, export_pair
from edgedecode.export.resume import step_cache as kept
from edgedecode.export.stages import Stages

from .conftest import SHORT_TEXT, recipe
from .test_new_folder import small_disk
from .test_refusals import not_a_number, rewrite

__all__ = ["small_disk"]

pytestmark = pytest.mark.export

NOISE = 20


@pytest.fixture
def units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder for the units of this test."""
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "exports"


STEPS = ["target: structure", "target: text", "target: activations", "target: parity", "target: loss"]
"""The titles of an export whose weights are written."""


@pytest.fixture
def source(llama: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(llama, tmp_path / "source"))


def export(target: Path, out: Path, *, draft: Path | None = None, cache: bool = True) -> list[str]:
    """Export with noise and return the titles of the stages."""
    stages = Stages()
    drafts = str(draft) if draft else None
    request = PairRequest(str(target), drafts, out, recipe(8), name="tiny", noise_positions=NOISE, cache=cache)
    export_pair(request, stages)
    return [record.title for record in stages.records]


def content(pack: Path) -> dict[str, bytes]:
    """Return a pack's files, with the manifest's measured times removed."""
    found = {path.relative_to(pack).as_posix(): path.read_bytes() for path in pack.rglob("*") if path.is_file()}
    manifest = json.loads(found["edgedecode.json"])
    for entry in manifest["models"].values():
        for way in entry["activations"]["ways"].values():
            for name in ("step_ms", "c4", "c8"):
                del way[name]
    return {**found, "edgedecode.json": json.dumps(manifest).encode()}


@pytest.fixture(scope="module")
def uninterrupted(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The pack of an uninterrupted export without the cache."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    export(Path(shutil.copytree(llama, folder / "source")), folder / "pack", cache=False)
    return content(folder / "pack")


@pytest.mark.parametrize(
    ("step", "resumed"),
    [
        ("check_noise", ["target: weights, activations, parity, further files from the cache", "target: kernel noise"]),
        ("measure_loss", ["target: weights, activations from the cache", *STEPS[:2], *STEPS[3:]]),
        ("check_parity", ["target: weights, activations from the cache", *STEPS[:2], *STEPS[3:]]),
        ("choose_activations", ["target: weights from the cache", *STEPS]),
        ("open_network", ["target: structure", "target: weights", *STEPS[1:]]),
    ],
)
def test_export_resumes_at_the_interrupted_step(
    step: str,
    resumed: list[str],
    uninterrupted: dict[str, bytes],
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "cache" / "exports"
    with monkeypatch.context() as patch:
        patch.setenv("EDGEDECODE_CACHE", str(tmp_path / "cache"))
        with patch.context() as inner:

            def stop(*arguments: object, **options: object) -> None:
                raise KeyboardInterrupt

            inner.setattr(model, step, stop)
            with pytest.raises(KeyboardInterrupt):
                export(source, tmp_path / "pack")
        assert not (tmp_path / "pack").exists()
        assert not list(folder.rglob("exact.onnx"))
        assert export(source, tmp_path / "pack")[1 : 1 + len(resumed)] == resumed
    assert content(tmp_path / "pack") == uninterrupted
    assert not list(folder.iterdir())
    assert (tmp_path / "pack" / "target" / "weights.bin").stat().st_nlink == 1


def interrupted(source: Path, out: Path) -> None:
    """Interrupt an export before its noise measurement, which leaves a unit."""
    with pytest.MonkeyPatch.context() as patch:

        def stop(*arguments: object, **options: object) -> None:
            raise KeyboardInterrupt

        patch.setattr(model, "check_noise", stop)
        with pytest.raises(KeyboardInterrupt):
            export(source, out)


def flip(path: Path) -> None:
    """Flip one bit; size and modification time stay the same."""
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


DAMAGES: dict[str, Callable[[Path], None]] = {
    "weights changed": lambda unit: flip(unit / "target" / "weights.bin"),
    "weights truncated": lambda unit: os.truncate(unit / "target" / "weights.bin", 1000),
    "graph missing": lambda unit: (unit / "target" / "base.onnx").unlink(),
    "record changed": lambda unit: flip(unit / "finished.json"),
    "record truncated": lambda unit: os.truncate(unit / "finished.json", 100),
    "record of another format": lambda unit: (unit / "finished.json").write_text("[]"),
    "record missing": lambda unit: (unit / "finished.json").unlink(),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_export_rebuilds_a_damaged_unit(
    name: str, uninterrupted: dict[str, bytes], units: Path, source: Path, tmp_path: Path
) -> None:
    interrupted(source, tmp_path / "pack")
    (unit,) = (path for path in units.iterdir() if path.is_dir())
    DAMAGES[name](unit)
    assert "target: weights" in export(source, tmp_path / "pack")
    assert content(tmp_path / "pack") == uninterrupted


def test_export_removes_files_without_a_record(units: Path, source: Path, tmp_path: Path) -> None:
    """A process killed while a step is writing leaves such files."""
    interrupted(source, tmp_path / "pack")
    (unit,) = (path for path in units.iterdir() if path.is_dir())
    (unit / "target" / "exact.onnx").write_bytes(b"half a graph")
    (unit / "finished.json.new").write_text("{")
    assert "target: weights, activations, parity, further files from the cache" in export(source, tmp_path / "pack")
    assert sorted(path.name for path in (tmp_path / "pack" / "target").iterdir()) == [
        "base.onnx",
        "gguf.json",
        "weights.bin",
    ]


def test_export_does_not_resume_the_unit_of_another_model(units: Path, source: Path, tmp_path: Path) -> None:
    interrupted(source, tmp_path / "pack")
    rewrite(lambda tensors: tensors["model.norm.weight"].fill(0.5))(source)
    assert "target: weights" in export(source, tmp_path / "pack")
    assert len(list(units.iterdir())) == 1  # the first model's unit, until it expires


def test_export_with_a_refused_draft_keeps_the_targets_unit(
    units: Path, source: Path, llama: Path, tmp_path: Path
) -> None:
    rewrite(not_a_number)(source)
    with pytest.raises(ExportError, match="holds NaN or infinity"):
        export(llama, tmp_path / "pack", draft=source)
    (unit,) = (path for path in units.iterdir() if path.is_dir())
    assert [path.name for path in unit.iterdir() if path.is_dir()] == ["target"]
    titles = export(llama, tmp_path / "pack", draft=llama)
    assert f"target: weights, activations, parity, further files, noise over {NOISE} from the cache" in titles
    assert "target: weights" not in titles
    assert "draft: weights" in titles
    assert not list(units.iterdir())


def test_export_that_fails_parity_keeps_no_unit(
    units: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A unit that failed a check must not be resumed, even with complete files."""

    def fail(*arguments: object, **options: object) -> None:
        raise ExportError("the exported graph's results do not match its weights")

    monkeypatch.setattr(model, "check_parity", fail)
    with pytest.raises(ExportError, match="do not match its weights"):
        export(source, tmp_path / "pack")
    assert not list(units.iterdir())


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_export_resumes_after_a_kill(
    uninterrupted: dict[str, bytes], units: Path, source: Path, tmp_path: Path
) -> None:
    words = [
        "export",
        "--target",
        str(source),
        "--out",
        str(tmp_path / "pack"),
        "--noise-positions",
        "1000000",
        "--name",
        "tiny",
    ]
    code = (
        "import sys; from edgedecode.cli import main; from edgedecode.export.recipes import activation_choice\n"
        f"activation_choice.TOKENS = {SHORT_TEXT}\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    with subprocess.Popen([sys.executable, "-c", code, *words], stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        while "kernel noise" not in child.stderr.readline():  # wait for the endless stage's progress line
            assert child.poll() is None
        child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    titles = export(source, tmp_path / "pack")
    done = "weights, activations, parity, further files"
    assert titles[:3] == ["check", f"target: {done} from the cache", "target: kernel noise"]
    assert content(tmp_path / "pack") == uninterrupted
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "pack", "source"]
    assert not list(units.iterdir())


def test_concurrent_export_leaves_a_locked_unit_alone(
    units: Path, source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    interrupted(source, tmp_path / "pack")
    (unit,) = (path for path in units.iterdir() if path.is_dir())
    before = {path: path.stat().st_mtime_ns for path in unit.rglob("*")}
    with (units / f"{unit.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert "target: weights" in export(source, tmp_path / "pack")
    assert "another export of the same target is running" in caplog.text
    assert {path: path.stat().st_mtime_ns for path in unit.rglob("*")} == before


def test_export_removes_abandoned_units(
    units: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, days in (("old", 15), ("recent", 2), ("newest", 1), ("used", 20)):
        (units / name).mkdir(parents=True)
        (units / name / "file").write_bytes(bytes(1000))
        os.utime(units / name, (time.time() - days * 86400,) * 2)
    monkeypatch.setattr(kept, "_MAX_NBYTES", 1_001_500)
    monkeypatch.setattr("edgedecode.export.model_export.ModelJob.nbytes", 1_000_000)
    with (units / "used.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        export(source, tmp_path / "pack")
    assert sorted(path.name for path in units.iterdir()) == ["newest", "used", "used.lock"]


def test_export_without_a_writable_cache_warns(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path / "file" / "below"))
    export(source, tmp_path / "pack")
    assert "cannot be written: an interrupted export would start from the beginning" in caplog.text


def test_export_works_with_the_cache_on_another_disk(
    uninterrupted: dict[str, bytes], units: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(errno.EXDEV, "another disk")

    monkeypatch.setattr(os, "link", refuse)
    export(source, tmp_path / "pack")
    assert content(tmp_path / "pack") == uninterrupted


def test_export_keeps_no_unit_in_a_cache_without_room(
    source: Path, small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("EDGEDECODE_CACHE", str(small_disk))
    with caplog.at_level(logging.WARNING):
        export(source, tmp_path / "pack")
    assert "has no room for about 0 MB: target is not kept" in caplog.text
    assert not list((small_disk / "exports").iterdir())


def test_export_removes_a_unit_if_its_record_cannot_be_written(
    units: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The step's files are complete, but without a record they cannot be trusted."""

    def fail(self: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", fail)
        patch.setenv("EDGEDECODE_CACHE", str(units.parent))
        with pytest.raises(ExportError, match="the disk became full while the cache"):
            export(source, tmp_path / "pack")
    assert not list(units.iterdir())
    assert "finished and kept" not in caplog.text


def test_export_refuses_when_the_cache_becomes_full(
    source: Path, small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEDECODE_CACHE", str(small_disk))
    monkeypatch.setattr("edgedecode.export.model_export.ModelJob.nbytes", 1)
    with pytest.raises(ExportError, match=r"the disk became full while the cache .*or give --no-cache"):
        export(source, tmp_path / "pack")
    assert not list((small_disk / "exports").iterdir())
    assert not (tmp_path / "pack").exists()
    export(source, tmp_path / "pack", cache=False)
