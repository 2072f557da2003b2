"""llama.cpp's devices: the processor, and those of the build and machine besides (Vulkan, OpenCL, Metal, Hexagon)."""

import ctypes
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from edgedecode.errors import CapabilityError

from .llama_log import Untyped

PROCESSOR = "cpu"
ALL_LAYERS = 1 << 16
"""More layers than any model has."""
REBUILD = (
    "for another device, build llama-cpp-python with its backend, such as "
    'CMAKE_ARGS="-DGGML_VULKAN=ON" pip install --force-reinstall --no-binary :all: --no-deps llama-cpp-python'
)


class DeviceKind(IntEnum):
    """ggml's kinds of devices."""

    CPU = 0
    GPU = 1
    INTEGRATED = 2
    ACCELERATOR = 3


@dataclass(frozen=True, slots=True)
class NativeDevice:
    """A device as ggml names it: "Vulkan0"."""

    index: int
    name: str
    description: str
    kind: int

    @property
    def provider(self) -> str:
        """The name for `--provider`."""
        return PROCESSOR if self.kind == DeviceKind.CPU else self.name.lower()


@dataclass(frozen=True, slots=True)
class Offload:
    """The device that runs a model's layers, and how many, from the last one. Empty device: the processor runs all."""

    device: str = ""
    layers: int = 0


def parse_offload(provider: str) -> Offload:
    """Return what a provider's name means: "cpu", "vulkan0", or "vulkan0:20" for 20 layers. Raises CapabilityError."""
    if provider == PROCESSOR:
        return Offload()
    device, colon, layers = provider.partition(":")
    if device in ("", PROCESSOR) or (colon and not re.fullmatch("[1-9][0-9]{0,4}", layers)):
        raise CapabilityError(
            f"llama.cpp has no provider {provider!r}; write cpu, DEVICE or DEVICE:LAYERS, such as vulkan0:20"
        )
    return Offload(device, int(layers) if layers else ALL_LAYERS)


def native_devices(library: Untyped) -> Sequence[NativeDevice]:
    """Return the devices that ggml's `library` has registered. Loads the drivers of those that it was built for."""
    _declare(library)
    found = []
    for index in range(library.ggml_backend_dev_count()):
        device = library.ggml_backend_dev_get(index)
        name, text = library.ggml_backend_dev_name(device), library.ggml_backend_dev_description(device)
        kind = int(library.ggml_backend_dev_type(device))
        found.append(NativeDevice(index, name.decode("utf-8", "replace"), text.decode("utf-8", "replace"), kind))
    return found


def device_address(library: Untyped, name: str) -> int:
    """Return the address of the device of this name. Raises CapabilityError with those that there are."""
    devices = native_devices(library)
    for each in devices:
        if each.provider == name and each.kind != DeviceKind.CPU:
            return int(library.ggml_backend_dev_get(each.index))
    known = ", ".join(dict.fromkeys(each.provider for each in devices))
    raise CapabilityError(f"llama.cpp has no device {name!r} here; it has: {known} ({REBUILD})")


def _declare(library: Untyped) -> None:
    address = ctypes.c_void_p
    for name, result, arguments in (
        ("ggml_backend_dev_count", ctypes.c_size_t, []),
        ("ggml_backend_dev_get", address, [ctypes.c_size_t]),
        ("ggml_backend_dev_name", ctypes.c_char_p, [address]),
        ("ggml_backend_dev_description", ctypes.c_char_p, [address]),
        ("ggml_backend_dev_type", ctypes.c_int, [address]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
