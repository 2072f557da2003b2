"""`find_pack`, with a stand-in for the hub's client: no test uses the network."""

import json
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from edgedecode.errors import ManifestError
from edgedecode.library import find
from edgedecode.library.find import find_pack
from edgedecode.locks import take_lock
from edgedecode.pack import hub, model_checks
from edgedecode.pack.entries import OutsideFile
from edgedecode.pack.gate import check_pack
from edgedecode.pack.integrity import check_files, file_entry
from edgedecode.pack.manifest import MANIFEST_NAME, Graph, Manifest
from edgedecode.pack.pack_lock import opening
from tests.export.trim.toy_pack import write_toy_pack
from tests.hub import Hub, content


@pytest.fixture
def downloads(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setattr(model_checks, "check_models", lambda *_: None)  # these packs' graphs are placeholders
    with hub.installed():
        yield hub


def publish(hub: Hub, commit: str, source: Path, *, heads: str, weights: bytes = b"w" * 1000) -> dict[str, bytes]:
    """Add a commit of a pack whose draft graph has this name; return its files."""
    root = write_toy_pack(source)
    for name, data in ((f"draft/{heads}.onnx", commit.encode()), ("draft/weights.bin", weights)):
        (root / name).write_bytes(data)
    manifest = Manifest.load(root)
    names = [*manifest.files, f"draft/{heads}.onnx"]
    files = {name: file_entry(root / name) for name in names}
    draft, graph = (
        manifest.models["draft"],
        Graph(f"draft/{heads}.onnx", inputs=("x",), outputs=("y",), capabilities=()),
    )
    models = {**manifest.models, "draft": replace(draft, graphs={**draft.graphs, "heads": graph})}
    (root / MANIFEST_NAME).write_text(replace(manifest, files=files, models=models).to_json(), encoding="utf-8")
    (root / "config.json").write_text("{}")  # in no manifest
    hub.commits[commit] = root
    return {name: (root / name).read_bytes() for name in (*names, MANIFEST_NAME)}


def test_find_pack_returns_an_existing_folder(tmp_path: Path, downloads: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_pack(tmp_path) == tmp_path
    assert find_pack(str(tmp_path)) == tmp_path
    (tmp_path / "owner" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert find_pack("owner/name") == Path("owner/name")
    assert downloads.calls == []


@pytest.mark.parametrize("name", ["nowhere", "/no/such/folder", "./folder", "a/b/c", "", "ow ner/name", "a\0b"])
def test_find_pack_refuses_a_name_that_is_neither_folder_nor_hub_id(name: str, downloads: Hub) -> None:
    other = "folder '[^']*'$" if name.startswith(("/", ".")) else "folder and no model '[^']*', and it is not a hub id"
    message = f"there is no {other}" if name else "the name of the pack is empty"
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
    with pytest.raises(ManifestError, match=r"could not be found on the hub \(404 Client Error\.\)") as refusal:
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
    for files in range(len(second)):
        downloads.ends_after = files
        with caplog.at_level(logging.INFO, logger="edgedecode.user_notices"):
            assert content(find_pack("owner/name")) == first
        assert "owner/name could not be updated from the hub (the connection broke)" in caplog.text
    downloads.offline, downloads.ends_after = True, None
    assert content(find_pack("owner/name")) == first
    downloads.offline = False
    assert content(find_pack("owner/name")) == second
    assert [path.name for path in root.parent.iterdir()] == [root.name]


def _damage(root: Path, patch: pytest.MonkeyPatch) -> None:
    (root / "draft" / "weights.bin").write_bytes(b"y" * 1000)


def _refuse(root: Path, patch: pytest.MonkeyPatch) -> None:
    def check(manifest: Manifest, root: Path) -> None:
        raise ManifestError(f"the graph {root} is refused")

    patch.setattr(model_checks, "check_models", check)


def _move_weights_out(root: Path, patch: pytest.MonkeyPatch) -> None:
    outside = {"draft/other.bin": OutsideFile(str(root.parent / "other.bin"), 1, "")}
    (root / MANIFEST_NAME).write_text(replace(Manifest.load(root), outside=outside).to_json(), encoding="utf-8")


@pytest.mark.parametrize("spoil", [_damage, _refuse, _move_weights_out])
def test_find_pack_keeps_the_old_pack_when_the_newer_commit_is_refused(
    spoil: Callable[[Path, pytest.MonkeyPatch], None], tmp_path: Path, downloads: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = publish(downloads, "a" * 40, tmp_path / "v1", heads="heads")
    find_pack("owner/name")
    publish(downloads, "b" * 40, tmp_path / "v2", heads="heads-2")
    spoil(tmp_path / "v2", monkeypatch)
    assert content(find_pack("owner/name")) == first


@pytest.mark.parametrize("name", [MANIFEST_NAME, "draft/weights.bin"])
def test_find_pack_downloads_a_damaged_file_again(name: str, tmp_path: Path, downloads: Hub) -> None:
    files = publish(downloads, "a" * 40, tmp_path / "v1", heads="heads")
    downloads.ends_after = len(files) - 1
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
    monkeypatch.setattr(find, "BUNDLED_PACK", tmp_path)
    assert find_pack(None) == tmp_path
    monkeypatch.setattr(find, "BUNDLED_PACK", tmp_path / "absent")
    with pytest.raises(ManifestError, match="no bundled pack: give one with -m"):
        find_pack(None)


LISTED = [
    *("adapters/formal/adapter_config.json", "adapters/formal/adapter_model.safetensors", "adapters/formal.gguf"),
    *("npu/57_v75/target-static-8_ctx.onnx", "npu/57_v75/target-static-8_ctx_qnn.bin", "licenses/target/NOTICE"),
    *("licenses/draft/LICENSE.pdf", "notes/[a] *?.any", "notes/aa", "weights", "model.onnx.data"),
]
UNLISTED = ["notes/a b.any", "notes/ab", "draft/pytorch_model.bin", "draft/other.onnx", "target.gguf"]


def test_find_pack_downloads_exactly_the_listed_files(tmp_path: Path, downloads: Hub) -> None:
    """Whatever their names, and nothing else."""
    root = write_toy_pack(tmp_path / "v1")
    for name in (*LISTED, *UNLISTED):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode())
    manifest = Manifest.load(root)
    files = {**manifest.files, **{name: file_entry(root / name) for name in LISTED}}
    (root / MANIFEST_NAME).write_text(replace(manifest, files=files).to_json(), encoding="utf-8")
    downloads.commits["a" * 40] = root
    assert set(content(find_pack("owner/name"))) == {*files, MANIFEST_NAME}
    assert {*downloads.fetched} == {*files, MANIFEST_NAME}


@pytest.mark.parametrize("name", ["../beside", "/etc/passwd", "draft/../../beside", "C:/beside", "draft\\beside"])
def test_find_pack_downloads_nothing_for_a_manifest_that_names_files_outside_the_pack(
    name: str, tmp_path: Path, downloads: Hub
) -> None:
    root = write_toy_pack(tmp_path / "v1")
    manifest = json.loads((root / MANIFEST_NAME).read_text(encoding="utf-8"))
    manifest["files"][name] = {"nbytes": 1, "sha256": ""}
    (root / MANIFEST_NAME).write_text(json.dumps(manifest), encoding="utf-8")
    downloads.commits["a" * 40] = root
    with pytest.raises(ManifestError, match="not a plain path inside the pack"):
        find_pack("owner/name")
    assert {*downloads.fetched} == {MANIFEST_NAME}
