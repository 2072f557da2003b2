"""What the import tests share: the gguf package writes their files; torch is never needed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("gguf", reason="the gguf package writes the files that are imported")


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of the tests' own, for child processes too: the user's is left alone."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGEDECODE_CACHE", str(folder))
        yield folder


@pytest.fixture
def without_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """llama.cpp is not asked, whether it is installed or not."""
    monkeypatch.setattr("edgedecode.export.imports.gguf_import.engine_fault", lambda: "it is not installed")
