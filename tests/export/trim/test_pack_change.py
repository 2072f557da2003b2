"""A trim changes the pack atomically, and the next run removes what a killed run left."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgedecode.decoding.drafts import TrimmedVocabulary
from edgedecode.errors import ExportError, ManifestError
from edgedecode.export.trim import head_files as heads
from edgedecode.export.trim import pack_change
from edgedecode.export.trim.head_files import make_heads
from edgedecode.export.trim.pack_change import check_writable, remove_trim, save_entry, save_trim, trim_files, workplace
from edgedecode.pack.integrity import check_files
from edgedecode.pack.manifest import MANIFEST_NAME, Manifest
from edgedecode.pack.pack_lock import changing, opening
from edgedecode.pack.token_map import read_token_ids
from tests.export.trim.toy_pack import VOCABULARY, fake_heads, write_toy_pack


@pytest.fixture
def pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(heads, "_write_graph", fake_heads)
    return write_toy_pack(tmp_path / "pack")


def add(root: Path, size: int) -> Manifest:
    manifest = Manifest.load(root)
    with workplace(root, manifest) as place:
        made = make_heads(place, manifest, vocabulary=TrimmedVocabulary(np.arange(size), VOCABULARY))
        return save_trim(place, graph=made.graph, entry=made.trim)


def content(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_save_trim_adds_and_replaces_and_remove_trim_restores(pack: Path) -> None:
    before, untouched = content(pack), Manifest.load(pack)
    first = add(pack, 300)
    draft = first.models["draft"]
    assert draft.trim is not None
    assert (draft.trim.size, draft.trim.token_ids, draft.graphs["heads"].file) == (
        300,
        "draft/trim.ids",
        "draft/heads.onnx",
    )
    assert "trim" in draft.graphs["heads"].capabilities
    check_files(Manifest.load(pack), pack, full=True)
    second = add(pack, 400).models["draft"]
    assert second.trim is not None
    read_token_ids(pack / second.trim.token_ids, rows=400, vocabulary_size=VOCABULARY)
    check_files(Manifest.load(pack), pack, full=True)
    assert set(content(pack)) == {*before, "draft/trim-2.ids", "draft/heads-2.onnx"}, (
        "the files of the first trim are deleted"
    )
    assert trim_files(add(pack, 500).models["draft"]) == ["draft/heads.onnx", "draft/trim.ids"]
    remove_trim(pack)
    assert set(content(pack)) == set(before)
    assert Manifest.load(pack) == untouched
    check_files(Manifest.load(pack), pack, full=True)


def test_make_heads_refuses_a_draft_that_is_only_a_gguf_file(pack: Path) -> None:
    path = pack / MANIFEST_NAME
    value = json.loads(path.read_text())
    value["models"]["draft"] |= {"graphs": {}, "gguf": "draft/weights.bin"}
    path.write_text(json.dumps(value))
    before = content(pack)
    with pytest.raises(ExportError, match="the pack's draft has no ONNX graph, and only graphs can be trimmed"):
        add(pack, 300)
    assert content(pack) == before


def test_save_trim_keeps_unknown_manifest_keys(pack: Path) -> None:
    path = pack / MANIFEST_NAME
    path.write_text(path.read_text().replace('"name": "toy"', '"name": "toy", "mood": "sunny"', 1))
    add(pack, 300)
    assert '"mood": "sunny"' in path.read_text()


def failing_rename(monkeypatch: pytest.MonkeyPatch, *, at: int, after: bool, error: type[BaseException]) -> list[int]:
    """Make rename number `at` fail, before or after it is done."""
    real = Path.replace
    calls: list[int] = []

    def replace(self: Path, target: Path) -> Path:
        calls.append(1)
        if len(calls) == at + 1 and not after:
            raise error
        moved = real(self, target)
        if len(calls) == at + 1:
            raise error
        return moved

    monkeypatch.setattr(pack_change.Path, "replace", replace)
    return calls


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize("trimmed", [False, True], ids=["first trim", "second trim"])
def test_save_trim_interrupted_at_any_rename_leaves_a_valid_pack(
    trimmed: bool, at: int, after: bool, error: type[BaseException], pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if trimmed:
        add(pack, 300)
    before = content(pack)
    with monkeypatch.context() as patch:
        calls = failing_rename(patch, at=at, after=after, error=error)
        with pytest.raises(error):
            add(pack, 400)
        assert len(calls) == at + 1
    trim = Manifest.load(pack).models["draft"].trim
    if at == 2 and after:  # the manifest had been replaced
        assert trim is not None
        assert trim.size == 400
    else:
        assert content(pack) == before
    check_files(Manifest.load(pack), pack, full=True)
    assert not [name for name in content(pack) if "/." in name or name.startswith(".")]


def test_make_heads_interrupted_leaves_the_pack_unchanged(pack: Path) -> None:
    before = content(pack)
    manifest = Manifest.load(pack)

    def interrupted() -> None:
        with workplace(pack, manifest) as place:
            make_heads(place, manifest, vocabulary=TrimmedVocabulary(np.arange(300), VOCABULARY))
            check_files(manifest, pack, full=True)  # unfinished files do not affect the check
            assert len(content(pack)) > len(before)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert content(pack) == before


def killed(work: Callable[[], object]) -> None:
    """Run `work` in a child process that ends without cleaning up."""
    child = os.fork()
    if not child:
        with suppress(BaseException):
            work()
        os._exit(0)
    os.waitpid(child, 0)


def until_killed(pack: Path) -> None:
    with workplace(pack, Manifest.load(pack)) as place:
        make_heads(place, Manifest.load(pack), vocabulary=TrimmedVocabulary(np.arange(300), VOCABULARY))
        (pack / f"{MANIFEST_NAME}.01234567.making").write_text("{")
        (pack / "draft" / "heads.onnx").write_text("named, and not listed yet")
        os._exit(0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_workplace_removes_the_files_of_a_killed_run(pack: Path) -> None:
    before = content(pack)
    killed(lambda: until_killed(pack))
    left = set(content(pack)) - set(before)
    assert len(left) == 5, left
    check_files(Manifest.load(pack), pack, full=True)  # still the old pack
    with workplace(pack, Manifest.load(pack)):
        assert {name for name in content(pack) if not name.endswith(".lock")} == set(before)
    assert content(pack) == before


def test_workplace_keeps_the_files_of_a_running_process(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers that share a pack have separate process ids, so ids cannot tell whether a process runs."""
    manifest = Manifest.load(pack)
    with workplace(pack, manifest) as first:
        made = make_heads(first, manifest, vocabulary=TrimmedVocabulary(np.arange(300), VOCABULARY))
        monkeypatch.setattr(os, "getpid", lambda: 2**22 + 1)
        with workplace(pack, manifest) as second:
            assert {first.path("trim"), second.path("trim")}.isdisjoint(made.paths)
            assert all(path.exists() for path in made.paths)
        saved = save_trim(first, graph=made.graph, entry=made.trim)
    check_files(saved, pack, full=True)


def test_workplace_removes_an_old_file_without_a_lock(pack: Path) -> None:
    """An older edgedecode named its files so."""
    fresh, old = pack / "draft/.trim-17-0.onnx", pack / "draft/.trim-18-0.onnx"
    fresh.touch()
    old.touch()
    os.utime(old, (0, 0))
    with workplace(pack, Manifest.load(pack)):
        assert fresh.exists()
        assert not old.exists()


def test_workplace_waits_while_another_trim_is_saved(
    pack: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise it would delete the renamed files as leftovers of a killed run."""
    manifest = Manifest.load(pack)
    started: list[Path] = []

    def second() -> None:
        with workplace(pack, manifest) as place:
            started.append(place.root)

    other = threading.Thread(target=second)
    real = Path.replace

    def replace(self: Path, target: Path) -> Path:
        moved = real(self, target)
        if not other.ident:
            other.start()
            other.join(1.0)  # until it prints that it waits
            assert not started
        return moved

    with caplog.at_level(logging.INFO, logger="edgedecode.user_notices"), workplace(pack, manifest) as place:
        made = make_heads(place, manifest, vocabulary=TrimmedVocabulary(np.arange(300), VOCABULARY))
        with monkeypatch.context() as patch:
            patch.setattr(pack_change.Path, "replace", replace)
            saved = save_trim(place, graph=made.graph, entry=made.trim)
        other.join(20)
    assert started == [pack]
    check_files(saved, pack, full=True)
    assert "waiting for another process that opens or changes the pack" in caplog.text


def test_workplace_refuses_a_pack_that_stays_locked(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgedecode.pack.pack_lock.CHANGE_SECONDS", 0.1)
    before = content(pack)
    with (
        changing(pack),
        pytest.raises(ManifestError, match=r"another process has locked the pack .* nothing was changed"),
    ):
        add(pack, 300)
    assert content(pack) == before


def test_opening_during_a_trim_sees_the_old_or_the_new_pack(pack: Path) -> None:
    """While the trim is replaced and removed repeatedly, a reader finds no missing or wrong file."""
    ended, seen = threading.Event(), set()

    def read() -> None:
        while not ended.is_set():
            with opening(pack):
                manifest = Manifest.load(pack)
                time.sleep(0.001)
                check_files(manifest, pack, full=True)
            trim = manifest.models["draft"].trim
            seen.add(None if trim is None else trim.size)
            time.sleep(0.03)

    with ThreadPoolExecutor(1) as reader:
        reading = reader.submit(read)
        try:
            while len(seen) < 3 and not reading.done():
                for size in (300, 400):
                    add(pack, size)
                remove_trim(pack)
        finally:
            ended.set()
        reading.result()
    assert seen == {None, 300, 400}


def test_save_entry_refuses_a_trim_that_was_replaced_or_removed(pack: Path) -> None:
    first = add(pack, 300).models["draft"].trim
    assert first is not None
    save_entry(pack, replace(first, length=3), measured=first)
    for change in (lambda: add(pack, 400), lambda: remove_trim(pack)):
        change()
        before = content(pack)
        with pytest.raises(ManifestError, match="the pack's trim was replaced or removed in the meantime"):
            save_entry(pack, replace(first, length=5), measured=replace(first, length=3))
        assert content(pack) == before
        check_files(Manifest.load(pack), pack, full=True)


def test_save_entry_refuses_an_invalid_entry(pack: Path) -> None:
    first = add(pack, 300).models["draft"].trim
    assert first is not None
    before = content(pack)
    with pytest.raises(ManifestError):
        save_entry(pack, replace(first, token_ids="draft/nowhere.ids"), measured=first)
    assert content(pack) == before


def test_workplace_keeps_what_another_process_finished(pack: Path) -> None:
    early = Manifest.load(pack)
    add(pack, 300)
    finished = content(pack)
    with workplace(pack, early):
        assert content(pack).items() >= finished.items()
    assert content(pack) == finished
    check_files(Manifest.load(pack), pack, full=True)


def test_check_writable_refuses_read_only_and_downloaded_packs(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = Manifest.load(pack)
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: Path(path).name != "draft")
        with pytest.raises(ManifestError, match=r"draft cannot be written: copy the pack elsewhere"):
            check_writable(pack, manifest)
    with monkeypatch.context() as patch:
        patch.setattr(pack_change, "is_downloaded", lambda root: True)
        with pytest.raises(ManifestError, match="was downloaded, and the next download would undo a trim"):
            check_writable(pack, manifest)
    check_writable(pack, manifest)
