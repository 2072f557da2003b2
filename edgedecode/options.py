"""How a session decodes: the values a caller chooses. Holds no behaviour."""

from __future__ import annotations

from dataclasses import dataclass

from edgedecode.sampling import SamplingOptions
from edgedecode.verify import Rule

__all__ = ["SessionOptions"]


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How a session decodes. None takes the pack's own default.

    drafter: a registered name, "none", or None for the pack's draft model (n-gram without one). context: positions to
    plan for. reproducible: same seed, same text, whatever drafts did (passes at least two rows wide, chains, match).
    """

    sampling: SamplingOptions | None = None
    adapter: str | None = None
    """The name of one that the pack lists, for the target alone; None: none."""
    drafter: str | None = None
    draft_max: int | None = None
    context: int | None = None
    seed: int | None = None
    rule: Rule = Rule.MATCH
    reproducible: bool = False
    ignore_eos: bool = False
