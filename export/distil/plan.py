"""What a training will take, said before it begins."""

from __future__ import annotations

from dataclasses import dataclass

from edgedecode.memory.sizes import format_nbytes

from .head_network import HeadSizes
from .labels import TOP, label_type
from .texts import CONTEXT
from .training import DEPTH, POSITIONS

_PROMPT_SHARE = 1.0
"""Tokens of prompts for each of the answers, which have labels too: at most about that many."""
_TEXT_NBYTES = 8
"""Of a token in the file of texts."""
_LIBRARIES_NBYTES = 500 << 20
"""Of the process with torch and the engine."""
_COPIES = 4
"""Of a head's parameters: with their gradients and two moments."""
_FLOAT, _HALF = 4, 2


@dataclass(frozen=True, slots=True)
class DistilPlan:
    """tokens: of the answers. An upper bound of the memory, and the disk that the work's folder takes."""

    tokens: int
    memory_nbytes: int
    disk_nbytes: int

    @property
    def line(self) -> str:
        memory, disk = format_nbytes(self.memory_nbytes), format_nbytes(self.disk_nbytes)
        return f"about {self.tokens:,} tokens of answers; up to {memory} of memory, {disk} of disk"


def distil_plan(sizes: HeadSizes, *, vocabulary_size: int, target_nbytes: int, tokens: int) -> DistilPlan:
    """Return the plan. target_nbytes: the target's memory while it writes and reads."""
    parameters = sizes.parameters
    row = label_type(3 * sizes.hidden).itemsize
    training = _COPIES * _FLOAT * parameters + _FLOAT * vocabulary_size * sizes.hidden + POSITIONS * _position(sizes)
    disk = (
        int(tokens * (1 + _PROMPT_SHARE)) * (row + _TEXT_NBYTES)
        + (_COPIES - 1) * _FLOAT * parameters
        + _HALF * parameters
    )
    return DistilPlan(tokens, _LIBRARIES_NBYTES + max(target_nbytes, training), disk)


def _position(sizes: HeadSizes) -> int:
    """Return the bytes of a batch's position: its labels, and what each depth keeps for the gradients."""
    labels = 2 * 3 * sizes.hidden * _HALF + TOP * (8 + _FLOAT + 8)
    widths = 16 * sizes.hidden + 4 * sizes.mlp + 6 * (sizes.heads + 2 * sizes.kv_heads) * sizes.head_size
    attention = 5 * sizes.heads * CONTEXT * _HALF
    logits = 2 * sizes.rows * _HALF
    return labels + DEPTH * (widths * _FLOAT + attention) + logits
