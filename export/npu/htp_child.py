"""Compiles one static graph for Hexagon NPUs and checks it on the emulator: the part that runs in a child process.

The vendor's library may crash or hang, and holds its memory until the process ends.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from edgedecode.engines.child import tell_parent

from .parity_passes import BasePasses, StaticPasses, text_passes

_NAME = "QNNExecutionProvider"


def compile_graph(graph: str, out: str, options: str) -> None:
    """Compile `graph` into `out` and a binary next to it. options: the provider's, as JSON."""
    import onnxruntime

    compiler = onnxruntime.ModelCompiler(
        _options(json.loads(options)),
        graph,
        embed_compiled_data_into_model=False,
        flags=int(onnxruntime.OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED),
    )
    compiler.compile_to_file(out)
    tell_parent({"nbytes": sum(path.stat().st_size for path in Path(out).parent.glob(f"{Path(out).stem}*"))})


def check_graph(base: str, compiled: str, options: str, text: str, passes: str) -> None:
    """Run a text's passes on the emulator and on the processor's graph `base`, and tell how they agree.

    text: its token ids, and the model's window (0: none), as JSON.
    """
    import onnxruntime

    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 4
    tokens, window = json.loads(text)
    base_session = onnxruntime.InferenceSession(base, quiet, providers=["CPUExecutionProvider"])
    processor = BasePasses(base_session, window=window)
    session = onnxruntime.InferenceSession(compiled, _options(json.loads(options)))
    session.disable_fallback()
    others = [part for part in session.get_provider_graph_assignment_info() if part.ep_name != _NAME]
    npu = StaticPasses(session, window=window)
    width = npu.shapes["input_ids"][1]
    positions = agreed = 0
    errors: list[float] = []
    for one in text_passes(tokens, width=width, count=int(passes)):
        wanted, found = processor.run(one), npu.run(one)
        wanted = wanted[-len(found) :]
        positions += len(found)
        agreed += int((wanted.argmax(axis=1) == found.argmax(axis=1)).sum())
        errors.append(float(np.square(wanted - found).mean() / wanted.var()))
    tell_parent(
        {"positions": positions, "agreed": agreed, "error": float(np.sqrt(np.mean(errors))), "elsewhere": len(others)}
    )


def _options(chosen: dict[str, str]) -> Any:  # noqa: ANN401  (the engine is untyped)
    """Return session options for the NPU alone."""
    import onnxruntime
    import onnxruntime_qnn

    onnxruntime.set_default_logger_severity(4)
    onnxruntime.register_execution_provider_library(_NAME, onnxruntime_qnn.get_library_path())
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == _NAME]
    options.add_provider_for_devices(devices[:1], {"backend_path": onnxruntime_qnn.get_qnn_htp_path(), **chosen})
    return options
