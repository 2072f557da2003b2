"""A folder appears whole or not at all, however its making ends."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgedecode.errors import ExportError
from edgedecode.export.graph.weights_file import Weights
from edgedecode.pack.manifest import Manifest
from edgedecode.pack.new_folder import check_place, new_folder, work_folder

from .conftest import export

pytestmark = pytest.mark.export


def test_it_appears_at_the_end(tmp_path: Path) -> None:
    out = tmp_path / "a" / "b"
    with new_folder(out) as folder:
        (folder / "inside").mkdir()
        (folder / "inside" / "file").write_text("text")
        assert not out.exists()
    assert (out / "inside" / "file").read_text() == "text"
    assert [path.name for path in out.parent.iterdir()] == ["b"]


def test_a_folder_that_is_there_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_nothing_stays_behind(error: type[BaseException], tmp_path: Path) -> None:
    def make() -> None:
        with new_folder(tmp_path / "a" / "b") as folder:
            (folder / "file").write_text("text")
            raise error

    with pytest.raises(error):
        make()
    assert not list(tmp_path.iterdir())


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    check_place(out, nbytes=1)
    with new_folder(out) as folder:
        (folder / "file").write_text("text")
    assert (out / "file").exists()


def left_by_a_killed_process(out: Path) -> Path:
    """Return the folder that a process was filling for `out` when it was killed."""
    code = (
        "import os, sys; from pathlib import Path; from edgedecode.pack.new_folder import new_folder\n"
        "with new_folder(Path(sys.argv[1])) as folder: (folder / 'file').write_text('half'), os._exit(0)"
    )
    before = set(out.parent.iterdir())
    subprocess.run([sys.executable, "-c", code, str(out)], check=True)
    (left,) = set(out.parent.iterdir()) - before
    return left


@pytest.mark.parametrize("name", ["out", "[out]"])
def test_leftovers_of_a_killed_process_are_removed(name: str, tmp_path: Path) -> None:
    dead = left_by_a_killed_process(tmp_path / name)
    others = left_by_a_killed_process(tmp_path / "o")
    with new_folder(tmp_path / name):
        assert not dead.exists()
    assert others.exists()


def test_two_processes_of_one_number_fill_folders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two containers that share a volume count their processes apart, and neither sees the other's."""
    with new_folder(tmp_path / "a") as first:
        (first / "file").write_text("of the first")
        monkeypatch.setattr(os, "getpid", lambda: 2**22 + 1)
        with work_folder(tmp_path, name="a") as second:
            assert second != first
            assert (first / "file").exists()
        assert (first / "file").exists()
    assert (tmp_path / "a" / "file").read_text() == "of the first"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_the_second_to_finish_is_refused_in_one_line(tmp_path: Path) -> None:
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


def test_a_folder_that_shows_no_lock_goes_when_it_is_old(tmp_path: Path) -> None:
    """As an older edgedecode, which may run still, named them."""
    for name in (".out.partial-17", ".out.partial-18"):
        (tmp_path / name).mkdir()
    os.utime(tmp_path / ".out.partial-18", (0, 0))
    with new_folder(tmp_path / "out"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out.partial-17", "out"]


def test_places_that_are_refused(tmp_path: Path) -> None:
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
def test_a_read_only_place(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ExportError, match="cannot be written"):
        check_place(tmp_path / "out", nbytes=1)


@pytest.mark.parametrize(
    ("number", "message"),
    [(errno.ENOSPC, "the disk became full .* only finished steps were kept"), (errno.EIO, "could not be written")],
)
def test_a_disk_that_fails(
    number: int, message: str, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Weights, "write", fail)
    with pytest.raises(ExportError, match=message):
        export(llama, tmp_path / "pack")
    assert not list(tmp_path.iterdir())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB; skips where none can be mounted."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=65536", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("cannot mount a file system here")
    yield place
    subprocess.run(["umount", str(place)], check=False)


def test_a_disk_without_room_is_refused(llama: Path, small_disk: Path) -> None:
    with pytest.raises(ExportError, match=r"MB are needed and .* has 0 MB left"):
        export(llama, small_disk / "pack")
    assert not list(small_disk.iterdir())


def test_a_disk_that_becomes_full(llama: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgedecode.export.pair_export.check_place", lambda out, nbytes: None)
    with pytest.raises(ExportError, match="the disk became full"):
        export(llama, small_disk / "pack")
    assert not list(small_disk.iterdir())


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals there")
@pytest.mark.parametrize("ending", ["SIGINT", "SIGTERM"])
def test_an_interrupted_command_leaves_nothing(ending: str, llama: Path, tmp_path: Path) -> None:
    out = tmp_path / "pack"
    words = ["export", "--target", str(llama), "--out", str(out), "--noise-positions", "1000000"]
    command = [sys.executable, "-m", "edgedecode.cli", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        while "parity" not in child.stderr.readline():
            assert child.poll() is None
        time.sleep(0.2)  # now in the stage that takes for ever
        assert [path.name[:15] for path in tmp_path.iterdir()] == [".pack.partial-w"]
        child.send_signal(getattr(signal, ending))
        rest = child.stderr.read()
    assert child.returncode != 0, rest
    assert "Traceback" not in rest, rest
    assert not list(tmp_path.iterdir())


_INTERRUPTED_WHERE_PYTHON_DROPS_EXCEPTIONS = """
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


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals there")
@pytest.mark.parametrize("ending", ["SIGINT", "SIGTERM"])
def test_a_signal_that_arrives_in_a_destructor_still_ends_the_command(ending: str) -> None:
    command = [sys.executable, "-c", _INTERRUPTED_WHERE_PYTHON_DROPS_EXCEPTIONS, ending]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode != 0
    assert done.stdout == "cleaned up\n"
    assert "ignored" not in done.stderr


def test_the_manifest_is_whole(llama: Path, tmp_path: Path) -> None:
    export(llama, tmp_path / "pack", draft=llama)
    manifest = Manifest.load(tmp_path / "pack")
    on_disk = {
        path.relative_to(tmp_path / "pack").as_posix() for path in (tmp_path / "pack").rglob("*") if path.is_file()
    }
    assert set(manifest.files) | {"edgedecode.json"} == on_disk
    assert {role: entry.license for role, entry in manifest.models.items()} == {"target": "mit", "draft": "mit"}
    assert "licenses/draft/LICENSE" in on_disk
    assert str(tmp_path) not in (tmp_path / "pack" / "edgedecode.json").read_text()
