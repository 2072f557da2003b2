"""What a training will take, said before it begins."""

from dataclasses import dataclass

from edgedecode.memory.sizes import format_nbytes

from .batches import POSITIONS
from .kinds.head_network import HeadSizes
from .labels import TOP, label_type
from .texts import CONTEXT

_TEXT_NBYTES = 8
"""Of a token in the file of texts."""
_LIBRARIES_NBYTES = 420 << 20
"""Of the process with torch, its compiled kernels and the engine, and what the allocator keeps."""
_SMALL_NBYTES = 1 << 20
"""Of configurations, the map of ids, and what files hold beside their values."""
_COPIES = 4
"""Of the parameters: with their gradients and two moments."""
_FLOAT, _HALF = 4, 2


@dataclass(frozen=True, slots=True)
class Needs:
    """What a kind of network takes. layers: passes through one that are kept for the gradients. width: of features."""

    sizes: HeadSizes
    parameters: int
    layers: int
    width: int


@dataclass(frozen=True, slots=True)
class DistilPlan:
    """tokens: of the answers. An upper bound of the memory, and the disk that the work's folder takes."""

    tokens: int
    memory_nbytes: int
    disk_nbytes: int

    @property
    def line(self) -> str:
        memory, disk = format_nbytes(self.memory_nbytes), format_nbytes(self.disk_nbytes)
        return f"up to {self.tokens:,} tokens of answers, {memory} of memory, {disk} of disk"


def distil_plan(
    needs: Needs, *, vocabulary_size: int, target_nbytes: int, made_nbytes: int, tokens: int, positions: int
) -> DistilPlan:
    """Return the plan.

    target_nbytes: the target's memory while it writes and reads. made_nbytes: of a file that is made of it. positions:
    tokens of all texts.
    """
    parameters, table = needs.parameters, vocabulary_size * needs.sizes.hidden
    training = _FLOAT * (_COPIES * parameters + table) + POSITIONS * _position(needs)
    disk = (
        positions * (label_type(needs.width).itemsize + _TEXT_NBYTES)
        + 2 * (_COPIES - 1) * _FLOAT * parameters  # the old state is there until the new one is written
        + 3 * _HALF * (parameters + (1 if needs.width else 2) * table)  # the best, and one in a pack's copy
        + made_nbytes
        + _SMALL_NBYTES
    )
    timing = _FLOAT * (parameters + table) * (1 if needs.width else 3)  # a draft model's export has its own copies
    return DistilPlan(tokens, _LIBRARIES_NBYTES + max(target_nbytes + timing, training), disk)


def _position(needs: Needs) -> int:
    """Return the bytes of a batch's position: its labels, and what each layer keeps for the gradients."""
    sizes = needs.sizes
    labels = 2 * needs.width * _HALF + TOP * (8 + _FLOAT + 8)
    widths = 16 * sizes.hidden + 4 * sizes.mlp + 6 * (sizes.heads + 2 * sizes.kv_heads) * sizes.head_size
    attention = 2 * sizes.heads * CONTEXT * _HALF
    logits = 2 * sizes.rows * _HALF
    return labels + needs.layers * (widths * _FLOAT + attention) + logits
