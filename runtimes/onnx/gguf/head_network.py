"""Writes the graph of a drafting head, of EAGLE-3's form (2503.01840) or MTP, with the nodes of a GGUF model's graph.

One graph does both of a head's passes: rows of features come first, then rows of its own last output; either may be
none. Each row also has its next token.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from edgedecode.gguf.architectures import HEAD_IDS, HEAD_TAPS
from edgedecode.gguf.contents import Contents
from edgedecode.gguf.header import EMBEDDING, OUTPUT
from edgedecode.onnx_format.graph_file import GraphFile, ValueInfo
from edgedecode.onnx_format.node import Node

from ..graph_session import FEATURES_INPUT, HIDDEN, HIDDEN_INPUT
from ..kernels.library import KernelLibrary, Matrix
from ..kernels.products import FLOAT, NotServed, Stored
from .metadata import Metadata
from .network import Network, check_tensors
from .weights import GgufWeights

_MOST_IDS = 1 << 24


class HeadWeights(GgufWeights):
    """The tensors of a head, and the target's embedding. given: that table; None: not known yet, as in a plan."""

    def __init__(
        self, path: Path, contents: Contents, *, findings: Mapping[str, int], given: Stored | None, hidden: int
    ) -> None:
        super().__init__(path, contents, findings=findings)
        self._given = given or _unknown(hidden)
        self._hidden = hidden

    def table(self, node: Node, file: GraphFile, stored: Mapping[str, Stored], library: KernelLibrary) -> Stored | None:
        if self.has(EMBEDDING):
            return super().table(node, file, stored, library)
        if self._given.inner != self._hidden:
            raise NotServed(f"it is for embeddings of {self._hidden} values, the target's have {self._given.inner}")
        return self._given

    def check_all_used(self) -> None:
        if self.has(HEAD_IDS):
            self._tensor(HEAD_IDS)
        super().check_all_used()


class DrafterNetwork(Network):
    """What the graphs of all drafters share."""

    @classmethod
    def graph(cls, metadata: Metadata, weights: HeadWeights, *, context: int) -> GraphFile:
        """Return the graph. Raises NotServed for tensors that the file lacks, or that the graph does not use."""
        check_tensors(metadata, weights)
        network = cls(metadata, weights, context=context, adapters=False, squares=False, kv_scales=None)
        network.write()
        weights.check_all_used()
        return network.file

    @property
    def _rows(self) -> int:
        return self.weights.columns(OUTPUT)

    def _logits(self, x: str) -> str:
        """Write the logits of picked rows, and return these rows as a matrix."""
        x = self._node("Squeeze", [x, self._constant(np.array([0], np.int64))])
        self._rename(self._product(x, [(OUTPUT, None)]), "logits")
        return x

    def _embedded(self) -> str:
        """Write the lookup of each row's token in the target's table, and return its name."""
        return self._node("GatherBlockQuantized", [EMBEDDING, "input_ids", ""], domain="com.microsoft")


class HeadNetwork(DrafterNetwork):
    """EAGLE-3's form, or an MTP layer."""

    def write(self, *, hidden: bool = False) -> None:
        self.begin()
        x, y = self._eagle_layer() if self.metadata.is_eagle else self._layer(self._joined(), "", 0)
        final, x = self._sum_norm(x, y, "output_norm.weight")
        self._logits(final)
        fed = final if self.metadata.integer("norm_output") else x
        self._node("Squeeze", [fed, self._constant(np.array([0], np.int64))])
        self.file.nodes[-1].outputs = [HIDDEN]

    def _joined(self) -> str:
        """Return what an MTP layer reads: of each row's token, and of the features or its last output."""
        features = self._node("Concat", [FEATURES_INPUT, HIDDEN_INPUT], {"axis": 1})
        both = [self._norm(self._table(), "enc.token_norm.weight"), self._norm(features, "enc.output_norm.weight")]
        return self._product(self._node("Concat", both, {"axis": -1}), [("fc.weight", None)])

    def _eagle_layer(self) -> tuple[str, str]:
        """Return the picked rows' sums and last products."""
        metadata, part = self.metadata, "blk.0."
        g = self._node("Concat", [self._fused(), HIDDEN_INPUT], {"axis": 1})
        normed = self._norm(g, f"{part}attn_norm_2.weight")
        embedded = self._norm(self._table(), f"{part}attn_norm.weight")
        x = normed if metadata.integer("norm_before_residual") else g
        both = self._node("Concat", [embedded, normed], {"axis": -1})
        y = self._attention(self._projections(both, 0), 0)
        x, y = self._picked(x, y)
        y = self._product(y, [(f"{part}attn_output.weight", None)])
        read, x = self._sum_norm(x, y, f"{part}ffn_norm.weight")
        return x, self._gated(read, part)

    def _interface(self) -> None:
        super()._interface()
        hidden = self.metadata.hidden
        wide = self.metadata.taps * self.metadata.integer("target_hidden_size", hidden)
        self.file.inputs += [
            ValueInfo(FEATURES_INPUT, FLOAT, (1, "F", wide)),
            ValueInfo(HIDDEN_INPUT, FLOAT, (1, "H", hidden)),
        ]
        self.file.outputs.append(ValueInfo(HIDDEN, FLOAT, ("R", hidden)))

    def _fused(self) -> str:
        """Return what the features become: one row of hidden values each."""
        x, wide = FEATURES_INPUT, self.metadata.integer("target_hidden_size", self.metadata.hidden)
        if self.weights.has("enc.output_norm.weight"):
            x = self._norm(x, "enc.output_norm.weight")
        if self.weights.has("fc_norm.0.weight"):
            parts = [self._feature(index, wide) for index in range(HEAD_TAPS)]
            normed = [self._norm(part, f"fc_norm.{index}.weight") for index, part in enumerate(parts)]
            x = self._node("Concat", normed, {"axis": -1})
        return self._product(x, [("fc.weight", None)])

    def _feature(self, index: int, wide: int) -> str:
        places = [np.array([each], np.int64) for each in (index * wide, (index + 1) * wide, -1)]
        return self._node("Slice", [FEATURES_INPUT, *map(self._constant, places)])

    def _table(self) -> str:
        """Return the embeddings: of the target's table, unless the head has one."""
        if self.weights.has(EMBEDDING):
            return self._embedding()
        return self._embedded()


def _unknown(hidden: int) -> Stored:
    """Return a table in the place of one that is not there yet: large numbers, which take the most bytes of a graph."""
    blocks = -(-hidden // 32)
    packed = np.broadcast_to(np.uint8(0), (_MOST_IDS, blocks, 32))
    scales = np.broadcast_to(np.float32(0), (_MOST_IDS, blocks))
    return Stored("target", Matrix(packed, scales, 8, 32), hidden, (0, 0), given=1 << 40)
