"""The trimmed draft on llama.cpp where the pack has only the map: its file is built at first use and cached."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedecode.decoding.drafts import TrimmedVocabulary
from edgedecode.engines.interface import ModelRequest
from edgedecode.errors import BudgetExceeded, CapabilityError
from edgedecode.memory.budget import Budget
from edgedecode.pack.entries import FileEntry, TrimEntry
from edgedecode.pack.hub import BUNDLED_PACK
from edgedecode.pack.integrity import file_sha256
from edgedecode.pack.manifest import MANIFEST_NAME, Manifest
from edgedecode.pack.token_map import write_token_ids
from edgedecode.runtimes.llama import LlamaRuntime
from tests.contract.conftest import GgufOpener
from tests.contract.gguf_pack import write_pack
from tests.contract.reference import assert_close, logits_of

pytest.importorskip("gguf", reason="the llama extra is not installed")
pytest.importorskip("llama_cpp", reason="the llama extra is not installed")

KEPT = np.array([0, 1, 2, 5, *range(40, 77), 99, 110, 126], np.int64)
TOKENS = [int(token) for token in np.random.default_rng(6).integers(0, 128, 200)]
MAP = "trim.ids"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a separate cache for built files, in which the engine has been probed."""
    folder = tmp_path / "cache"
    folder.mkdir()
    monkeypatch.setattr("edgedecode.runtimes.llama.files.cached_gguf.cache_folder", lambda name: folder)
    return folder


@pytest.fixture
def mapped_pack(gguf_opener: GgufOpener, tmp_path: Path) -> Path:
    """Return a pack with the draft's map and no trimmed file."""
    root = write_pack(tmp_path / "mapped", gguf_opener)
    write_map(root, KEPT)
    return root


def write_map(root: Path, ids: np.ndarray) -> None:
    write_token_ids(root / "draft" / MAP, ids)
    manifest = Manifest.load(root)
    name = f"draft/{MAP}"
    listed = FileEntry(nbytes=4 * len(ids), sha256=file_sha256(root / name))
    trimmed = replace(manifest.models["draft"], trim=TrimEntry(size=len(ids), token_ids=name))
    manifest = replace(manifest, models={**manifest.models, "draft": trimmed}, files={**manifest.files, name: listed})
    (root / MANIFEST_NAME).write_text(manifest.to_json(), encoding="utf-8")


def open_draft(root: Path, *, needs: tuple[str, ...] = ("trim",), budget: Budget | None = None) -> Any:
    manifest = Manifest.load(root)
    return LlamaRuntime().open(
        ModelRequest(
            manifest.located("draft"),
            root,
            name="draft",
            vocabulary_size=manifest.vocabulary_size,
            budget=budget or Budget(),
            threads=1,
            provider="cpu",
            needs=needs,
        )
    )


def test_trim_file_is_built_once(mapped_pack: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    budget = Budget(10**9)
    model, whole = open_draft(mapped_pack, budget=budget), open_draft(mapped_pack, needs=())
    assert model.card.vocabulary_size == Manifest.load(mapped_pack).vocabulary_size
    assert_close(logits_of(model, TOKENS[:30]), logits_of(whole, TOKENS[:30])[:, KEPT])
    model.close()
    whole.close()
    assert [lease.name for lease in budget.leases] == ["llama.cpp code"]
    assert sorted(path.suffix for path in cache.iterdir()) == [".gguf", ".json"]
    monkeypatch.setattr("edgedecode.runtimes.llama.files.trimmed_draft.write_trimmed", None)
    open_draft(mapped_pack).close()


def test_trim_file_is_replaced_for_another_map(mapped_pack: Path, cache: Path) -> None:
    open_draft(mapped_pack).close()
    (old,) = cache.glob("*.gguf")
    write_map(mapped_pack, KEPT[:20])
    model = open_draft(mapped_pack)
    assert model.card.rows == 20
    model.close()
    (new,) = cache.glob("*.gguf")
    assert new != old


def test_trim_file_that_is_damaged_is_rebuilt(mapped_pack: Path, cache: Path) -> None:
    open_draft(mapped_pack).close()
    (path,) = cache.glob("*.gguf")
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    open_draft(mapped_pack).close()
    assert path.read_bytes() == whole


def test_trim_file_on_a_full_disk_leaves_nothing(
    mapped_pack: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: Any, source: Path, vocabulary: TrimmedVocabulary) -> None:
        file.write(b"GGUF")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("edgedecode.runtimes.llama.files.trimmed_draft.write_trimmed", full)
    with pytest.raises(
        CapabilityError, match=r"trimmed draft cannot be built in the cache \(No space left.*free some space"
    ):
        open_draft(mapped_pack)
    assert list(cache.iterdir()) == []


def test_trim_file_build_needs_memory_in_the_budget(mapped_pack: Path, cache: Path) -> None:
    with pytest.raises(BudgetExceeded, match=r"building trimmed draft\.gguf"):
        open_draft(mapped_pack, budget=Budget(10**6))
    assert list(cache.iterdir()) == []


def test_trim_file_of_a_pack_with_only_a_plan(tmp_path: Path, cache: Path) -> None:
    """The bundled pack: its full file is built first, and the trimmed one from it."""
    if not (BUNDLED_PACK / MANIFEST_NAME).is_file() or not Manifest.load(BUNDLED_PACK).models["draft"].gguf_plan:
        pytest.skip("the bundled pack has no GGUF plan: run `make pack`")
    root = Path(shutil.copytree(BUNDLED_PACK, tmp_path / "bundled"))
    ids = np.arange(0, Manifest.load(root).vocabulary_size, 4)
    write_map(root, ids)
    model, whole = open_draft(root), open_draft(root, needs=())
    found, wanted = (logits_of(each, TOKENS[:60]) for each in (model, whole))
    np.testing.assert_allclose(found, wanted[:, ids], rtol=0, atol=1e-3 * wanted.std())
    model.close()
    whole.close()
