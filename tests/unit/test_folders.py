"""Where the cache is, and how its JSON files are written and read."""

import json
import os
import sys
from pathlib import Path

import pytest

from edgedecode.cache import MAKING, aside, cache_folder, keep_json, kept_json, user_cache


@pytest.mark.parametrize(
    ("platform", "expected"),
    [
        ("linux", "home/.cache/edgedecode"),
        ("darwin", "home/Library/Caches/edgedecode"),
        ("win32", "home/AppData/Local/edgedecode"),
    ],
)
def test_user_cache_follows_the_platform(
    platform: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("EDGEDECODE_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    assert user_cache() == tmp_path / expected
    assert not user_cache().exists()


def test_user_cache_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EDGEDECODE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    if sys.platform.startswith("linux"):
        assert user_cache() == tmp_path / "xdg" / "edgedecode"
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path / "own"))
    assert user_cache() == tmp_path / "own"


def test_cache_folder_is_created_on_demand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path / "a" / "b"))
    folder = cache_folder("verified")
    assert folder.is_dir()
    assert cache_folder("verified") == folder


def test_cache_folder_that_cannot_be_created_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path / "file"))
    assert cache_folder("verified") is None


def test_keep_json_replaces_a_file_atomically(tmp_path: Path) -> None:
    keep_json(tmp_path / "a.json", {"a": 1})
    keep_json(tmp_path / "a.json", {"a": 2})
    keep_json(tmp_path / "no" / "folder.json", {"a": 3})
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == {"a": 2}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_kept_json_reads_one_of_two_concurrent_writes(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    with aside(path) as first:
        keep_json(path, {"of": "the second"})
        first.write_text('{"of": "the first"}')
    assert kept_json(path, dict[str, str]) == {"of": "the first"}
    assert [each.name for each in tmp_path.iterdir()] == ["kept.json"]


def test_keep_json_deletes_old_temporary_files_of_killed_processes(tmp_path: Path) -> None:
    left, fresh, users = (tmp_path / f"{name}{MAKING}" for name in ("kept.json.0123abcd", "kept.json.01234567", "film"))
    for path in (left, fresh, users):
        path.touch()
    for path in (left, users):
        os.utime(path, (0, 0))
    keep_json(tmp_path / "kept.json", 1)
    assert sorted(each.name for each in tmp_path.iterdir()) == [users.name, "kept.json", fresh.name]


@pytest.mark.parametrize(
    "content", [b"", b"nonsense", b"\xff", b"[" * 100_000, b'"' + bytes(2**20) + b'"', b"1" * 5000], ids=range(6)
)
def test_kept_json_refuses_damaged_content(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "kept.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"."):
        kept_json(tmp_path / "kept.json", dict)


def test_kept_json_refuses_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        kept_json(tmp_path / "nowhere", dict)
    with pytest.raises(ValueError, match="is not a file"):
        kept_json(tmp_path, dict)
