"""The pack is the old one or the new one, whatever comes between, and what a killed run left goes with the next."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from edgedecode.digests import check_files
from edgedecode.errors import ExportError, ManifestError
from edgedecode.export.trim import heads, pack_change
from edgedecode.export.trim.heads import make_heads
from edgedecode.export.trim.pack_change import (
    Workplace,
    check_writable,
    remove_trim,
    save_trim,
    trim_files,
    workplace,
)
from edgedecode.gguf import trim as gguf_trim
from edgedecode.manifest import MANIFEST_NAME, Manifest
from edgedecode.vocabulary import TrimmedVocabulary, read_token_ids
from tests.export.trim.toy_pack import VOCABULARY, fake_heads, write_toy_pack


@pytest.fixture
def pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(heads, "_drawn", fake_heads)
    return write_toy_pack(tmp_path / "pack")


def add(root: Path, size: int) -> Manifest:
    manifest = Manifest.load(root)
    with workplace(root, manifest) as place:
        made = make_heads(place, manifest, vocabulary=TrimmedVocabulary(np.arange(size), VOCABULARY))
        return save_trim(place, graph=made.graph, entry=made.trim)


def content(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_trim_is_added_replaced_and_removed(pack: Path) -> None:
    before, untouched = content(pack), Manifest.load(pack)
    first = add(pack, 300)
    draft = first.models["draft"]
    assert draft.trim is not None
    assert (draft.trim.size, draft.trim.token_ids, draft.graphs["heads"].file) == (
        300,
        "draft/trim.ids",
        "draft/heads.onnx",
    )
    assert {"local", "trim"} <= set(draft.graphs["heads"].capabilities)
    check_files(Manifest.load(pack), pack, full=True)
    second = add(pack, 400).models["draft"]
    assert second.trim is not None
    read_token_ids(pack / second.trim.token_ids, rows=400, vocabulary_size=VOCABULARY)
    check_files(Manifest.load(pack), pack, full=True)
    assert set(content(pack)) == {*before, "draft/trim-2.ids", "draft/heads-2.onnx"}, "the first one's files went"
    assert trim_files(add(pack, 500).models["draft"]) == ["draft/heads.onnx", "draft/trim.ids"]
    remove_trim(pack)
    assert set(content(pack)) == set(before)
    assert Manifest.load(pack) == untouched
    check_files(Manifest.load(pack), pack, full=True)


def test_a_draft_that_is_a_gguf_file_alone(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its trimmed draft is a file of its own, and there is no graph to add a local head to."""
    path = pack / MANIFEST_NAME
    value = json.loads(path.read_text())
    value["models"]["draft"] |= {"graphs": {}, "gguf": "draft/weights.bin"}
    path.write_text(json.dumps(value))
    cut: list[Path] = []

    def fake_cut(whole: Path, out: Path, vocabulary: TrimmedVocabulary) -> None:
        cut.append(whole)
        out.write_bytes(vocabulary.ids.tobytes())

    monkeypatch.setattr(heads, "_cut", fake_cut)
    draft = add(pack, 300).models["draft"]
    assert cut == [pack / "draft/weights.bin"]
    assert draft.graphs == {}
    assert trim_files(draft) == ["draft/trim.ids", "draft/trim.gguf"]
    (pack / "draft/base.onnx").unlink()
    value = json.loads(path.read_text())
    del value["files"]["draft/base.onnx"]
    path.write_text(json.dumps(value))
    manifest = Manifest.load(pack)
    check_files(manifest, pack, full=True)
    with workplace(pack, manifest) as place, pytest.raises(ExportError, match="the pack's draft has none"):
        make_heads(place, manifest, vocabulary=None)


def test_what_a_newer_version_wrote_stays(pack: Path) -> None:
    path = pack / MANIFEST_NAME
    path.write_text(path.read_text().replace('"name": "toy"', '"name": "toy", "mood": "sunny"', 1))
    add(pack, 300)
    assert '"mood": "sunny"' in path.read_text()


def breaking(monkeypatch: pytest.MonkeyPatch, *, at: int, after: bool, error: type[BaseException]) -> list[int]:
    """Let the `at`th rename fail: before it was done, or right behind it."""
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
@pytest.mark.parametrize("after", [False, True], ids=["before", "behind"])
@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize("trimmed", [False, True], ids=["first", "again"])
def test_an_interrupt_at_any_rename(
    trimmed: bool, at: int, after: bool, error: type[BaseException], pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if trimmed:
        add(pack, 300)
    before = content(pack)
    with monkeypatch.context() as patch:
        calls = breaking(patch, at=at, after=after, error=error)
        with pytest.raises(error):
            add(pack, 400)
        assert len(calls) == at + 1
    trim = Manifest.load(pack).models["draft"].trim
    if at == 2 and after:  # the manifest was there already
        assert trim is not None
        assert trim.size == 400
    else:
        assert content(pack) == before
    check_files(Manifest.load(pack), pack, full=True)
    assert not [name for name in content(pack) if "/." in name or name.startswith(".")]


def test_an_interrupt_while_files_are_made(pack: Path) -> None:
    before = content(pack)
    manifest = Manifest.load(pack)

    def interrupted() -> None:
        with workplace(pack, manifest) as place:
            make_heads(place, manifest, vocabulary=TrimmedVocabulary(np.arange(300), VOCABULARY))
            check_files(manifest, pack, full=True)  # the unfinished files disturb nobody
            assert len(content(pack)) > len(before)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert content(pack) == before


def test_what_a_killed_run_left_goes(pack: Path) -> None:
    dead = 2**22 + 1  # above the largest process number
    before = content(pack)
    unfinished = (f"draft/.trim-{dead}-0.onnx", f"draft/..trim-{dead}-2.gguf.{dead}", f".{MANIFEST_NAME}.{dead}")
    for name in (*unfinished, "draft/heads.onnx", "draft/trim.ids"):
        (pack / name).write_text("left")
    goes_on = {name.replace(str(dead), str(os.getppid())): b"of a run that goes on" for name in unfinished}
    for name, data in goes_on.items():
        (pack / name).write_bytes(data)
    with workplace(pack, Manifest.load(pack)):
        assert content(pack) == before | goes_on


def test_what_another_process_finished_meanwhile_stays(pack: Path) -> None:
    early = Manifest.load(pack)
    add(pack, 300)
    finished = content(pack)
    with workplace(pack, early):
        assert content(pack) == finished
    check_files(Manifest.load(pack), pack, full=True)


def test_the_names_of_unfinished_files_are_those_that_are_removed(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the writers themselves name them, by a process that is dead when the next trim comes."""
    dead = 2**22 + 1
    before = content(pack)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: dead)
        patch.setattr(Path, "unlink", lambda self, **_: None)  # a kill tidies nothing up
        patch.setattr(gguf_trim, "write_trimmed", killed)
        place = Workplace(pack, "draft")
        with pytest.raises(KeyboardInterrupt):
            gguf_trim.trim_gguf(
                pack / "draft/weights.bin", place.path("gguf"), TrimmedVocabulary(np.arange(9), VOCABULARY)
            )
        patch.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            add(pack, 300)
    left = set(content(pack)) - set(before)
    assert len(left) == 4, left  # two files of a workplace, a GGUF file and a manifest on their way
    with workplace(pack, Manifest.load(pack)):
        assert content(pack) == before


def test_a_pack_that_is_not_the_users_to_change(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
