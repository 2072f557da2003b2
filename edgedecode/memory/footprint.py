"""Named numbers of bytes that a memory plan consists of, known before allocation."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Holder(NamedTuple):
    """A part of the plan, named after its later lease."""

    name: str
    nbytes: int


PROCESS = "process (interpreter, engine, tokenizer)"
"""Name of the lease for the memory of the process before a model is open."""
VARIATION = "variation between processes"
_WORKING = "working memory"
_PARTS: Mapping[str, tuple[str, ...]] = {
    "weights": ("weights", "adapter", "graph"),
    "KV cache": ("kv",),
    _WORKING: (),
    "program and engine": (PROCESS, VARIATION, "engine code", "llama.cpp code", "driver"),
}
"""What users are shown of a plan, and the holders of each part by their names before a colon."""


def in_parts(holders: Iterable[Holder]) -> dict[str, int]:
    """Return the bytes of each part of a plan. What belongs to no other part is working memory."""
    part_of = {kind: part for part, kinds in _PARTS.items() for kind in kinds}
    sums = dict.fromkeys(_PARTS, 0)
    for name, nbytes in holders:
        sums[part_of.get(name.partition(":")[0], _WORKING)] += nbytes
    return sums


def total_nbytes(holders: Iterable[Holder]) -> int:
    """Return the sum of the holders' bytes."""
    return sum(holder.nbytes for holder in holders)
