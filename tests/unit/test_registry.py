"""The registry: entry points by name, imported on first use."""

from importlib.metadata import EntryPoint, EntryPoints

import pytest

from edgedecode.drafters.model_drafter import ModelSource
from edgedecode.drafters.suffix import SuffixSource
from edgedecode.engines import registry
from edgedecode.engines.registry import (
    COMMANDS,
    DRAFTERS,
    RUNTIMES,
    drafter_names,
    find_drafter,
    find_runtime,
    installed,
)
from edgedecode.errors import InputError, RuntimeUnavailable


def only(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    """Install only these entry points."""
    found = EntryPoints(
        EntryPoint(name, value, group) for group in (RUNTIMES, DRAFTERS) for name, value in values.items()
    )
    monkeypatch.setattr(registry, "every_entry_point", lambda: found)


def test_installed_lists_the_built_in_entry_points() -> None:
    assert "onnx" in installed(RUNTIMES)
    assert {"model", "suffix"} <= set(drafter_names())
    assert {"generate", "chat", "bench", "devices", "export"} <= set(installed(COMMANDS))


def test_find_drafter_makes_drafters_by_name() -> None:
    assert isinstance(find_drafter("model"), ModelSource)
    assert isinstance(find_drafter("suffix"), SuffixSource)
    assert find_drafter("suffix").name == "suffix"


@pytest.mark.parametrize(("find", "noun"), [(find_drafter, "drafter"), (find_runtime, "runtime")])
def test_find_of_an_unknown_name_lists_the_installed_ones(
    find: object, noun: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, zeta="a:b", alpha="c:d")
    with pytest.raises(InputError, match=rf"there is no {noun} 'nope'; installed: alpha, zeta"):
        find("nope")  # type: ignore[operator]
    only(monkeypatch)
    with pytest.raises(InputError, match="installed: none"):
        find("nope")  # type: ignore[operator]


def test_find_runtime_names_the_pip_command_of_a_missing_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, llama="edgedecode_absent_engine.runtime:Runtime")
    assert list(installed(RUNTIMES)) == ["llama"]  # listing imports nothing
    with pytest.raises(RuntimeUnavailable, match=r"needs edgedecode_absent_engine.*pip install 'edgedecode\[llama\]'"):
        find_runtime("llama")


def test_find_runtime_returns_the_object_its_entry_point_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, toy="collections:OrderedDict")
    assert find_runtime("toy") == {}
