"""The processor: the engine's own kernels, or edgedecode's operators."""

from collections.abc import Sequence

from edgedecode.engines.interface import Device

from ..kernels.trial import kernels_line
from .provider import Provider


class CpuProvider(Provider):
    """Part of every onnxruntime."""

    name = "cpu"
    engine_name = "CPUExecutionProvider"
    description = "ONNX Runtime on the processor"
    own_kernels = True
    manifest_noise = True

    def devices(self, *, runtime: str, version: str) -> Sequence[Device]:
        description = f"{self.description}, onnxruntime {version}; {kernels_line()}"
        return [Device(runtime, self.name, description, available=True)]
