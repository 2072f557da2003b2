"""Slow steps of an interrupted export are kept, verified before use, and removed when they are old."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from edgedecode.errors import ExportError
from edgedecode.export import kept_steps as kept
from edgedecode.export import model_export as model
from edgedecode.export.graph.recipe import Recipe
from edgedecode.export.job import ModelJob
from edgedecode.export.kept_steps import job_key
from edgedecode.export.pair_export import PairRequest, check_pair, export_pair
from edgedecode.export.stages import Stages

from .conftest import SHORT_TEXT, recipe
from .test_new_folder import small_disk
from .test_refusals import configure, not_a_number, rewrite

__all__ = ["small_disk"]

pytestmark = pytest.mark.export

NOISE = 20


@pytest.fixture
def units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder for the steps of this test."""
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "exports"


STEPS = ["target: text", "target: activations", "target: parity", "target: loss"]
"""The titles of an export whose weights are written."""
KEPT = "target: weights from the cache"


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
    return {path.relative_to(pack).as_posix(): path.read_bytes() for path in pack.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def uninterrupted(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The pack of an uninterrupted export without the cache."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    export(Path(shutil.copytree(llama, folder / "source")), folder / "pack", cache=False)
    return content(folder / "pack")


@pytest.mark.parametrize(
    ("step", "resumed"),
    [
        ("check_noise", [KEPT, *STEPS[2:], "target: gguf plan", "target: kernel noise"]),
        ("measure_loss", [KEPT, *STEPS[2:]]),
        ("choose_activations", [KEPT, *STEPS[1:]]),
        ("opened_wide", [KEPT, *STEPS]),
        ("open_network", ["target: weights", *STEPS]),
    ],
)
def test_an_interrupted_export_makes_no_slow_step_twice(
    step: str, resumed: list[str], uninterrupted: dict[str, bytes], units: Path, source: Path, tmp_path: Path
) -> None:
    interrupted(source, tmp_path / "pack", step=step)
    assert not (tmp_path / "pack").exists()
    titles = export(source, tmp_path / "pack")
    assert titles[2 : 2 + len(resumed)] == resumed
    assert content(tmp_path / "pack") == uninterrupted
    assert not list(units.iterdir())
    assert (tmp_path / "pack" / "target" / "weights.bin").stat().st_nlink == 1


def interrupted(source: Path, out: Path, *, step: str = "check_noise") -> None:
    """Interrupt an export before a step, by default the last one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, step, Mock(side_effect=KeyboardInterrupt))
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
    "weights changed": lambda unit: flip(unit / "weights.bin"),
    "weights truncated": lambda unit: os.truncate(unit / "weights.bin", 1000),
    "weights missing": lambda unit: (unit / "weights.bin").unlink(),
    "record truncated": lambda unit: os.truncate(unit / "weights.bin.json", 30),
    "record of another format": lambda unit: (unit / "weights.bin.json").write_text("[]"),
    "record missing": lambda unit: (unit / "weights.bin.json").unlink(),
    "choice truncated": lambda unit: os.truncate(unit / "activations.json", 100),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_steps_are_made_again(
    name: str, uninterrupted: dict[str, bytes], units: Path, source: Path, tmp_path: Path
) -> None:
    interrupted(source, tmp_path / "pack")
    (unit,) = units.iterdir()
    DAMAGES[name](unit)
    titles = export(source, tmp_path / "pack")
    assert ("target: activations" if name.startswith("choice") else "target: weights") in titles
    assert content(tmp_path / "pack") == uninterrupted


def test_another_model_finds_nothing(units: Path, source: Path, tmp_path: Path) -> None:
    interrupted(source, tmp_path / "pack")
    rewrite(lambda tensors: tensors["model.norm.weight"].fill(0.5))(source)
    assert "target: weights" in export(source, tmp_path / "pack")
    assert len(list(units.iterdir())) == 1  # the first model's steps, until they are old


def test_steps_of_the_target_survive_a_refused_draft(units: Path, source: Path, llama: Path, tmp_path: Path) -> None:
    rewrite(not_a_number)(source)
    with pytest.raises(ExportError, match="holds NaN or infinity"):
        export(llama, tmp_path / "pack", draft=source)
    assert len(list(units.iterdir())) == 1
    titles = export(llama, tmp_path / "pack", draft=llama)
    assert {KEPT, "draft: weights"} <= {*titles}
    assert not {"target: weights", "target: text", "target: activations", "target: kernel noise"} & {*titles}
    assert not list(units.iterdir())


def test_nothing_is_kept_of_an_export_that_fails_a_check(
    units: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "check_parity", Mock(side_effect=ExportError("do not match its weights")))
    with pytest.raises(ExportError, match="do not match its weights"):
        export(source, tmp_path / "pack")
    assert not list(units.iterdir())


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_export_resumes_after_a_kill(
    uninterrupted: dict[str, bytes], units: Path, source: Path, tmp_path: Path
) -> None:
    words = ["export", "--target", str(source), "--out", str(tmp_path / "pack"), "--name", "tiny"]
    code = (
        "import sys; from edgedecode.cli import main; from edgedecode.export.recipes import activation_choice\n"
        f"activation_choice.TOKENS = {SHORT_TEXT}\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, *words, "--noise-positions", "1000000"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
        while "kernel noise" not in child.stderr.readline():  # wait for the endless stage's progress line
            assert child.poll() is None
        child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    titles = export(source, tmp_path / "pack")
    assert KEPT in titles
    assert not {"target: weights", "target: text", "target: activations"} & {*titles}
    assert content(tmp_path / "pack") == uninterrupted
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "pack", "source"]
    assert not list(units.iterdir())


def test_old_steps_are_removed(units: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, days in (("old", 15), ("third", 3), ("second", 2), ("newest", 1)):
        (units / name).mkdir(parents=True)
        (units / name / "file").write_bytes(bytes(1000))
        os.utime(units / name, (time.time() - days * 86400,) * 2)
    monkeypatch.setattr(kept, "_MAX_NBYTES", 2500)
    export(source, tmp_path / "pack")
    assert sorted(path.name for path in units.iterdir()) == ["newest", "second"]


def test_export_without_a_writable_cache_warns(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path / "file" / "below"))
    export(source, tmp_path / "pack")
    assert "cannot be written: an interrupted export would start from the beginning" in caplog.text


def test_steps_are_copied_to_a_cache_on_another_disk(
    uninterrupted: dict[str, bytes], units: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", Mock(side_effect=OSError(errno.EXDEV, "another disk")))
    interrupted(source, tmp_path / "pack")
    assert KEPT in export(source, tmp_path / "pack")
    assert content(tmp_path / "pack") == uninterrupted


def test_a_full_cache_keeps_nothing_and_stops_nothing(
    uninterrupted: dict[str, bytes],
    source: Path,
    small_disk: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("EDGEDECODE_CACHE", str(small_disk))
    export(source, tmp_path / "pack")
    assert "weights.bin is not kept in the cache" in caplog.text
    assert content(tmp_path / "pack") == uninterrupted
    assert not list((small_disk / "exports").iterdir())


def job(model: Path, *, stored: Recipe | None = None, noise: int = 0) -> ModelJob:
    request = PairRequest(str(model), None, Path("pack"), stored or recipe(8), noise_positions=noise)
    return check_pair(request, out=None).jobs[0]


def key(model: Path, *, stored: Recipe | None = None, noise: int = 0) -> str:
    return job_key(job(model, stored=stored, noise=noise), [model / "model.safetensors"])


def test_the_key_is_equal_for_the_same_work(llama: Path) -> None:
    assert key(llama) == key(llama) == key(llama, noise=2000)


def test_the_key_changes_with_anything_that_changes_the_result(llama: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(llama, tmp_path / "model"))
    weights = [model / "model.safetensors"]
    found = [key(model), key(model, stored=recipe(4)), job_key(replace(job(model), role="draft"), weights)]
    found += [job_key(replace(job(model), activations="16"), weights)]
    configure(rms_norm_eps=1e-3)(model)
    found.append(key(model))
    (model / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    found.append(key(model))
    weights[0].write_bytes(weights[0].read_bytes())
    found.append(key(model))
    assert len(set(found)) == len(found)
