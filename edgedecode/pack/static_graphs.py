"""What export and runtimes agree on about static graphs, whose passes have a fixed number of rows and past slots.

Inputs: `input_ids` and `position_ids`, int64 [1, width]; `attention_mask`, and `window_mask` for layers with a sliding
window, float32 [1, 1, width, slots + width], added to the scores; `rows`, int64 [head rows]: the rows that get logits;
and the past keys and values, float32 [1, KV heads, slots, head size]. The mask decides what a row sees, so one graph
serves chains and trees, and it hides the rows that only fill the width. Outputs: `logits`, and as `present` only the
pass's own keys and values, [1, KV heads, width, head size], of which the runtime keeps the rows it wants.
"""

MASK, WINDOW_MASK = "attention_mask", "window_mask"
HIDDEN_SCORE = -1e4
"""Mask value of a slot that a row does not see. It fits 16-bit floats, where -inf turns a softmax into NaN on NPUs."""
HEAD_ROWS = 16
"""Widest pass whose rows all get logits. Wider ones are prefill, which needs the logits of one row."""


def head_rows(width: int) -> int:
    """Return how many rows of a pass get logits."""
    return width if width <= HEAD_ROWS else 1
