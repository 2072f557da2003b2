"""What the import tests share: the gguf package writes their files; torch is never needed."""

from __future__ import annotations

import pytest

pytest.importorskip("gguf", reason="the gguf package writes the files that are imported")


@pytest.fixture
def without_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """llama.cpp is not asked, whether it is installed or not."""
    monkeypatch.setattr("edgedecode.export.imports.gguf_import.engine_fault", lambda: "it is not installed")
