"""The figures of a comparison with peers: values only, JSON-serialisable with `dataclasses.asdict`."""

from __future__ import annotations

from dataclasses import dataclass

from .peer import PLAIN_MODE

__all__ = ["OURS", "SCHEDULED", "Comparison", "PeerFamily", "WayResult"]

OURS = "edgedecode"
SCHEDULED = "scheduled"


@dataclass(frozen=True, slots=True)
class WayResult:
    """One engine in one mode on one family: tokens a second, medians over repetitions.

    `whole`: of the whole request, prompt reading included; `decode`: after the prompt was read. The speed-ups are ours,
    in the same mode for plain decoding and scheduled otherwise, over this one's, medians of each repetition's ratio.
    """

    peer: str
    mode: str
    whole: float
    decode: float
    whole_speed_up: float
    decode_speed_up: float
    same_texts: int
    """Prompts to which it gave, every time, the answer that our plain decoding gave."""


@dataclass(frozen=True, slots=True)
class PeerFamily:
    """One task family. `ways`: ours first, then each peer's plain decoding and the best setting of each kind."""

    family: str
    prompts: int
    tokens: int
    """Tokens of our plain answers."""
    ways: tuple[WayResult, ...]

    def of(self, peer: str) -> list[WayResult]:
        return [way for way in self.ways if way.peer == peer]

    def way(self, peer: str, mode: str) -> WayResult | None:
        return next((way for way in self.of(peer) if way.mode == mode), None)

    def best_speculative(self, peer: str) -> WayResult | None:
        """Return the peer's fastest mode other than plain, by whole requests; None where it has none."""
        modes = [way for way in self.of(peer) if way.mode != PLAIN_MODE]
        return max(modes, key=lambda way: way.whole, default=None)


@dataclass(frozen=True, slots=True)
class Comparison:
    """All families, what each peer runs with, and a line for each peer that could not be compared."""

    families: tuple[PeerFamily, ...]
    settings: dict[str, str]
    reasons: tuple[str, ...]
