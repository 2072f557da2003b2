"""Intel's processors, graphics and NPUs through OpenVINO.

It has no GroupQueryAttention, which leaves attention of static graphs, in plain operators. Two operators of those it
does not have either: onnxruntime's own of the same meaning replace them when a graph is opened.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from edgedecode.errors import CapabilityError
from edgedecode.onnx_format.graph_file import GraphFile, ValueInfo
from edgedecode.onnx_format.node import Node
from edgedecode.pack.entries import STATIC

from ..onnx_engine import SILENT, Untyped
from .plugin import PluginProvider

_CONTRIBUTED = "com.microsoft"
_SIZE = 64
_FLOAT32 = {"CPU": {"INFERENCE_PRECISION_HINT": "f32"}}
"""Processors with bfloat16 products would use them by default: logits of the bundled target moved by up to 0.5."""


class OpenVinoProvider(PluginProvider):
    """device: cpu, gpu or npu; empty: the first that OpenVINO names."""

    name = "openvino"
    engine_name = "OpenVINOExecutionProvider"
    description = "Intel's devices through OpenVINO"
    package = "onnxruntime_ep_openvino"
    distribution = "onnxruntime-ep-openvino"
    versions = ("1.8.",)
    environment = "it runs on Intel's processors, graphics and NPUs only"
    needs = (STATIC,)
    in_place = False

    def device_names(self) -> Sequence[str]:
        return "cpu", "gpu", "npu"

    def session_options(self) -> Mapping[str, str]:
        return {"load_config": json.dumps(_FLOAT32)}

    def try_out(self, engine: Untyped) -> int | None:
        file = GraphFile(
            [Node("MatMul", inputs=["x", "x"], outputs=["y"])], opset={"": 21}, model_rest=[(1, b"\x08\x0a")]
        )
        file.inputs, file.outputs = [ValueInfo("x", 1, [_SIZE, _SIZE])], [ValueInfo("y", 1, [_SIZE, _SIZE])]
        options = engine.SessionOptions()
        options.log_severity_level = SILENT
        session = engine.InferenceSession(file.serialize(), options, **self.configure(options, engine))
        self.check(session, subject="a product")
        if not np.array_equal(session.run(None, {"x": np.eye(_SIZE, dtype=np.float32)})[0], np.eye(_SIZE)):
            raise CapabilityError("the device computes wrong results")
        return 0

    def rewritten(self, path: Path) -> bytes | None:
        file = GraphFile.parse(path.read_bytes())
        size = next((value.dims[-1] for value in file.inputs if value.name.startswith("past_") and value.dims), None)
        for node in file.nodes:
            if node.op_type == "RMSNormalization":
                node.op_type = "SimplifiedLayerNormalization"
            elif node.op_type == "RotaryEmbedding" and not node.domain:
                rows, cosines, sines, positions = node.inputs
                node.domain, node.inputs = _CONTRIBUTED, [rows, positions, cosines, sines]
                if node.attributes.get("rotary_embedding_dim") == size:  # whole heads rotate, which needs no count
                    del node.attributes["rotary_embedding_dim"]
        file.opset.setdefault(_CONTRIBUTED, 1)
        return file.serialize()
