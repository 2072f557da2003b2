"""llama.cpp's devices: those of the build are listed, and layers go to the one that was asked for."""

import ctypes
from pathlib import Path
from typing import Any

import pytest

import edgedecode
from edgedecode import LoadOptions
from edgedecode.errors import CapabilityError, ManifestError
from edgedecode.runtimes.llama.llama_devices import ALL_LAYERS, DeviceKind, Offload, device_address, parse_offload

pytest.importorskip("llama_cpp", reason="the llama extra is not installed")

from edgedecode.runtimes.llama import llama_runtime
from edgedecode.runtimes.llama.files.engine_probe import Finding
from edgedecode.runtimes.llama.llama_engine import Engine, Loading
from edgedecode.runtimes.llama.llama_runtime import LlamaRuntime

GPU = 4096
"""A made-up address of a device."""


class Library:
    """ggml's functions on a machine with a GPU."""

    devices = ((b"CPU", b"a processor", DeviceKind.CPU), (b"Vulkan0", b"a graphics card", DeviceKind.GPU))

    def __init__(self) -> None:
        # functions of this object alone, whose result types can be set
        self.ggml_backend_dev_count = lambda: len(self.devices)
        self.ggml_backend_dev_get = lambda index: GPU * index
        for place, name in enumerate(("name", "description", "type")):
            setattr(self, f"ggml_backend_dev_{name}", lambda device, place=place: self.devices[device // GPU][place])


@pytest.mark.parametrize(
    ("provider", "expected"),
    [("cpu", Offload()), ("vulkan0", Offload("vulkan0", ALL_LAYERS)), ("metal:20", Offload("metal", 20))],
)
def test_parse_offload(provider: str, expected: Offload) -> None:
    assert parse_offload(provider) == expected


@pytest.mark.parametrize("provider", ["", "cpu:4", ":3", "vulkan0:", "vulkan0:0", "vulkan0:-1", "vulkan0:all"])
def test_parse_offload_refuses_what_is_no_provider(provider: str) -> None:
    with pytest.raises(CapabilityError, match="write cpu, DEVICE or DEVICE:LAYERS, such as vulkan0:20"):
        parse_offload(provider)


def test_device_address_of_a_device_and_of_none() -> None:
    assert device_address(Library(), "vulkan0") == GPU
    with pytest.raises(CapabilityError, match=r"no device 'cuda0' here; it has: cpu, vulkan0 \(for another"):
        device_address(Library(), "cuda0")


def test_devices_of_this_build_begin_with_the_processor() -> None:
    first, *others = LlamaRuntime().devices()
    assert (first.provider, first.available) == ("cpu", True)
    assert all(device.provider != "cpu" for device in others)
    assert any(device.kind == DeviceKind.CPU for device in Engine().devices())


def test_devices_lists_a_graphics_card(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Finding(True, devices={"vulkan0": "a graphics card"})
    monkeypatch.setattr(llama_runtime, "probe_engine", lambda version: found)
    assert [(device.provider, device.description) for device in LlamaRuntime().devices()[1:]] == [
        ("vulkan0", "a graphics card")
    ]


@pytest.mark.parametrize(
    ("offload", "layers", "first"), [(Offload(), 0, None), (Offload("vulkan0", 20), 20, GPU)], ids=["none", "20 layers"]
)
def test_load_gives_layers_to_the_device(
    offload: Offload, layers: int, first: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, seen = Engine(), {}

    def load(path: bytes, options: Any) -> None:
        seen["layers"] = options.n_gpu_layers
        seen["first"] = ctypes.cast(options.devices, ctypes.POINTER(ctypes.c_void_p))[0]

    monkeypatch.setattr(engine, "_ggml", Library)
    monkeypatch.setattr(engine.api, "llama_model_load_from_file", load)
    with pytest.raises(ManifestError, match="cannot be loaded"):
        engine.load(Path("model.gguf"), Loading(offload=offload))
    assert seen == {"layers": layers, "first": first}


def test_provider_of_another_device_is_refused_with_the_remedy() -> None:
    with pytest.raises(CapabilityError, match="no device 'vulkan7' here; it has: cpu") as caught:
        edgedecode.load(runtime="llama", options=LoadOptions(provider="vulkan7"))
    assert "-DGGML_VULKAN=ON" in str(caught.value)
