"""The calibrated curve of entropy switching: what each threshold kept of the target's accuracy, and what it cost."""

from dataclasses import dataclass

from edgedecode.typed_json import Amount, Count, Positive, Share


@dataclass(frozen=True, slots=True)
class SwitchPoint:
    """One threshold, measured on the calibration prompts."""

    up: Amount
    """Hand over to the target at this signal."""
    accuracy: Share
    """Share of the prompts that were answered correctly."""
    quality: Amount
    """The accuracy over the target's; may exceed 1."""
    quality_low: Amount
    """Lower bound of the quality, one-sided, 95%: a paired bootstrap over the prompts."""
    target_share: Share
    """Share of the tokens that the target wrote or verified."""
    speed: Amount
    """Tokens per second, prompts included, over those of the target alone with plain decoding."""


@dataclass(frozen=True, slots=True)
class SwitchCurve:
    """The points of one signal, and where they come from."""

    signal: str
    window: Positive
    dwell: Positive
    points: tuple[SwitchPoint, ...]
    prompts: Positive
    prompts_digest: str
    target_accuracy: Share
    draft_accuracy: Share
    engine: str
    """Engine and version; the speeds are this machine's, the rest holds for any."""
    models: str
    """Digest of both models' weights: a curve of other models is not used."""
    tokens: Count = 0
    """Tokens that the target wrote for all prompts."""

    def threshold(self, quality: float) -> SwitchPoint | None:
        """Return the point with the least share of the target that keeps this quality by its lower bound, or None."""
        kept = [point for point in self.points if point.quality_low >= quality]
        return min(kept, key=lambda point: point.target_share, default=None)
