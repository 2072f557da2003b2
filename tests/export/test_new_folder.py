"""`new_folder` creates a folder completely or not at all, however the process ends."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from edgedecode.errors import ExportError
from edgedecode.export.graph.weights_file import Weights
from edgedecode.pack.manifest import Manifest
from edgedecode.pack.new_folder import check_place, new_folder, work_folder

from .conftest import export

pytestmark = pytest.mark.export


def test_new_folder_appears_at_the_end(tmp_path: Path) -> None:
    out = tmp_path / "a" / "b"
    with new_folder(out) as folder:
        (folder / "inside").mkdir()
        (folder / "inside" / "file").write_text("text")
        assert not out.exists()
    assert (out / "inside" / "file").read_text() == "text"
    assert [path.name for path in out.parent.iterdir()] == ["b"]


def test_new_folder_stays_if_the_parents_flush_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[Path] = []

    def flush(folder: Path) -> None:
        flushed.append(folder)
        if folder == tmp_path:
            raise OSError(errno.EIO, "the flush of the parent fails")

    monkeypatch.setattr("edgedecode.pack.new_folder.flush_folder", flush)
    with new_folder(tmp_path / "out") as folder:
        (folder / "file").write_text("text")
    assert flushed[-1] == tmp_path
    assert (tmp_path / "out" / "file").read_text() == "text"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
def test_new_folder_leaves_nothing_after_an_exception(error: type[BaseException], tmp_path: Path) -> None:
    def make() -> None:
        with new_folder(tmp_path / "a" / "b") as folder:
            (folder / "file").write_text("text")
            raise error

    with pytest.raises(error):
        make()
    assert not list(tmp_path.iterdir())


def test_new_folder_replaces_an_empty_folder(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    check_place(out, nbytes=1)
    with new_folder(out) as folder:
        (folder / "file").write_text("text")
    assert (out / "file").exists()


def left_by_a_killed_process(out: Path) -> Path:
    """Kill a process while it fills a folder for `out`; return the folder it leaves."""
    code = (
        "import os, sys; from pathlib import Path; from edgedecode.pack.new_folder import new_folder\n"
        "with new_folder(Path(sys.argv[1])) as folder: (folder / 'file').write_text('half'), os._exit(0)"
    )
    before = set(out.parent.iterdir())
    subprocess.run([sys.executable, "-c", code, str(out)], check=True)
    (left,) = set(out.parent.iterdir()) - before
    return left


@pytest.mark.parametrize("name", ["out", "[out]"])
def test_new_folder_removes_leftovers_of_a_killed_process(name: str, tmp_path: Path) -> None:
    dead = left_by_a_killed_process(tmp_path / name)
    others = left_by_a_killed_process(tmp_path / "o")
    with new_folder(tmp_path / name):
        assert not dead.exists()
    assert others.exists()


def test_work_folder_is_unique_for_processes_with_equal_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers that share a volume have separate process ids and cannot see each other's processes."""
    with new_folder(tmp_path / "a") as first:
        (first / "file").write_text("of the first")
        monkeypatch.setattr(os, "getpid", lambda: 2**22 + 1)
        with work_folder(tmp_path, name="a") as second:
            assert second != first
            assert (first / "file").exists()
        assert (first / "file").exists()
    assert (tmp_path / "a" / "file").read_text() == "of the first"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_new_folder_refuses_the_second_process_to_finish(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def make() -> None:
        with new_folder(out) as second:
            (second / "file").write_text("of the second")
            with new_folder(out) as first:
                (first / "file").write_text("of the first")

    with pytest.raises(
        ExportError, match=r"another process created .*out in the meantime: remove it, or give another --out"
    ):
        make()
    assert (out / "file").read_text() == "of the first"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_check_place_refuses_unusable_folders(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("x")
    for out, nbytes, message in (
        (tmp_path / "file", 1, "is a file"),
        (tmp_path / "full", 1, "is not empty: remove it, or give another --out"),
        (tmp_path / "file" / "below", 1, "cannot be written"),
        (tmp_path / "large", 1 << 60, "MB are needed .* make room"),
    ):
        with pytest.raises(ExportError, match=message):
            check_place(out, nbytes=nbytes)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_check_place_refuses_a_read_only_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ExportError, match="cannot be written"):
        check_place(tmp_path / "out", nbytes=1)


@pytest.mark.parametrize(
    ("number", "message"),
    [(errno.ENOSPC, "the disk became full .* nothing was left behind"), (errno.EIO, "could not be written")],
)
def test_export_on_a_failing_disk_leaves_no_files(
    number: int, message: str, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Weights, "write", Mock(side_effect=OSError(number, os.strerror(number))))
    with pytest.raises(ExportError, match=message):
        export(llama, tmp_path / "pack")
    assert not list(tmp_path.iterdir())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB; skips if it cannot be mounted."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=65536", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("cannot mount a file system here")
    yield place
    subprocess.run(["umount", str(place)], check=False)


def test_export_refuses_a_disk_without_room(llama: Path, small_disk: Path) -> None:
    with pytest.raises(ExportError, match=r"MB are needed and .* has 0\.\d MB left"):
        export(llama, small_disk / "pack")
    assert not list(small_disk.iterdir())


def test_export_on_a_disk_that_becomes_full_leaves_no_files(
    llama: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgedecode.export.pair_export.check_place", lambda out, nbytes: None)
    with pytest.raises(ExportError, match="the disk became full"):
        export(llama, small_disk / "pack")
    assert not list(small_disk.iterdir())


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize("ending", ["SIGINT", "SIGTERM"])
def test_export_that_is_interrupted_leaves_no_files(ending: str, llama: Path, tmp_path: Path) -> None:
    out = tmp_path / "pack"
    words = ["export", "--target", str(llama), "--out", str(out), "--activations", "8", "--noise-positions", "1000000"]
    command = [sys.executable, "-m", "edgedecode.cli", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
        while "parity" not in child.stderr.readline():
            assert child.poll() is None
        time.sleep(0.2)  # the endless stage has begun
        assert [path.name[:15] for path in tmp_path.iterdir()] == [".pack.partial-w"]
        child.send_signal(getattr(signal, ending))
        rest = child.stderr.read()
    assert child.returncode != 0, rest
    assert "Traceback" not in rest, rest
    assert not list(tmp_path.iterdir())


_SIGNAL_IN_A_DESTRUCTOR = """
import signal, sys, time
from edgedecode.export.cli.common import quiet
class Closing:
    def __del__(self):
        signal.raise_signal(getattr(signal, sys.argv[1]))
with quiet(debug=False):
    try:
        Closing()
        time.sleep(60)
    finally:
        print("cleaned up")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize("ending", ["SIGINT", "SIGTERM"])
def test_quiet_ends_on_a_signal_in_a_destructor(ending: str) -> None:
    command = [sys.executable, "-c", _SIGNAL_IN_A_DESTRUCTOR, ending]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode != 0
    assert done.stdout == "cleaned up\n"
    assert "ignored" not in done.stderr


_SIGNAL_THAT_IS_DROPPED = """
import signal
from edgedecode.export.cli.common import quiet
from edgedecode.export.cli.display import live_stages
with quiet(debug=False), live_stages() as stages, stages.stage("long", 3) as advance:
    try:
        signal.raise_signal(signal.SIGTERM)
    except SystemExit:
        print("dropped")
    advance(1)
    print("went on")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_a_job_ends_though_native_code_drops_the_signals_exception() -> None:
    command = [sys.executable, "-c", _SIGNAL_THAT_IS_DROPPED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stdout) == (128 + signal.SIGTERM, "dropped\n")


def test_manifest_lists_every_file(llama: Path, tmp_path: Path) -> None:
    export(llama, tmp_path / "pack", draft=llama)
    manifest = Manifest.load(tmp_path / "pack")
    on_disk = {
        path.relative_to(tmp_path / "pack").as_posix() for path in (tmp_path / "pack").rglob("*") if path.is_file()
    }
    assert set(manifest.files) | {"edgedecode.json"} == on_disk
    assert {role: entry.license for role, entry in manifest.models.items()} == {"target": "mit", "draft": "mit"}
    assert "licenses/draft/LICENSE" in on_disk
    assert str(tmp_path) not in (tmp_path / "pack" / "edgedecode.json").read_text()
