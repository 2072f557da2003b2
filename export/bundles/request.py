"""What `edgedecode package` was asked for, checked before anything is written: a target, a device, and how.

Devices are known by their memory, what an app may hold of it, and how fast memory is. Shares and bandwidths are
assumptions for planning, from the makers' published figures; a profile that was measured on the device (`edgedecode
bench --json`, `package --profile`) replaces the speeds. A new target is one entry of `TARGETS`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edgedecode.errors import InputError
from edgedecode.memory.sizes import format_nbytes
from edgedecode.pack.chips import CHIPS, Chip

GB = 10**9
_PACKAGE = re.compile(r"[a-zA-Z][a-zA-Z0-9_]*(\.[a-zA-Z][a-zA-Z0-9_]*)+")
_RESERVED = frozenset(
    re.findall(
        r"\w+",
        """abstract as boolean break class const continue default do else enum extends false final for fun if import in
        int interface is long native new null object package private protected public return short static super switch
        this throw true try typealias typeof val var void when while""",
    )
)


@dataclass(frozen=True, slots=True)
class Device:
    """A device. soc: its chip as `Build.SOC_MODEL` names it; empty: any."""

    memory_nbytes: int
    soc: str = ""
    threads: int = 4
    """Fast cores, which decoding runs on."""
    bandwidth: float = 12e9
    """Bytes a second that the processor reads from memory."""

    @property
    def budget_nbytes(self) -> int:
        """What an app may hold in the foreground."""
        return int(self.memory_nbytes * usual_share(self.memory_nbytes))


def usual_share(memory_nbytes: int) -> float:
    """Return the share of a phone's memory that an app may hold: the system needs about 3 GB whatever its size."""
    return min(0.5, max(0.2, (memory_nbytes - 3 * GB) / memory_nbytes / 1.5))


_BANDWIDTHS: Mapping[str, float] = {
    "SM8350": 25e9,
    "SM8550": 33e9,
    "SM8650": 38e9,
    "SM8750": 42e9,
    "SM8850": 42e9,
    "X1E80100": 65e9,
    "X2E80100": 75e9,
    "QCS6490": 12e9,
    "QCS8550": 33e9,
}
"""About half of what the memory could deliver, by chip."""


def device_of(memory_nbytes: int | None, soc: str) -> Device:
    """Return a device of this memory (None: 8 GB) and chip, as `Build.SOC_MODEL` names it. Raises InputError."""
    nbytes = memory_nbytes or 8 * GB
    if not GB <= nbytes <= 1024 * GB:
        raise InputError(f"--device-memory: {format_nbytes(nbytes)} is out of range: 1GB to 1024GB")
    return Device(nbytes, soc, bandwidth=_BANDWIDTHS.get(soc, 12e9))


_ONNX_RUNTIME = "com.microsoft.onnxruntime:onnxruntime-android:1.31.1"
NATIVE = "native"
"""The folder of a bundle that the native library opens, and the provider of its targets."""


@dataclass(frozen=True, slots=True)
class Target:
    """provider: of ONNX Runtime; `NATIVE`: the native library decodes; empty: the bundle holds GGUF files for
    llama.cpp. abi, min_sdk, runtime, libraries: as in `Bundle`. templates: folders of `templates/` that it gets."""

    name: str
    provider: str
    abi: str
    min_sdk: int
    runtime: tuple[str, ...]
    templates: tuple[str, ...]
    libraries: tuple[str, ...] = ()


TARGETS: Mapping[str, Target] = {
    target.name: target
    for target in (
        Target(
            "android-cpu",
            provider=NATIVE,
            abi="arm64-v8a x86_64",
            min_sdk=26,
            runtime=(_ONNX_RUNTIME,),
            templates=("gradle", "adb"),
        ),
        Target(
            "android-qnn",
            provider="qnn",
            abi="arm64-v8a",
            min_sdk=31,  # the first with uses-native-library, which opens the NPU's driver to an app
            runtime=(_ONNX_RUNTIME, "com.qualcomm.qti:onnxruntime-android-qnn:2.7.0"),
            templates=("adb",),
            libraries=("libcdsprpc.so",),
        ),
        Target(
            "android-llamacpp",
            provider="",
            abi="arm64-v8a",
            min_sdk=28,
            runtime=("llama.cpp",),
            templates=("adb", "llamacpp"),
        ),
        Target(
            "snapdragon-windows",
            provider="qnn",
            abi="arm64",
            min_sdk=0,
            runtime=("onnxruntime==1.31.*", "onnxruntime-qnn==2.7.*", "numpy>=2.0", "tokenizers>=0.22"),
            templates=("windows",),
        ),
    )
}


@dataclass(frozen=True, slots=True)
class PackageRequest:
    """pack: its folder. socs: the chips to take compiled graphs of; empty: all. context: None: chosen by the plan."""

    pack: Path
    target: Target
    out: Path
    device: Device
    package: str
    """The app's name for Android, such as com.example.chat."""
    socs: tuple[Chip, ...] = ()
    context: int | None = None
    prompts: Path | None = None
    """Self-test prompts as jsonl; None: bundled ones."""
    profile: Path | None = None
    tokens: int = 32
    """Most tokens of a self-test answer."""


def check_package_name(name: str) -> str:
    """Return the name. Raises InputError for one that Android refuses."""
    if len(name) > 200 or not _PACKAGE.fullmatch(name):
        raise InputError(
            f"--app-id {name!r}: Android takes names of two or more parts, separated by dots, of letters, digits and "
            f"underscores, each beginning with a letter, such as com.example.chat"
        )
    if wrong := [part for part in name.split(".") if part in _RESERVED]:
        raise InputError(f"--app-id {name!r}: {wrong[0]!r} is a keyword of Java or Kotlin: use another word")
    return name


def read_chip(text: str) -> Chip:
    """Return the chip of this number, or of this name in `Build.SOC_MODEL`. Raises InputError."""
    for chip in CHIPS.values():
        if text == str(chip.number) or text.upper() in chip.models:
            return chip
    known = "; ".join(f"{chip.number}: {', '.join(chip.models)} ({chip.name})" for chip in CHIPS.values())
    raise InputError(f"--soc: {text!r} is not a known chip, which are {known}")
