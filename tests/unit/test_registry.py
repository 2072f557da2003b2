"""Entry points by name, imported only when asked for."""

from __future__ import annotations

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
    """Pretend that these entry points are all there is."""
    found = EntryPoints(
        EntryPoint(name, value, group) for group in (RUNTIMES, DRAFTERS) for name, value in values.items()
    )
    monkeypatch.setattr(registry, "every_entry_point", lambda: found)


def test_our_own_are_registered() -> None:
    assert "onnx" in installed(RUNTIMES)
    assert {"model", "suffix"} <= set(drafter_names())
    assert {"generate", "chat", "bench", "devices", "export"} <= set(installed(COMMANDS))


def test_drafters_are_made_by_name() -> None:
    assert isinstance(find_drafter("model"), ModelSource)
    assert isinstance(find_drafter("suffix"), SuffixSource)
    assert find_drafter("suffix").name == "suffix"


@pytest.mark.parametrize(("find", "noun"), [(find_drafter, "drafter"), (find_runtime, "runtime")])
def test_an_unknown_name_lists_what_is_there(find: object, noun: str, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, zeta="a:b", alpha="c:d")
    with pytest.raises(InputError, match=rf"there is no {noun} 'nope'; installed: alpha, zeta"):
        find("nope")  # type: ignore[operator]
    only(monkeypatch)
    with pytest.raises(InputError, match="installed: none"):
        find("nope")  # type: ignore[operator]


def test_an_engine_that_is_not_installed_says_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, llama="edgedecode_absent_engine.runtime:Runtime")
    assert list(installed(RUNTIMES)) == ["llama"]  # listing imports nothing
    with pytest.raises(RuntimeUnavailable, match=r"needs edgedecode_absent_engine.*pip install 'edgedecode\[llama\]'"):
        find_runtime("llama")


def test_a_runtime_is_what_its_entry_point_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, toy="collections:OrderedDict")
    assert find_runtime("toy") == {}
