"""The two kinds of ONNX graphs in a bundle, opened with onnxruntime alone: any number of rows, or fixed widths.

It goes into bundles as `selftest/onnx_models.py`. The Kotlin classes of the same names do the same.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]
HIDDEN = -1e4
"""Mask value of a position that a row does not see. It fits 16-bit floats."""
ROWS = 32
"""Most rows of a pass of a growing model, but for those that need logits."""
SCORED = 16
"""Widest pass of fixed width whose rows all get logits; wider ones give those of one row."""
TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int8)": np.int8}


class GrowingModel:
    """A graph for passes of any number of rows, which writes keys and values into buffers of `context` positions.

    Inputs: input_ids and position_ids, int64 [1, rows]; seqlens_k, int32 [1], the position of the last row;
    total_length, int32 [1]; attention_bias, float32 [1, 1, rows, total]; rows, int64: which rows get logits; and
    past_key_values.N.key and .value. Its outputs present.N are the same buffers.
    """

    def __init__(self, session: Any, *, context: int) -> None:  # noqa: ANN401  (onnxruntime has no types)
        import onnxruntime

        self._session, self.context, self.length = session, context, 0
        self._names = {each.name for each in session.get_inputs()}
        self._binding = session.io_binding()
        for each in session.get_inputs():
            if each.name.startswith("past_key_values."):
                _, heads, _, size = each.shape
                cache = np.zeros((1, heads, context, size), TYPES[each.type])
                value = onnxruntime.OrtValue.ortvalue_from_numpy(cache)
                self._binding.bind_ortvalue_input(each.name, value)
                self._binding.bind_ortvalue_output(each.name.replace("past_key_values", "present"), value)

    def read(self, tokens: Sequence[int], *, scored: int) -> Logits:
        """As `Model.read`, in passes of at most `ROWS` rows, so that a long prompt takes no more memory."""
        start = 0
        while len(tokens) - start > max(ROWS, scored):
            count = min(ROWS, len(tokens) - start - scored)
            self._pass(tokens[start : start + count], scored=1)
            start += count
        return self._pass(tokens[start:], scored=scored)

    def _pass(self, tokens: Sequence[int], *, scored: int) -> Logits:
        count, total = len(tokens), self.length + len(tokens)
        inputs = {
            "input_ids": np.array([tokens], np.int64),
            "position_ids": np.arange(self.length, total, dtype=np.int64)[None],
            "seqlens_k": np.array([total - 1], np.int32),
            "total_length": np.array([total], np.int32),
            "attention_bias": np.zeros((1, 1, count, total), np.float32),
            "rows": np.arange(count - scored, count, dtype=np.int64),
        }
        for name in self._names & inputs.keys():
            self._binding.bind_cpu_input(name, inputs[name])
        self._binding.bind_output("logits")
        self._session.run_with_iobinding(self._binding)
        self.length = total
        logits: Logits = self._binding.get_outputs()[-1].numpy()
        return logits

    def crop(self, length: int) -> None:
        """As `Model.crop`. What lies behind is overwritten by the next pass."""
        self.length = length


class FixedModel:
    """Graphs for passes of fixed widths, by width, which take `context` past positions and return the new ones.

    Inputs: input_ids and position_ids, int64 [1, width]; attention_mask, and for layers with a sliding window
    window_mask, float32 [1, 1, width, context + width], added to the scores; rows, int64; past_key_values.N.key and
    .value, float32 [1, heads, context, size]. Outputs: logits, and present.N [1, heads, width, size].
    """

    def __init__(self, sessions: Mapping[int, Any], *, context: int, window: int = 0) -> None:
        self._sessions, self.context, self.length, self._window = dict(sorted(sessions.items())), context, 0, window
        first = next(iter(self._sessions.values()))
        self._past = {
            each.name: np.zeros(each.shape, np.float32)
            for each in first.get_inputs()
            if each.name.startswith("past_key_values.")
        }

    def read(self, tokens: Sequence[int], *, scored: int) -> Logits:
        """As `Model.read`, in as few passes as the widths allow."""
        found: list[Logits] = []
        start = 0
        while start < len(tokens):
            width = self._width(len(tokens) - start, scored)
            stop = min(len(tokens), start + width)
            first = max(start, len(tokens) - scored) - start
            found.append(self._pass(tokens[start:stop], width, first))
            start = stop
        return np.concatenate(found)[-scored:]

    def crop(self, length: int) -> None:
        """As `Model.crop`."""
        self.length = length

    def _width(self, rows: int, scored: int) -> int:
        """Return the narrowest width that takes all rows, else the widest, of those with logits enough."""
        able = [width for width in self._sessions if width <= SCORED or scored == 1]
        return next((width for width in able if width >= rows), able[-1])

    def _pass(self, tokens: Sequence[int], width: int, first: int) -> Logits:
        """Run one pass, padded to `width`; return the logits of the rows from `first`."""
        count, past = len(tokens), self.length
        ids, positions = np.zeros((2, 1, width), np.int64)
        ids[0, :count] = tokens
        positions[0, :count] = range(past, past + count)
        rows = np.zeros(width if width <= SCORED else 1, np.int64)
        rows[: max(count - first, 0)] = range(first, count) if first < count else 0
        inputs: dict[str, npt.NDArray[Any]] = {"input_ids": ids, "position_ids": positions, "rows": rows}
        inputs |= {
            "attention_mask": self._mask(count, width, self.context + width),
            "window_mask": self._mask(count, width, self._window),
        }
        session = self._sessions[width]
        names = {each.name: each.shape for each in session.get_inputs()}
        blank = {name: np.zeros(shape, np.float32) for name, shape in names.items() if name.startswith("lora.")}
        given = {name: value for name, value in inputs.items() if name in names} | self._past | blank
        outputs = dict(zip((each.name for each in session.get_outputs()), session.run(None, given), strict=True))
        for name, buffer in self._past.items():
            buffer[:, :, past : past + count] = outputs[name.replace("past_key_values", "present")][:, :, :count]
        self.length = past + count
        logits: Logits = outputs["logits"]
        return logits[: max(count - first, 0)]

    def _mask(self, count: int, width: int, window: int) -> npt.NDArray[np.float32]:
        """Each row sees the past, itself and the rows before it, `window` positions in all. Padding sees itself."""
        mask = np.full((width, self.context + width), HIDDEN, np.float32)
        for row in range(width):
            mask[row, self.context + row] = 0
        for row in range(count):
            position = self.length + row
            mask[row, max(0, position - window + 1) : self.length] = 0
            mask[row, self.context + max(0, row - window + 1) : self.context + row + 1] = 0
        return mask[None, None]
