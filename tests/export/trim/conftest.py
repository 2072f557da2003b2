"""`trim` on a toy pack: real files and sessions, table models, and a fake graph writer."""

from pathlib import Path

import pytest

from edgedecode.export.trim import trim_pack as run
from edgedecode.export.trim import trimmed_graph
from tests.export.trim.toy_pack import fake_graph, open_toy, toy_runtime, write_toy_pack


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a toy pack that `edgedecode trim` opens, with a separate cache."""
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path / "cache"))
    runtime = toy_runtime()
    monkeypatch.setattr(run, "load", lambda root, **options: open_toy(root, runtime))
    monkeypatch.setattr(run, "find_runtime", lambda name: runtime)
    monkeypatch.setattr(trimmed_graph, "write_trimmed", fake_graph)
    return write_toy_pack(tmp_path / "pack")


@pytest.fixture
def cheap_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fix the costs: a draft step takes half a target pass, and a trimmed draft is faster in proportion to its rows."""
    monkeypatch.setattr(run, "time_target", lambda *_, **__: dict.fromkeys(range(1, 10), 1.0))
    monkeypatch.setattr(
        run, "time_drafts", lambda target, whole, trimmed, **_: (0.5, trimmed.card.rows / whole.card.rows)
    )
