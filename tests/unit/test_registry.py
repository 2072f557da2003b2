"""The registry: entry points by name, imported on first use."""

from importlib.metadata import EntryPoint, EntryPoints

import pytest

from edgedecode.engines import registry
from edgedecode.engines.registry import DRAFTERS, RUNTIMES, find_runtime, installed
from edgedecode.errors import RuntimeUnavailable


def only(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    """Install only these entry points."""
    found = EntryPoints(
        EntryPoint(name, value, group) for group in (RUNTIMES, DRAFTERS) for name, value in values.items()
    )
    monkeypatch.setattr(registry, "every_entry_point", lambda: found)


def test_find_runtime_names_the_pip_command_of_a_missing_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, llama="edgedecode_absent_engine.runtime:Runtime")
    assert list(installed(RUNTIMES)) == ["llama"]  # listing imports nothing
    with pytest.raises(RuntimeUnavailable, match=r"needs edgedecode_absent_engine.*pip install 'edgedecode\[llama\]'"):
        find_runtime("llama")
