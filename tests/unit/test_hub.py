"""Finding a pack; nothing here reaches a network."""

from __future__ import annotations

import sys
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgedecode import hub
from edgedecode.errors import ManifestError
from edgedecode.hub import find_pack


@pytest.fixture
def downloads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, object]]:
    """Stands in for huggingface_hub and records what was asked of it."""
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path / "cache"))
    calls: list[dict[str, object]] = []

    def snapshot_download(name: str, *, allow_patterns: list[str], local_dir: Path) -> str:
        calls.append({"name": name, "patterns": allow_patterns, "folder": local_dir})
        if name == "no/such":
            raise RuntimeError("404 Client Error.\n\nRepository Not Found for url: https://…")
        return str(local_dir)

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=snapshot_download))
    return calls


def test_a_folder_is_itself(
    tmp_path: Path, downloads: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_pack(tmp_path) == tmp_path
    assert find_pack(str(tmp_path)) == tmp_path
    (tmp_path / "owner" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert find_pack("owner/name") == Path("owner/name")
    assert downloads == []


@pytest.mark.parametrize("name", ["nowhere", "/no/such/folder", "a/b/c", "", "ow ner/name", "a\0b"])
def test_what_is_neither_folder_nor_hub_id_is_one_line(name: str, downloads: list[dict[str, object]]) -> None:
    if name == "":
        assert find_pack(name) == Path()  # the current folder, which then turns out to be no pack
        return
    with pytest.raises(ManifestError, match=r"there is no folder .*, and it is no hub id") as refusal:
        find_pack(name)
    assert "\n" not in str(refusal.value)
    assert downloads == []


def test_a_path_is_never_taken_for_a_hub_id(downloads: list[dict[str, object]]) -> None:
    with pytest.raises(ManifestError, match="there is no folder"):
        find_pack(Path("owner/name"))
    assert downloads == []


def test_an_existing_file_is_not_looked_up_on_the_hub(
    tmp_path: Path, downloads: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "edgedecode.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert find_pack("pack/edgedecode.json") == Path("pack/edgedecode.json")
    assert downloads == []


def test_a_hub_id_gets_a_folder_of_its_own(tmp_path: Path, downloads: list[dict[str, object]]) -> None:
    assert find_pack("owner/name") == tmp_path / "cache" / "packs" / "owner--name"
    (call,) = downloads
    assert call["name"] == "owner/name"
    assert "edgedecode.json" in call["patterns"]  # type: ignore[operator]


def test_a_refusal_of_the_hub_is_one_line(downloads: list[dict[str, object]]) -> None:
    with pytest.raises(ManifestError, match=r"the hub did not give it \(404 Client Error\.\)") as refusal:
        find_pack("no/such")
    assert "\n" not in str(refusal.value)
    assert len(downloads) == 1


def test_without_the_hub_client_the_pip_line_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ManifestError, match="pip install huggingface_hub"):
        find_pack("owner/name")


def test_no_name_means_the_bundled_pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "BUNDLED_PACK", tmp_path)
    assert find_pack(None) == tmp_path
    monkeypatch.setattr(hub, "BUNDLED_PACK", tmp_path / "absent")
    with pytest.raises(ManifestError, match="no bundled pack: give one with -m"):
        find_pack(None)


def test_everything_that_a_pack_may_list_is_downloaded() -> None:
    """A listed file that did not come would be refused as missing."""
    names = ["draft/heads.onnx", "draft/trim.ids", "draft/trim.gguf", "target/target.gguf", "target/gguf.json"]
    names += ["tokenizer.json", "chat_template.jinja", "target/weights.bin", "licenses/target/LICENSE"]
    for name in names:
        assert any(fnmatch(name, pattern) for pattern in hub._PACK_FILES), name
