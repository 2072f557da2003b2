"""The fixed policy: the same draft length each round. Deterministic given the signals; no clock, no I/O."""

from __future__ import annotations

from dataclasses import dataclass

from edgedecode.errors import InputError
from edgedecode.types import Plan, Signals

__all__ = ["MAX_DRAFT", "FixedLength"]

MAX_DRAFT = 64


@dataclass(frozen=True, slots=True)
class FixedLength:
    """Always the same draft length; 0 is plain decoding. Raises InputError outside 0 to MAX_DRAFT."""

    draft_max: int

    def __post_init__(self) -> None:
        if not 0 <= self.draft_max <= MAX_DRAFT:
            raise InputError(f"draft length {self.draft_max} is out of range: 0 (no speculation) to {MAX_DRAFT}")

    def plan(self, signals: Signals) -> Plan:
        return Plan(min(self.draft_max, signals.remaining_tokens - 1), reason="fixed")
