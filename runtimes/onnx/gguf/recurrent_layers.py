"""Layers with something else than attention, of our own operators: each has a state, as `recurrence.py` describes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edgedecode.onnx_format.graph_file import ValueInfo

from ..kernels.products import FLOAT
from ..kernels.rewriting import PARENTS, RECURRENT
from ..recurrence import HEADER, KEPT_ROWS, SLOTS
from .graph_writer import GraphWriter
from .weights import Piece

_DELTA_MATRICES = ("attn_qkv", "ssm_alpha", "attn_gate", "ssm_beta")

_TILE, _MOST_TAPS = 16, 64
"""Limits of `ShortConvolution`: channels are a multiple of the first, and a kernel has at most the second of rows."""


@dataclass(slots=True)
class RecurrentLayers(GraphWriter):
    """Methods append a layer's nodes, and return the name of what its last matrix multiplies."""

    def _convolution(self, x: str, layer: int) -> str:
        """Return LFM2's short convolution between two products of rows' values. See `ShortConvolution`."""
        part = f"blk.{layer}.shortconv"
        x, weight = self._product(x, [(f"{part}.in_proj.weight", None)]), f"{part}.conv.weight"
        taps = np.ascontiguousarray(self.weights.floats(weight).T)
        if taps.shape[1] % _TILE or taps.shape[0] > _MOST_TAPS:
            self.weights.refuse(f"it convolves {taps.shape[0]} rows of {taps.shape[1]} channels")
        bias = f"{part}.conv.bias"
        added = self._initializer(bias, self.weights.vector(bias)) if self.weights.has(bias) else ""
        inputs, (count, channels) = [x, self._initializer(weight, taps), added], taps.shape
        return self._recurrent("ShortConvolution", weight, inputs, {}, channels=channels, values=(count - 1) * channels)

    def _gated_recurrence(self, x: str, layer: int) -> str:
        """Return the normed and gated results of the gated delta rule, or of Mamba-2. See `GatedDelta`."""
        part, sizes = f"blk.{layer}.", self.metadata.recurrence
        if sizes.delta:
            matrices: list[Piece] = [(f"{part}{name}.weight", None) for name in _DELTA_MATRICES]
            vectors = ["ssm_norm.weight"]
        else:  # z, channels and steps are one matrix
            ends = sizes.values, sizes.values + sizes.channels
            places = (ends[0], sizes.channels), (ends[1], sizes.heads), (0, sizes.values)
            matrices = [(f"{part}ssm_in.weight", place) for place in places]
            vectors = ["ssm_conv1d.bias", "ssm_d"]
        channels, steps, z, *rates = (self._product(x, [piece]) for piece in matrices)
        convolution = self._initializer(f"{part}ssm_conv1d", self.weights.floats(f"{part}ssm_conv1d.weight").T)
        decay, bias, *more = (
            self._initializer(name, self.weights.vector(name))
            for name in (f"{part}{each}" for each in ("ssm_a", "ssm_dt.bias", *vectors))
        )
        last = [*rates, *more, "", ""] if sizes.delta else ["", "", *more]
        epsilon = self.metadata.number("attention.layer_norm_rms_epsilon", 1e-5)
        y = self._recurrent(
            "GatedDelta",
            f"{part}recurrence",
            [channels, steps, z, convolution, decay, bias, *last],
            {**sizes.attributes, "epsilon": epsilon},
            channels=sizes.channels,
            values=sizes.state_values,
            width=sizes.row_values,
        )
        return y if sizes.delta else self._norm(y, f"{part}ssm_norm.weight")

    def _recurrent(
        self,
        kind: str,
        name: str,
        inputs: Sequence[str],
        attributes: Mapping[str, int | float | bytes],
        *,
        channels: int,
        values: int,
        width: int = 0,
    ) -> str:
        """Add one of our recurrent operators, with a memory of this name.

        channels: values of a row that are convolved. values: of the state. width: values that a slot has; 0: as many.
        """
        sizes: list[tuple[str, tuple[int, ...]]] = [("state", (HEADER + values,)), ("rows", (SLOTS, width or channels))]
        self.file.inputs += [ValueInfo(f"past_{part}.{name}", FLOAT, dims) for part, dims in sizes]
        self.file.outputs += [ValueInfo(f"present_{part}.{name}", FLOAT, dims) for part, dims in sizes]
        past, present = ([f"{time}_{part}.{name}" for part, _ in sizes] for time in ("past", "present"))
        y = self._node(
            kind,
            [*inputs, *past, KEPT_ROWS, "total_length", PARENTS],
            {**attributes, "channels": channels},
            domain=RECURRENT,
        )
        self.file.nodes[-1].outputs += present
        return y
