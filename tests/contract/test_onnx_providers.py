"""Execution providers: a new one is a class and a row; what is missing or broken is one line with the remedy."""

import sys
import textwrap
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import numpy as np
import pytest

from edgedecode.engines import registry
from edgedecode.engines.interface import ModelRequest
from edgedecode.engines.registry import PROVIDERS
from edgedecode.errors import CapabilityError, RuntimeUnavailable
from edgedecode.memory.budget import Budget
from tests.contract.conftest import Opener
from tests.contract.toy_graph import ToyShape

pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")

from edgedecode.runtimes.onnx import OnnxRuntime
from edgedecode.runtimes.onnx.onnx_engine import import_engine
from edgedecode.runtimes.onnx.providers import plugin
from edgedecode.runtimes.onnx.providers.provider import RECORD, assigned_nodes, choose_provider, every_provider

NEW_PROVIDER = """
    from edgedecode.runtimes.onnx.providers.plugin import PluginProvider

    class NewProvider(PluginProvider):
        name = "new"
        engine_name = "CPUExecutionProvider"
        description = "a second way to the processor"
        package = "new_plugin"
        distribution = "new-plugin"
        versions = ("0.4.",)

        def engine_devices(self, engine):
            self.library()
            return [each for each in engine.get_ep_devices() if each.ep_name == self.engine_name]

        def device_names(self):
            return ("cpu", "npu")
"""
"""A whole provider, as its author would write it, over the only plugin that every machine has: onnxruntime's own."""


class Plugin:
    """A provider and its plugin package in a folder on the path."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        monkeypatch.syspath_prepend(folder)
        monkeypatch.setenv("PYTHONPATH", str(folder))  # for the child process
        monkeypatch.setenv("EDGEDECODE_CACHE", str(folder / "cache"))
        monkeypatch.setattr(plugin, "_TRIED", {})
        monkeypatch.setattr(plugin, "load_plugin", plugin.load_plugin.__wrapped__)
        (folder / "new_provider.py").write_text(textwrap.dedent(NEW_PROVIDER))
        found = EntryPoints(
            [
                EntryPoint("new", "new_provider:NewProvider", PROVIDERS),
                EntryPoint("cpu", "edgedecode.runtimes.onnx.providers.cpu:CpuProvider", PROVIDERS),
            ]
        )
        monkeypatch.setattr(registry, "every_entry_point", lambda: found)

    def install(self, *, version: str = "0.4.2", code: str = 'def get_library_path(): return "none.so"') -> None:
        package, facts = self._folder / "new_plugin", self._folder / f"new_plugin-{version}.dist-info"
        for folder in (package, facts):
            folder.mkdir()
        (package / "__init__.py").write_text(code)
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: new-plugin\nVersion: {version}\n")


@pytest.fixture
def new_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plugin:
    for name in ("new_plugin", "new_provider"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return Plugin(tmp_path, monkeypatch)


def request(opener: Opener, provider: str) -> ModelRequest:
    shape = ToyShape()
    entry = opener.entry(shape)
    return ModelRequest(entry, opener.root(shape), "target", entry.rows, budget=Budget(), threads=1, provider=provider)


def test_provider_added_by_one_file_and_one_row_decodes(
    new_plugin: Plugin, opener: Opener, engine_kernels: None
) -> None:
    new_plugin.install()
    answers = []
    for name in ("cpu", "new", "new:cpu"):
        model = OnnxRuntime().open(request(opener, name))
        state = model.new_state(32)
        model.forward([1, 2, 3], state)
        state.keep(range(3))
        answers.append(model.forward([4, 5, 6], state, parents=[-1, 0, 0], rows="all").logits.copy())
        model.close()
    np.testing.assert_array_equal(answers[0], answers[1])
    np.testing.assert_array_equal(answers[0], answers[2])


def test_devices_lists_the_devices_of_an_added_provider(new_plugin: Plugin) -> None:
    new_plugin.install()
    found = OnnxRuntime().devices()
    assert [(device.provider, device.available) for device in found] == [("cpu", True), ("new:cpu", True)]
    assert found[1].description.startswith("a second way to the processor: ")


def test_provider_that_is_not_installed_names_the_extra(new_plugin: Plugin, opener: Opener) -> None:
    assert [provider.name for provider in every_provider()] == ["cpu", "new"]
    with pytest.raises(RuntimeUnavailable) as caught:
        OnnxRuntime().open(request(opener, "new"))
    assert str(caught.value) == (
        "the provider new cannot be used: new-plugin is not installed: pip install 'edgedecode[new]'; "
        "or use --provider cpu"
    )
    device = OnnxRuntime().devices()[1]
    assert (device.available, device.reason) == (False, "new-plugin is not installed: pip install 'edgedecode[new]'")


def test_provider_of_another_version_names_the_versions_it_needs(new_plugin: Plugin) -> None:
    new_plugin.install(version="0.9.0")
    with pytest.raises(RuntimeUnavailable, match=r"new-plugin 0\.9\.0 is installed, edgedecode needs 0\.4\.\*"):
        choose_provider("new")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import os\ndef get_library_path(): os.abort()", "its native code died with SIGABRT"),
        ("import missing_part", "No module named 'missing_part'"),
    ],
    ids=["crashes", "incomplete"],
)
def test_provider_that_fails_in_the_child_process_is_refused(new_plugin: Plugin, code: str, words: str) -> None:
    new_plugin.install(code=code)
    with pytest.raises(
        RuntimeUnavailable, match=r"new-plugin does not run here: .*pip install 'edgedecode\[new\]'"
    ) as caught:
        choose_provider("new")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_provider_tries_its_plugin_once_per_machine(new_plugin: Plugin, monkeypatch: pytest.MonkeyPatch) -> None:
    new_plugin.install()
    choose_provider("new")
    monkeypatch.setattr(plugin, "_TRIED", {})
    monkeypatch.setattr(plugin, "ask_child", None)
    choose_provider("new")


def test_provider_refuses_an_unknown_device(new_plugin: Plugin) -> None:
    new_plugin.install()
    with pytest.raises(CapabilityError, match="has no device 'gpu'; it has: new:cpu, new:npu"):
        choose_provider("new:gpu")
    with pytest.raises(RuntimeUnavailable, match="finds no device 'npu' here; it finds cpu"):
        choose_provider("new:npu")
    with pytest.raises(CapabilityError, match="the provider cpu has no device '1'; it has: one device only"):
        choose_provider("cpu:1")


def test_provider_that_leaves_nodes_to_the_processor_is_refused(
    new_plugin: Plugin, opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine would run them silently; the provider's name in the engine is changed after it was configured."""
    new_plugin.install()
    kind = type(choose_provider("new"))
    configure = kind.configure

    def configured(self: plugin.PluginProvider, options: object, engine: object) -> object:
        arguments = configure(self, options, engine)
        monkeypatch.setattr(kind, "engine_name", "NewExecutionProvider")
        monkeypatch.setattr(kind, "host_operators", frozenset({"GatherBlockQuantized"}))
        return arguments

    monkeypatch.setattr(kind, "configure", configured)
    monkeypatch.setattr(plugin.Provider, "check", lambda self, session, *, subject: None)
    with pytest.raises(CapabilityError, match=r"nodes would fall back to the processor \(.*MatMul.*--provider cpu"):
        OnnxRuntime().open(request(opener, "new"))


def test_assigned_nodes_counts_the_operators_of_each_provider(opener: Opener) -> None:
    engine = import_engine()
    options = engine.SessionOptions()
    for key, value in RECORD.items():
        options.add_session_config_entry(key, value)
    path = opener.root(ToyShape()) / opener.entry(ToyShape()).graphs["base"].file
    nodes = assigned_nodes(engine.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]))
    assert list(nodes) == ["CPUExecutionProvider"]
    assert nodes["CPUExecutionProvider"]["GroupQueryAttention"] == ToyShape().layers
