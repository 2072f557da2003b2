"""Writes the graph of Gemma 4's assistant: layers whose queries read a target's keys and values.

Source: transformers' modeling_gemma4_assistant.py. A step reads the embedding of the last token, and beside it what
follows the target's final norm at the position before, or its own last output. All steps of a draft have one position.
"""

import math

from edgedecode.onnx_format.graph_file import ValueInfo

from ..graph_session import FEATURES_INPUT, HIDDEN, HIDDEN_INPUT, TARGET_CACHES
from ..kernels.products import FLOAT
from .head_network import DrafterNetwork


class AssistantNetwork(DrafterNetwork):
    """The assistant's layers, which have no keys and values."""

    def write(self, *, hidden: bool = False) -> None:
        self.begin()
        wide = self.metadata.integer("target_hidden_size")
        token = self._scaled(self._embedded(), math.sqrt(wide))
        state = self._node("Concat", [FEATURES_INPUT, HIDDEN_INPUT], {"axis": 1})
        both = self._node("Concat", [token, state], {"axis": -1})
        x, y = self._product(both, [("nextn.pre_projection.weight", None)]), ""
        for layer in range(len(self.layers)):
            x, y = self._layer(x, y, layer)
        x, _ = self._sum_norm(x, y, "output_norm.weight")
        self._rename(self._product(self._logits(x), [("nextn.post_projection.weight", None)]), HIDDEN)

    def _interface(self) -> None:
        super()._interface()
        wide = self.metadata.integer("target_hidden_size")
        kinds = {layer.window: layer for layer in self.layers}
        self.file.inputs += [
            *(
                ValueInfo(name, FLOAT, (1, layer.kv_heads, "P", layer.head_size))
                for window, layer in sorted(kinds.items())
                for name in TARGET_CACHES[window]
            ),
            ValueInfo(FEATURES_INPUT, FLOAT, (1, "F", wide)),
            ValueInfo(HIDDEN_INPUT, FLOAT, (1, "H", wide)),
        ]
        self.file.outputs.append(ValueInfo(HIDDEN, FLOAT, ("R", wide)))

    def _cache_names(self, layer: int) -> list[str]:
        return [*TARGET_CACHES[self.layers[layer].window]]

    def _first_picked(self) -> int:
        return len(self.layers)
