"""Shared fixtures of the import tests. The gguf package writes their files; torch is not needed."""

import pytest

pytest.importorskip("gguf", reason="the gguf package writes the files that are imported")


@pytest.fixture
def without_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make llama.cpp appear not installed."""
    monkeypatch.setattr("edgedecode.export.imports.gguf_import.engine_fault", lambda: "it is not installed")
