"""`cache`: what is kept, with sizes, and clearing it area by area."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgedecode.cli import main


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "cache"
    monkeypatch.setenv("EDGEDECODE_CACHE", str(root))
    for name, nbytes in (("costs", 10), ("store", 2_000_000), ("locks", 0)):
        (root / name / "deep").mkdir(parents=True)
        (root / name / "deep" / "file").write_bytes(bytes(nbytes))
    return root


def test_it_lists_what_is_kept(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "show", "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{cache}: 2.0 MB"
    assert [line.split()[0] for line in lines[1:-1]] == ["costs", "locks", "store"]
    assert "to draft from" in lines[3]
    areas = json.loads(lines[-1])["areas"]
    assert areas["store"] == {"files": 1, "nbytes": 2_000_000}


def test_it_clears_what_is_named_and_nothing_else(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "clear", "--store", "--packs"]) == 0
    assert sorted(path.name for path in cache.iterdir()) == ["costs", "locks"]
    assert f"deleted {cache / 'store'}: 1 files, 2.0 MB" in capsys.readouterr().out
    assert main(["cache", "clear", "--store"]) == 0
    assert "nothing of that" in capsys.readouterr().out
    assert main(["cache", "clear", "--all"]) == 0
    assert list(cache.iterdir()) == []


def test_a_link_is_deleted_and_not_followed(cache: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine").write_text("keep me")
    (cache / "packs").symlink_to(elsewhere)
    assert main(["cache", "clear", "--packs"]) == 0
    assert not (cache / "packs").exists()
    assert (elsewhere / "mine").read_text() == "keep me"


def test_clearing_nothing_is_a_mistake(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["cache", "clear"])
    assert stop.value.code == 2
    assert "say what to delete: --all" in capsys.readouterr().err
    assert (cache / "store").exists()


def test_there_may_be_no_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path / "none"))
    assert main(["cache", "show"]) == 0
    assert "0.0 MB" in capsys.readouterr().out
    assert main(["cache", "clear", "--all"]) == 0
