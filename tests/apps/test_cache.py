"""`cache`: list the areas with their sizes, and clear them one by one."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgedecode.cache import AREAS, area, cache_folder, sizes, user_cache
from edgedecode.cli import main
from edgedecode.locks import take_lock

ROOT = Path(__file__).parents[2]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "cache"
    monkeypatch.setenv("EDGEDECODE_CACHE", str(root))
    for name, nbytes in (("costs", 10), ("tiles", 2_000_000), ("locks", 0)):
        (root / name / "deep").mkdir(parents=True)
        (root / name / "deep" / "file").write_bytes(bytes(nbytes))
    return root


def test_cache_show_lists_areas_with_their_sizes(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["show"], []):
        assert main(["cache", *words]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == f"{cache}: 2.0 MB"
        assert [line.split()[0] for line in lines[1:]] == ["costs", "locks", "tiles"]
        assert "for this machine" in lines[3]
    assert main(["cache", "show", "--json"]) == 0
    areas = json.loads(capsys.readouterr().out)["areas"]
    assert areas["tiles"] == {"files": 1, "nbytes": 2_000_000}


def test_cache_clear_deletes_only_the_named_areas(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "clear", "--tiles", "--packs"]) == 0
    assert sorted(path.name for path in cache.iterdir()) == ["costs", "locks"]
    assert f"deleted {cache / 'tiles'}: 1 file, 2.0 MB" in capsys.readouterr().out
    assert main(["cache", "clear", "--tiles"]) == 0
    assert "nothing to delete in" in capsys.readouterr().out
    assert main(["cache", "clear", "--all"]) == 0
    assert list(cache.iterdir()) == []


def test_cache_clear_keeps_a_held_lock(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("free", "held"):
        (cache / "locks" / name).touch()
    lock = take_lock(cache / "locks" / "held")
    assert lock is not None
    with lock:
        assert main(["cache", "clear", "--locks"]) == 0
        assert "other processes hold locks in it" in capsys.readouterr().out
        assert take_lock(cache / "locks" / "held") is None
        assert not (cache / "locks" / "free").exists()
    assert main(["cache", "clear", "--locks"]) == 0
    assert not (cache / "locks").exists()


def test_cache_clear_covers_every_folder_that_is_written() -> None:
    """All folders come from `area`, which accepts only the areas that `cache clear` takes."""
    for name in AREAS:
        assert area(name) == user_cache() / name
    for place in (area, cache_folder):
        with pytest.raises(AssertionError, match="not in the table"):
            place("elsewhere")
    for file in (file for ring in ("edgedecode", "runtimes", "export", "apps") for file in (ROOT / ring).rglob("*.py")):
        assert "user_cache() /" not in file.read_text(encoding="utf-8") or file.name == "cache.py", file


@pytest.mark.parametrize("name", AREAS)
def test_cache_area_is_shown_with_its_size_and_cleared_alone(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path))
    for each in AREAS:
        folder = cache_folder(each)
        assert folder is not None
        (folder / "file").write_bytes(bytes(100_000))
    assert main(["cache", "show"]) == 0
    assert [line.split()[:5] for line in capsys.readouterr().out.splitlines() if line.split()[0] == name] == [
        [name, "0.1", "MB", "1", "file"]
    ]
    assert main(["cache", "clear", f"--{name}"]) == 0
    assert {path.name for path in tmp_path.iterdir()} == set(AREAS) - {name}


def test_cache_clear_deletes_a_link_and_keeps_its_target(cache: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine").write_text("keep me")
    (cache / "packs").symlink_to(elsewhere)
    assert main(["cache", "clear", "--packs"]) == 0
    assert not (cache / "packs").exists()
    assert (elsewhere / "mine").read_text() == "keep me"


def test_cache_verbs_work_without_a_cache_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path / "none"))
    assert main(["cache", "show"]) == 0
    assert "0.0 MB" in capsys.readouterr().out
    assert main(["cache", "clear", "--all"]) == 0


def test_sizes_pass_over_folders_that_others_remove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as pip, whose downloads are measured as they grow: a listed folder may be gone when its turn comes."""
    (tmp_path / "pip-unpack-1").mkdir()
    (tmp_path / "whole.whl").write_bytes(bytes(10))
    scan = os.scandir

    def scandir(path: str | Path) -> Iterator[os.DirEntry[str]]:
        if Path(path).name == "pip-unpack-1":
            Path(path).rmdir()
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert [*sizes(tmp_path)] == [10]
    assert not (tmp_path / "pip-unpack-1").exists()
