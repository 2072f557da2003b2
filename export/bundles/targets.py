"""What bundles can be made for. A new target is one entry of `TARGETS`."""

from collections.abc import Mapping
from dataclasses import dataclass

_ONNX_RUNTIME = "com.microsoft.onnxruntime:onnxruntime-android:1.31.1"
_TOKENIZERS = ("ai.djl.huggingface:tokenizers:0.33.0", "ai.djl.android:tokenizer-native:0.33.0")


@dataclass(frozen=True, slots=True)
class Target:
    """provider: of ONNX Runtime; empty: the bundle holds GGUF files for llama.cpp. abi, min_sdk, runtime, libraries:
    as in `Bundle`. templates: folders of `templates/` that it gets."""

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
            provider="cpu",
            abi="arm64-v8a",
            min_sdk=26,
            runtime=(_ONNX_RUNTIME, *_TOKENIZERS),
            templates=("gradle", "adb"),
        ),
        Target(
            "android-qnn",
            provider="qnn",
            abi="arm64-v8a",
            min_sdk=31,  # the first with uses-native-library, which opens the NPU's driver to an app
            runtime=(_ONNX_RUNTIME, "com.qualcomm.qti:onnxruntime-android-qnn:2.7.0", *_TOKENIZERS),
            templates=("gradle", "adb"),
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
