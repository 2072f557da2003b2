"""A pack's files are checked against its manifest: hashed once, by size and modification time afterwards."""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from edgedecode.errors import ManifestError
from edgedecode.pack import integrity
from edgedecode.pack.entries import FileEntry, OutsideFile
from edgedecode.pack.integrity import check_files, file_sha256
from edgedecode.pack.manifest import Manifest
from edgedecode.testing import toy_pair

CONTENT = {"tokenizer.json": b"{}", "target/weights.bin": b"w" * 5000, "target/deep/base.onnx": b""}


@pytest.fixture
def pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "pack"
    for name, content in CONTENT.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the files that were hashed."""
    names: list[str] = []

    def counting(path: Path, *, progress: Callable[[int], None] | None = None) -> str:
        names.append(path.name)
        return file_sha256(path, progress=progress)

    monkeypatch.setattr(integrity, "file_sha256", counting)
    return names


def manifest(**changes: FileEntry) -> Manifest:
    files = {name: FileEntry(len(content), hashlib.sha256(content).hexdigest()) for name, content in CONTENT.items()}
    return replace(toy_pair().manifest, files=files | changes)


NAMES = sorted(Path(name).name for name in CONTENT)


def test_check_files_hashes_once(pack: Path, hashed: list[str]) -> None:
    check_files(manifest(), pack)
    assert sorted(hashed) == NAMES
    check_files(manifest(), pack)
    assert len(hashed) == len(NAMES)


def test_check_files_hashes_again_for_a_full_check(pack: Path, hashed: list[str]) -> None:
    check_files(manifest(), pack)
    check_files(manifest(), pack, full=True)
    assert len(hashed) == 2 * len(NAMES)


def test_check_files_hashes_only_touched_files_again(pack: Path, hashed: list[str]) -> None:
    check_files(manifest(), pack)
    hashed.clear()
    os.utime(pack / "target/weights.bin", ns=(1, 1))
    check_files(manifest(), pack)
    assert hashed == ["weights.bin"]


def test_check_files_finds_a_change_in_place_with_restored_mtime(pack: Path) -> None:
    path = pack / "target/weights.bin"
    check_files(manifest(), pack)
    before = path.stat()
    with path.open("r+b") as file:
        file.write(b"v")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(ManifestError, match=r"weights\.bin is damaged"):
        check_files(manifest(), pack)


def test_check_files_checks_a_changed_digest_of_an_unchanged_file(pack: Path) -> None:
    check_files(manifest(), pack)
    wrong = FileEntry(5000, "00" * 32)
    with pytest.raises(ManifestError, match=r"weights\.bin is damaged: its sha256 is [0-9a-f]{12}…, .* 000000000000…"):
        check_files(manifest(**{"target/weights.bin": wrong}), pack)


def test_check_files_does_not_record_a_failed_check(pack: Path, hashed: list[str]) -> None:
    (pack / "target/weights.bin").write_bytes(b"x" * 5000)
    for _ in range(2):
        with pytest.raises(ManifestError, match="is damaged"):
            check_files(manifest(), pack)
    assert hashed.count("weights.bin") == 2


@pytest.mark.parametrize("remembered", [False, True])
def test_check_files_finds_truncation_without_hashing(pack: Path, hashed: list[str], remembered: bool) -> None:
    if remembered:
        check_files(manifest(), pack)
    (pack / "target/weights.bin").write_bytes(b"w" * 4999)
    with pytest.raises(ManifestError, match=r"has 4999 bytes, the manifest says 5000: it is truncated"):
        check_files(manifest(), pack)
    assert hashed.count("weights.bin") == remembered


def test_check_files_names_missing_files_and_folders(pack: Path) -> None:
    (pack / "target/weights.bin").unlink()
    with pytest.raises(ManifestError, match=r"file .*weights\.bin is missing"):
        check_files(manifest(), pack)
    (pack / "target/weights.bin").mkdir()
    with pytest.raises(ManifestError, match="not an ordinary file"):
        check_files(manifest(), pack)


def test_check_files_reports_a_name_that_the_system_refuses(pack: Path) -> None:
    with pytest.raises(ManifestError, match="cannot be read"):
        check_files(replace(manifest(), files={"n" * 5000: FileEntry(1, "")}), pack)


def test_check_files_refuses_links_to_files_and_folders(pack: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (pack / "target").rename(outside)
    (pack / "target").symlink_to(outside, target_is_directory=True)
    with pytest.raises(ManifestError, match=r"pack/target is a link"):
        check_files(manifest(), pack)
    (pack / "target").unlink()
    outside.rename(pack / "target")
    (pack / "target/weights.bin").rename(tmp_path / "weights.bin")
    (pack / "target/weights.bin").symlink_to(tmp_path / "weights.bin")
    with pytest.raises(ManifestError, match=r"weights\.bin is a link"):
        check_files(manifest(), pack)


def test_check_files_accepts_a_link_to_the_pack(pack: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(pack, target_is_directory=True)
    check_files(manifest(), tmp_path / "link")


def test_check_files_works_without_a_writable_cache(
    pack: Path, tmp_path: Path, hashed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path / "file"))
    check_files(manifest(), pack)
    check_files(manifest(), pack)
    assert len(hashed) == 2 * len(NAMES)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b'{"tokenizer.json": 3}'])
def test_check_files_ignores_a_damaged_record(pack: Path, tmp_path: Path, hashed: list[str], content: bytes) -> None:
    check_files(manifest(), pack)
    (record,) = (tmp_path / "cache" / "verified").iterdir()
    record.write_bytes(content)
    check_files(manifest(), pack)
    assert len(hashed) == 2 * len(NAMES)


def test_file_sha256_reports_progress_up_to_the_size(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"x" * (2**20 + 5))
    seen: list[int] = []
    assert file_sha256(tmp_path / "big", progress=seen.append) == hashlib.sha256(b"x" * (2**20 + 5)).hexdigest()
    assert sum(seen) == 2**20 + 5
    assert len(seen) == 2


def test_file_sha256_reports_an_unreadable_file(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="cannot be read"):
        file_sha256(tmp_path)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    path = tmp_path / "elsewhere" / "model.onnx.data"
    path.parent.mkdir()
    path.write_bytes(b"o" * 3000)
    return path


def manifest_importing(path: Path) -> Manifest:
    entry = OutsideFile(str(path), path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())
    return replace(manifest(), outside={"target/model.onnx.data": entry})


@pytest.mark.parametrize("place", ["//host/share/", "\\\\host\\share\\", "\\\\.\\pipe\\", "\\\\?\\C:\\", "\\/host/"])
def test_manifest_refuses_weights_on_another_machine_without_looking_for_them(outside: Path, place: str) -> None:
    value = json.loads(manifest_importing(outside).to_json())
    value["outside"]["target/model.onnx.data"]["path"] = f"{place}model.onnx.data"
    with pytest.raises(ManifestError, match="is on another machine or is a device: refused; import with --copy"):
        Manifest.from_json(value)


def overwritten(path: Path) -> None:
    path.write_bytes(b"p" * 3000)
    os.utime(path, ns=(1, 1))


def linked(path: Path) -> None:
    path.rename(path.with_name("other"))
    path.symlink_to(path.with_name("other"))


def replaced_by_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (Path.unlink, "no longer exists"),
        (overwritten, "does not have the content that was imported"),
        (lambda path: path.write_bytes(b"o" * 2999), "has 2999 bytes instead of 3000"),
        (linked, "has become a link"),
        (replaced_by_a_folder, "is not an ordinary file"),
    ],
)
def test_check_files_names_external_weights_that_changed(
    change: Callable[[Path], None], message: str, pack: Path, outside: Path
) -> None:
    imported = manifest_importing(outside)
    check_files(imported, pack)
    change(outside)
    with pytest.raises(ManifestError, match=rf"model\.onnx\.data, .* {message}; put it back, or import .* --copy"):
        check_files(imported, pack)
