"""`find_pack`, with a stand-in for the hub's client: no test uses the network."""

from __future__ import annotations

import logging
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgedecode.errors import ManifestError
from edgedecode.locks import take_lock
from edgedecode.pack import gate as pack_gate
from edgedecode.pack import hub
from edgedecode.pack.gate import check_pack
from edgedecode.pack.hub import find_pack
from edgedecode.pack.integrity import check_files, file_sha256
from edgedecode.pack.manifest import MANIFEST_NAME, FileEntry, Graph, Manifest, OutsideFile
from edgedecode.pack.pack_lock import opening
from tests.export.trim.toy_pack import write_toy_pack


@dataclass
class Hub:
    """A stand-in for huggingface_hub that writes files in place and never deletes one that a commit lacks.

    A file whose metadata names the wanted commit is not written again, whatever its content.
    """

    commits: dict[str, Path] = field(default_factory=dict)
    """Folders by commit id, the newest last."""
    calls: list[str] = field(default_factory=list)
    offline: bool = False
    ends_after: int | None = None
    """The number of files after which the connection breaks."""

    def model_info(self, name: str, *, timeout: float) -> SimpleNamespace:
        self.calls.append(name)
        if name == "no/such" or self.offline:
            raise RuntimeError("404 Client Error.\n\nRepository Not Found for url: https://…")
        return SimpleNamespace(sha=list(self.commits)[-1])

    def snapshot_download(self, name: str, *, revision: str = "", allow_patterns: list[str], local_dir: Path) -> str:
        revision = revision or list(self.commits)[-1]
        source = self.commits[revision]
        names = [path.relative_to(source).as_posix() for path in sorted(source.rglob("*")) if path.is_file()]
        wanted = [name for name in names if any(fnmatch(name, pattern) for pattern in allow_patterns)]
        for number, each in enumerate(wanted):
            if number == self.ends_after:
                raise ConnectionError("the connection broke")
            notes = local_dir / ".cache" / "huggingface" / "download" / f"{each}.metadata"
            if (local_dir / each).is_file() and notes.is_file() and notes.read_text().startswith(revision):
                continue
            notes.parent.mkdir(parents=True, exist_ok=True)
            (local_dir / each).parent.mkdir(parents=True, exist_ok=True)
            (local_dir / each).write_bytes((source / each).read_bytes())
            notes.write_text(f"{revision}\netag\n0\n")
        return str(local_dir)


@pytest.fixture
def downloads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Hub:
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path / "cache"))
    hub = Hub()
    client = SimpleNamespace(snapshot_download=hub.snapshot_download, HfApi=lambda: hub)
    monkeypatch.setitem(sys.modules, "huggingface_hub", client)
    monkeypatch.setattr(pack_gate, "_check_models", lambda *_: None)  # these packs' graphs are placeholders
    return hub


def publish(hub: Hub, commit: str, source: Path, *, heads: str, weights: bytes = b"w" * 1000) -> dict[str, bytes]:
    """Add a commit of a pack whose draft graph has this name; return its files."""
    root = write_toy_pack(source)
    for name, content in ((f"draft/{heads}.onnx", commit.encode()), ("draft/weights.bin", weights)):
        (root / name).write_bytes(content)
    manifest = Manifest.load(root)
    names = [*manifest.files, f"draft/{heads}.onnx"]
    files = {name: FileEntry((root / name).stat().st_size, file_sha256(root / name)) for name in names}
    draft, graph = (
        manifest.models["draft"],
        Graph(f"draft/{heads}.onnx", inputs=("x",), outputs=("y",), capabilities=()),
    )
    models = {**manifest.models, "draft": replace(draft, graphs={**draft.graphs, "heads": graph})}
    (root / MANIFEST_NAME).write_text(replace(manifest, files=files, models=models).to_json(), encoding="utf-8")
    (root / "config.json").write_text("{}")  # matches a downloaded pattern but is in no manifest
    hub.commits[commit] = root
    return {name: (root / name).read_bytes() for name in (*names, MANIFEST_NAME)}


def content(root: Path) -> dict[str, bytes]:
    found = {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    return {name: data for name, data in found.items() if not name.startswith(".cache/")}


def test_find_pack_returns_an_existing_folder(tmp_path: Path, downloads: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_pack(tmp_path) == tmp_path
    assert find_pack(str(tmp_path)) == tmp_path
    (tmp_path / "owner" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert find_pack("owner/name") == Path("owner/name")
    assert downloads.calls == []


@pytest.mark.parametrize("name", ["nowhere", "/no/such/folder", "a/b/c", "", "ow ner/name", "a\0b"])
def test_find_pack_refuses_a_name_that_is_neither_folder_nor_hub_id(name: str, downloads: Hub) -> None:
    message = r"there is no folder .*, and it is not a hub id" if name else "the name of the pack is empty"
    with pytest.raises(ManifestError, match=message) as refusal:
        find_pack(name)
    assert "\n" not in str(refusal.value)
    assert downloads.calls == []


def test_find_pack_never_takes_a_path_for_a_hub_id(downloads: Hub) -> None:
    with pytest.raises(ManifestError, match="there is no folder"):
        find_pack(Path("owner/name"))
    assert downloads.calls == []


def test_find_pack_does_not_look_up_an_existing_file_on_the_hub(
    tmp_path: Path, downloads: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "edgedecode.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert find_pack("pack/edgedecode.json") == Path("pack/edgedecode.json")
    assert downloads.calls == []


def test_find_pack_downloads_each_hub_id_into_a_separate_folder(tmp_path: Path, downloads: Hub) -> None:
    files = publish(downloads, "a" * 40, tmp_path / "v1", heads="heads")
    assert find_pack("owner/name") == tmp_path / "cache" / "packs" / "owner--name"
    assert content(find_pack("owner/name")) == files
    assert downloads.calls == ["owner/name"] * 2


def test_find_pack_reports_a_refusal_by_the_hub_in_one_line(downloads: Hub) -> None:
    with pytest.raises(ManifestError, match=r"could not be downloaded from the hub \(404 Client Error\.\)") as refusal:
        find_pack("no/such")
    assert "\n" not in str(refusal.value)
    assert len(downloads.calls) == 1


def test_find_pack_leaves_exactly_the_files_of_the_new_manifest(tmp_path: Path, downloads: Hub) -> None:
    """Each time its author trims a pack again, the heads' file alternates between two names."""
    publish(downloads, "a" * 40, tmp_path / "v1", heads="heads")
    root = find_pack("owner/name")
    for commit, heads in (("b" * 40, "heads-2"), ("c" * 40, "heads"), ("d" * 40, "more")):
        files = publish(downloads, commit, tmp_path / commit, heads=heads)
        assert find_pack("owner/name") == root
        assert content(root) == files
        check_files(Manifest.load(root), root, full=True)
    assert [path.name for path in root.parent.iterdir()] == [root.name]


def test_find_pack_keeps_the_old_pack_when_a_download_is_interrupted(
    tmp_path: Path, downloads: Hub, caplog: pytest.LogCaptureFixture
) -> None:
    first = publish(downloads, "a" * 40, tmp_path / "v1", heads="heads")
    root = find_pack("owner/name")
    second = publish(downloads, "b" * 40, tmp_path / "v2", heads="heads-2", weights=b"x" * 1000)
    for files in range(len(second) + 1):
        downloads.ends_after = files
        with caplog.at_level(logging.INFO, logger="edgedecode.user_notices"):
            assert content(find_pack("owner/name")) == first
        assert "owner/name could not be updated from the hub (the connection broke)" in caplog.text
    downloads.offline, downloads.ends_after = True, None
    assert content(find_pack("owner/name")) == first
    downloads.offline = False
    assert content(find_pack("owner/name")) == second
    assert [path.name for path in root.parent.iterdir()] == [root.name]


def test_find_pack_keeps_the_old_pack_when_the_newer_commit_is_damaged(tmp_path: Path, downloads: Hub) -> None:
    first = publish(downloads, "a" * 40, tmp_path / "v1", heads="heads")
    find_pack("owner/name")
    publish(downloads, "b" * 40, tmp_path / "v2", heads="heads-2")
    (tmp_path / "v2" / "draft" / "weights.bin").write_bytes(b"y" * 1000)
    assert content(find_pack("owner/name")) == first


@pytest.mark.parametrize("name", [MANIFEST_NAME, "draft/weights.bin"])
def test_find_pack_downloads_a_damaged_file_again(name: str, tmp_path: Path, downloads: Hub) -> None:
    files = publish(downloads, "a" * 40, tmp_path / "v1", heads="heads")
    downloads.ends_after = len(files)
    with pytest.raises(ManifestError, match="the connection broke"):
        find_pack("owner/name")
    downloads.ends_after = None
    part = tmp_path / "cache" / "packs" / ".owner--name.part"
    (part / name).write_bytes(b"x" * (part / name).stat().st_size)
    assert content(find_pack("owner/name")) == files


def test_find_pack_replaces_a_damaged_file_of_the_old_pack(tmp_path: Path, downloads: Hub) -> None:
    publish(downloads, "a" * 40, tmp_path / "v1", heads="heads")
    root = find_pack("owner/name")
    (root / "draft" / "weights.bin").write_bytes(b"x" * 1000)
    with pytest.raises(ManifestError, match=r"is damaged: .*run `edgedecode cache clear --packs`"):
        check_pack(root)
    files = publish(downloads, "b" * 40, tmp_path / "v2", heads="heads-2")
    for notes in (root / ".cache").rglob("*.metadata"):  # the hub's client skips unchanged files
        if notes.name != f"{MANIFEST_NAME}.metadata":
            notes.write_text("b" * 40 + "\netag\n0\n")
    assert content(find_pack("owner/name")) == files


def test_find_pack_keeps_the_old_pack_when_the_gate_refuses_the_newer_commit(
    tmp_path: Path, downloads: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = publish(downloads, "a" * 40, tmp_path / "v1", heads="heads")
    find_pack("owner/name")
    publish(downloads, "b" * 40, tmp_path / "v2", heads="heads-2")

    def refuse(manifest: Manifest, root: Path) -> None:
        raise ManifestError(f"the graph {root} is refused")

    monkeypatch.setattr(pack_gate, "_check_models", refuse)
    assert content(find_pack("owner/name")) == first


def test_find_pack_keeps_the_old_pack_when_the_newer_commit_has_external_weights(
    tmp_path: Path, downloads: Hub
) -> None:
    first = publish(downloads, "a" * 40, tmp_path / "v1", heads="heads")
    find_pack("owner/name")
    publish(downloads, "b" * 40, tmp_path / "v2", heads="heads-2")
    manifest = Manifest.load(tmp_path / "v2")
    outside = {"draft/other.bin": OutsideFile(str(tmp_path / "other.bin"), 1, "")}
    (tmp_path / "v2" / MANIFEST_NAME).write_text(replace(manifest, outside=outside).to_json(), encoding="utf-8")
    assert content(find_pack("owner/name")) == first


def test_opening_holds_a_pack_that_is_being_replaced(tmp_path: Path) -> None:
    """Between the two renames the folder is missing; `opening` waits for it and holds its lock."""
    root, new = tmp_path / "pack", tmp_path / "new"
    new.mkdir()
    replaced = threading.Timer(0.1, lambda: new.rename(root))
    replaced.start()
    with opening(root):
        assert root.is_dir()
        assert take_lock(root) is None, "opened without holding the lock"
    replaced.join()


@pytest.mark.parametrize("at", range(4))
def test_find_pack_killed_during_the_replacement_leaves_a_complete_pack(
    at: int, tmp_path: Path, downloads: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the hub, the old or the new pack is complete afterwards."""
    first = publish(downloads, "a" * 40, tmp_path / "v1", heads="heads")
    root = find_pack("owner/name")
    second = publish(downloads, "b" * 40, tmp_path / "v2", heads="heads-2")
    real, calls = Path.rename, []

    def rename(path: Path, target: Path) -> Path:
        if len(calls) == at:
            raise KeyboardInterrupt
        calls.append(path.name)
        return real(path, target)

    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr(Path, "rename", rename)
        patch.setattr(hub.shutil, "rmtree", lambda *_, **__: None)
        find_pack("owner/name")
    downloads.offline = True
    found = content(find_pack("owner/name"))
    assert found == (second if calls else first)
    check_files(Manifest.load(root), root, full=True)


def test_find_pack_without_the_hub_client_names_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ManifestError, match="pip install huggingface_hub"):
        find_pack("owner/name")


def test_find_pack_without_a_name_returns_the_bundled_pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "BUNDLED_PACK", tmp_path)
    assert find_pack(None) == tmp_path
    monkeypatch.setattr(hub, "BUNDLED_PACK", tmp_path / "absent")
    with pytest.raises(ManifestError, match="no bundled pack: give one with -m"):
        find_pack(None)


def test_pack_files_cover_everything_that_a_pack_may_list() -> None:
    """A listed file that was not downloaded would be refused as missing."""
    names = ["draft/heads.onnx", "draft/trim.ids", "draft/trim.gguf", "target/target.gguf", "target/gguf.json"]
    names += ["tokenizer.json", "chat_template.jinja", "target/weights.bin", "licenses/target/LICENSE"]
    for name in names:
        assert any(fnmatch(name, pattern) for pattern in hub._PACK_FILES), name
