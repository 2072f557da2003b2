"""Writes the graph of a drafter of whole blocks: DFlash (2602.06036), and DSpark's layers.

A pass has rows of features first, which are further keys and values of every layer and nothing else, then the rows of a
block: its last known token, and masks. Only those have queries and logits, and they see each other. The block's rows
are the pass's picked rows, and are dropped after it.
"""

from edgedecode.gguf.architectures import MARKOV
from edgedecode.onnx_format.graph_file import ValueInfo

from ..graph_session import FEATURES_INPUT
from ..kernels.products import FLOAT
from ..kernels.rewriting import BLOCK
from .head_network import DrafterNetwork
from .network import Network


class BlockNetwork(DrafterNetwork):
    """The layers of a block drafter."""

    def write(self, *, hidden: bool = False) -> None:
        self.begin()
        self.weights.leave_out(MARKOV)  # `BlockFacts` reads them
        self._norm(self._product(FEATURES_INPUT, [("fc.weight", None)]), "context_norm.weight")
        self._rename(self.file.nodes[-1].outputs[0], "context")
        (x,), y = self._picked(self._embedded()), ""
        for layer in range(len(self.layers)):
            x, y = self._layer(x, y, layer)
        x, _ = self._sum_norm(x, y, "output_norm.weight")
        self._logits(x)

    def _projections(self, x: str, layer: int) -> list[str]:
        part, facts = f"blk.{layer}.attn_", self.layers[layer]
        every = self._node("Concat", ["context", x], {"axis": 1})
        query, key, value = (
            self._product(read, [(f"{part}{each}.weight", None)])
            for read, each in zip((x, every, every), "qkv", strict=True)
        )
        query = self._head_norm(query, f"{part}q_norm.weight", count=facts.heads, size=facts.head_size)
        return [query, self._head_norm(key, f"{part}k_norm.weight", count=facts.kv_heads, size=facts.head_size), value]

    def _attention(self, projections: list[str], layer: int) -> str:
        y = Network._attention(self, projections, layer)
        self.file.nodes[-1].attributes[BLOCK] = 1
        return y

    def _first_picked(self) -> int:
        return 0

    def _interface(self) -> None:
        Network._interface(self)
        wide = self.metadata.taps * self.metadata.integer("target_hidden_size", self.metadata.hidden)
        self.file.inputs.append(ValueInfo(FEATURES_INPUT, FLOAT, (1, "F", wide)))
