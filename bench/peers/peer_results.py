"""The figures of a comparison with peers, JSON-serialisable with `dataclasses.asdict`."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from .peer import PLAIN_MODE

OURS = "edgedecode"
SCHEDULED = "scheduled"


@dataclass(frozen=True, slots=True)
class WayResult:
    """One engine in one mode on one family: tokens per second, medians over repetitions.

    `whole`: of the full request, with prefill; `decode`: after prefill. The speed-ups are our speed / this one's, the
    median of the repetitions' ratios; ours is plain decoding if this mode is plain, else scheduled decoding.
    """

    peer: str
    mode: str
    whole: float
    decode: float
    whole_speed_up: float
    decode_speed_up: float
    same_texts: int
    """Prompts for which every repetition returned the text of our plain decoding."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Our speed-ups over one way per family, over all families. `worst`: family, peer and mode of `worst_whole`."""

    mean_whole: float
    worst_whole: float
    mean_decode: float
    worst_decode: float
    worst: str

    @classmethod
    def of(cls, ways: Sequence[tuple[str, WayResult]]) -> "Summary | None":
        """Summarize pairs of a family's name and a way; None if there are none."""
        if not ways:
            return None
        family, worst = min(ways, key=lambda pair: pair[1].whole_speed_up)
        return cls(
            mean_whole=fmean(way.whole_speed_up for _, way in ways),
            worst_whole=worst.whole_speed_up,
            mean_decode=fmean(way.decode_speed_up for _, way in ways),
            worst_decode=min(way.decode_speed_up for _, way in ways),
            worst=f"{family}, {worst.peer} {worst.mode}",
        )


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

    def best_speculative(self, peer: str | None = None) -> WayResult | None:
        """Return the fastest speculative mode by full requests, of one peer or of any; None if there is none."""
        modes = [way for way in self.ways if way.peer != OURS and way.mode != PLAIN_MODE and peer in (None, way.peer)]
        return max(modes, key=lambda way: way.whole, default=None)


@dataclass(frozen=True, slots=True)
class Comparison:
    """All families, each peer's setting, and a line with the reason for each peer that could not be compared."""

    families: tuple[PeerFamily, ...]
    settings: dict[str, str]
    reasons: tuple[str, ...]

    def plain(self, peer: str) -> Summary | None:
        """Summarize our plain decoding against the peer's."""
        ways = [(family.family, family.way(peer, PLAIN_MODE)) for family in self.families]
        return Summary.of([(name, way) for name, way in ways if way is not None])

    def speculative(self, peer: str | None = None) -> Summary | None:
        """Summarize our scheduled decoding against the best speculation of a peer, or of the fastest peer."""
        ways = [(family.family, family.best_speculative(peer)) for family in self.families]
        return Summary.of([(name, way) for name, way in ways if way is not None])
