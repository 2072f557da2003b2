"""Names and numbers that static graphs and the code that runs them share."""

from __future__ import annotations

__all__ = ["HEAD_ROWS", "HIDDEN_SCORE", "MASK", "STATIC", "WINDOW_MASK"]

STATIC = "static"
"""Capability of graphs with fixed shapes."""
MASK, WINDOW_MASK = "attention_mask", "window_mask"
"""Inputs, float32 [1, 1, width, slots + width], added to the scores of full layers and of sliding-window layers. The
first `slots` columns are past positions, the others the pass's own rows."""
HIDDEN_SCORE = -1e4
"""Mask value of an invisible column. It fits 16-bit floats, where -inf turns a softmax into NaN on NPUs."""
HEAD_ROWS = 16
"""Widest pass whose rows all get logits. Wider ones are prefill, which needs the logits of one row."""
