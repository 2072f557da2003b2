"""`trim` on a toy pack: real files and sessions, table models, and a fake graph writer."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgedecode.export.trim import head_files as heads
from edgedecode.export.trim import measuring
from edgedecode.export.trim import trim_pack as run
from edgedecode.export.trim.timing import HeadTimes, PassTimes
from tests.export.trim.toy_pack import fake_heads, open_toy, toy_runtime, write_toy_pack


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a toy pack that `edgedecode trim` opens, with a separate cache."""
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path / "cache"))
    runtime = toy_runtime()
    monkeypatch.setattr(run, "load", lambda root, **options: open_toy(root, runtime))
    monkeypatch.setattr(run, "find_runtime", lambda name: runtime)
    monkeypatch.setattr(heads, "_write_graph", fake_heads)
    return write_toy_pack(tmp_path / "pack")


@pytest.fixture
def cheap_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fix the costs: a draft step takes half a target pass, and a smaller head is faster in proportion to its rows."""
    monkeypatch.setattr(measuring, "time_target", lambda *_, **__: PassTimes(dict.fromkeys(range(1, 10), 1.0)))
    monkeypatch.setattr(
        measuring,
        "time_heads",
        lambda target, whole, trimmed, head, **_: HeadTimes(0.5, trimmed.card.rows / whole.card.rows),
    )
