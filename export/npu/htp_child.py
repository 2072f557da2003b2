"""Compiles one static graph for Hexagon NPUs and checks it on the emulator: the part that runs in a child process.

The vendor's library may crash or hang, and holds its memory until the process ends.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgedecode.engines.child import tell_parent
from edgedecode.engines.interface import ModelRequest
from edgedecode.engines.kernel_choice import engine_kernels
from edgedecode.engines.registry import find_runtime
from edgedecode.memory.budget import Budget
from edgedecode.pack.manifest import ModelEntry
from edgedecode.typed_json import typed

from .parity_passes import compared_passes

_NAME = "QNNExecutionProvider"


def compile_graph(graph: str, out: str, options: str) -> None:
    """Compile `graph` into `out` and a binary next to it. options: the provider's, as JSON."""
    import onnxruntime
    import onnxruntime_qnn

    onnxruntime.set_default_logger_severity(4)
    onnxruntime.register_execution_provider_library(_NAME, onnxruntime_qnn.get_library_path())
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    settings.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == _NAME]
    chosen = {"backend_path": onnxruntime_qnn.get_qnn_htp_path(), **json.loads(options)}
    settings.add_provider_for_devices(devices[:1], chosen)
    compiler = onnxruntime.ModelCompiler(
        settings,
        graph,
        embed_compiled_data_into_model=False,
        flags=int(onnxruntime.OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED),
    )
    compiler.compile_to_file(out)
    tell_parent({"nbytes": sum(path.stat().st_size for path in Path(out).parent.glob(f"{Path(out).stem}*"))})


@dataclass(frozen=True, slots=True)
class CheckOrder:
    """What to check: the entry's static graphs, compiled for the chip, in a folder laid out as the pack.

    The entry's base graph is the exact one: the NPU does not round activations to 8 bits either.
    """

    entry: ModelEntry
    root: str
    chip: int
    width: int
    tokens: tuple[int, ...]
    passes: int


def check_graph() -> None:
    """Run a text's passes on the emulator and on the processor's graph, and tell how they agree.

    The order is read from standard input. The runtime refuses a graph that would run partly on the processor.
    """
    order = typed(json.load(sys.stdin), CheckOrder, "order")
    positions = agreed = 0
    errors: list[float] = []
    with engine_kernels():
        base, npu = (
            find_runtime("onnx").open(
                ModelRequest(order.entry, Path(order.root), "check", order.entry.rows, Budget(), provider=provider)
            )
            for provider in ("cpu", f"qnn:{order.chip}")
        )
    for wanted, found in compared_passes(base, npu, order.tokens, width=order.width, count=order.passes):
        positions += len(found)
        agreed += int((wanted.argmax(axis=1) == found.argmax(axis=1)).sum())
        errors.append(float(np.square(wanted - found).mean() / wanted.var()))
    tell_parent({"positions": positions, "agreed": agreed, "error": float(np.sqrt(np.mean(errors)))})
