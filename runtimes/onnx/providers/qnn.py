"""Qualcomm's NPUs (Hexagon) of Snapdragon devices; on x86-64 Linux the same library emulates them, slowly.

It opens graphs that `edgedecode compile` has compiled for one chip: their shapes are static, and their nodes are one
operator whose binary the driver reads.
"""

import platform
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

from edgedecode.engines.interface import Device
from edgedecode.errors import CapabilityError, EdgeDecodeError
from edgedecode.pack.chips import CHIPS
from edgedecode.pack.entries import CompiledEntry
from edgedecode.pack.manifest import Graph, ModelEntry

from ..onnx_engine import Untyped
from .plugin import PluginProvider
from .provider import GraphFiles

_EMULATING = ("x86_64", "AMD64")
"""Machines without such an NPU, where the library has its emulator."""
_NEWEST = max(CHIPS.values(), key=lambda chip: chip.generation)
"""It runs binaries of every earlier generation; an earlier one refuses those of a later."""
_NO_FALLBACK = ("session.disable_cpu_ep_fallback", "1")


class QnnProvider(PluginProvider):
    """device: the chip's number, as for `compile --soc`; empty: the first that the pack is compiled for."""

    name = "qnn"
    engine_name = "QNNExecutionProvider"
    description = "Qualcomm's NPU"
    package = "onnxruntime_qnn"
    distribution = "onnxruntime-qnn"
    versions = ("2.7.",)
    environment = "it needs a Snapdragon with its driver, or x86-64 Linux for the emulator"
    needs = ("static",)

    def __init__(self, device: str = "") -> None:
        super().__init__(device)
        self.chip = device  # the engine has one device whatever the chip
        self.device = ""

    @property
    def full_name(self) -> str:
        return f"{self.name}:{self.chip}" if self.chip else self.name

    def emulates(self, device: str) -> bool:
        return platform.machine() in _EMULATING

    def device_names(self) -> Sequence[str]:
        return [str(number) for number in CHIPS]

    def devices(self, *, runtime: str, version: str) -> Sequence[Device]:
        reason = self.problem()
        kind = "the emulator of Qualcomm's NPUs (slow: for tests)" if self.emulates(self.chip) else self.description
        description = f"{kind}, for packs compiled with `edgedecode compile`, onnxruntime {version}"
        if reason:
            return [Device(runtime, self.name, "", available=False, reason=reason)]
        return [Device(runtime, self.name, description, available=True)]

    def refusal(self, entry: ModelEntry, graph: Graph) -> str:
        if self._compiled(graph) is not None:
            return ""
        chips = sorted({number for each in self._own(graph) for number in each.socs})
        if self.emulates(self.chip) and any(len(each.socs) > 1 for each in self._own(graph)):
            return "the emulator loads no binary for several chips: compile the pack for one (`edgedecode compile`)"
        have = f"is compiled for {', '.join(map(str, chips))}" if chips else "is not compiled"
        wanted = self.chip or "N"
        return f"the pack {have}: run `edgedecode compile PACK --device qnn --soc {wanted}`, or use --provider cpu"

    def files(self, entry: ModelEntry, graph: Graph) -> GraphFiles:
        compiled = self._compiled(graph)
        if compiled is None:
            raise CapabilityError(
                f"the provider {self.full_name} cannot run {graph.file}: {self.refusal(entry, graph)}"
            )
        return GraphFiles(compiled.file, compiled.binary)

    def configure(self, options: Untyped, engine: Untyped) -> Mapping[str, object]:
        options.add_session_config_entry(*_NO_FALLBACK)
        return super().configure(options, engine)

    def session_options(self) -> Mapping[str, str]:
        backend = {"backend_path": import_module(self.package).get_qnn_htp_path()}
        if not self.emulates(self.chip):  # the driver knows the chip
            return backend | {"htp_performance_mode": "burst"}
        chip = CHIPS[int(self.chip)] if self.chip else _NEWEST
        return backend | {"soc_model": str(chip.number), "htp_arch": str(chip.generation)}

    def not_opened(self, path: Path, reason: str) -> EdgeDecodeError:
        return CapabilityError(
            f"the provider {self.full_name} does not open {path} ({reason}): compile the pack for this chip "
            f"(`edgedecode compile PACK --device qnn`), or use --provider cpu"
        )

    def _own(self, graph: Graph) -> list[CompiledEntry]:
        return [each for each in graph.compiled if each.provider == self.name]

    def _compiled(self, graph: Graph) -> CompiledEntry | None:
        """Return what was compiled for this chip; the first, if no chip was chosen."""
        for each in self._own(graph):
            fits = not self.chip or int(self.chip) in each.socs
            if fits and not (self.emulates(self.chip) and len(each.socs) > 1):
                return each
        return None
