"""Learns the costs of the target's passes in one context bucket from the passes that happen.

A pass over n tokens takes T(n) = step · c(n) with c(n) = 1 + β(n)·(n - 1). The baseline step is a pass over one token,
and β is the cost of one more row in baseline steps. β varies little with the width, so unmeasured widths are estimated
from measured ones.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

from edgedecode.decoding.policy import MAX_DRAFT
from edgedecode.sampling.counter_rng import logarithm

from .medians import LATEST, Recent

WIDEST = MAX_DRAFT + 1
"""Rows of the widest pass that is measured separately."""
PRIOR_BETA = {2: 0.35, 3: 0.38, 5: 0.40, 9: 0.42, 17: 0.45, 33: 0.45}
"""β by width before anything is measured: expensive, as measured on two slow cores (0.2 to 0.5)."""
PRIOR_WEIGHT = 0.01
"""Passes that the prior counts as, or a curve that is doubted: so few that one new pass corrects all widths."""
ENOUGH = 8
"""Passes over which the cost of a width is averaged, and after which it has full weight. Higher: less noise, but slower
to follow a machine that changes."""
LEAST_BETA = 0.01
"""Least kept β, so that a measured one is a multiple of it."""
MOST_BETA = 1.0
"""Largest kept β: so dear a row is as slow as a pass of its own, and nothing pays. Fitted values are multiples of the
kept ones, which would otherwise grow with each doubt of a noisy machine."""
AGEING = 0.998
"""Decay per pass, of any width, of the weight of earlier passes. Lower: costs that were measured under load are
replaced sooner."""
REACH = 0.15
"""Kernel bandwidth, in log(width)."""
REFIT = 16
"""Multi-row passes between two fits of the curve, fewer at first. Lower: more host overhead."""
OUTLIER = 1.5
"""Measured times are clamped to this factor above or below the prediction: the machine was busy with other work."""
DRIFT = math.sqrt(OUTLIER)
"""If drafting rounds and a baseline pass all took this factor more or less than predicted, the machine's speed has
changed and that pass becomes the baseline step. Lower: spikes are mistaken for it. Higher: costs stay outdated for
longer."""
MEASURE = 64
"""Rounds without a baseline pass after which one is forced, since all costs are relative to it. A pair's fourth to
sixth baseline passes are forced after 8, 16 and 32 rounds: the machine may have been busy during the first ones."""


class CostTable:
    """Costs of passes in one context bucket.

    step: seconds of a baseline step, the unit of all other costs; None: not measured yet. beta: float64 [WIDEST + 1],
    the cost of one more row by width, in baseline steps; 0 if never measured. seen: decaying number of passes measured,
    by width; wider passes count as WIDEST. plain: baseline passes measured. widths, away: as in `ModelCard`; what
    passes of several rows take on the way is known from the start, and no part of β.
    """

    __slots__ = (
        *("_curve", "_first_step", "_kept", "_least", "_plain", "_stale", "_wide"),
        *("away", "beta", "fits", "plain", "seen", "step", "widths"),
    )

    def __init__(
        self,
        step: float | None = None,
        beta: Mapping[int, float] | None = None,
        *,
        plain: int | None = None,
        widths: Sequence[int] = (),
    ) -> None:
        self.widths, self.away = tuple(widths), 0.0
        self.step = step
        self._plain = Recent(step)
        self._first_step: float | None = None
        self.plain = plain if plain is not None else 0 if step is None else 1
        self.beta = np.zeros(WIDEST + 1)
        self.seen = np.zeros(WIDEST + 1)
        for width, value in (beta or {}).items():
            self.beta[width], self.seen[width] = value, 1
        self._kept: npt.NDArray[np.float64] | None = None
        """β by width as measured earlier, which is doubted; None: it was never measured."""
        self.fits = 0
        """How often the curve was fitted."""
        self._curve: list[float] = []
        self._least: list[float] = []
        self._stale = self._wide = 0
        """Multi-row passes since the last fit, and in total."""

    def curve(self, *, least: bool = False) -> Sequence[float]:
        """Return c by width, 0 to WIDEST.

        least: an optimistic estimate instead, the lower the fewer passes near that width were measured.
        """
        if not self._curve:
            self._refit()
        return self._least if least else self._curve

    def c(self, width: int) -> float:
        """Return T(width) / T(1), which never decreases with the width."""
        curve = self.curve()
        return curve[width] if width <= WIDEST else curve[WIDEST] * width / WIDEST

    def restart(self) -> None:
        """Forget the earlier baseline passes: the next one becomes the step."""
        self._plain = Recent()

    def doubt(self, *, loaded: bool = False) -> None:
        """Take everything measured so far as a guess: the machine may have been busy.

        loaded: another process measured it, of whose speed nothing is known: no guess is higher than the prior.
        """
        if self.seen[2:].any():
            self._kept = np.minimum(self._beta(), _prior(self.widths) if loaded else MOST_BETA)
            self.seen[:] = 0
        if loaded:
            self.restart()
            self.plain = 0  # so a baseline pass is due
        self._curve, self._wide, self._first_step = [], 0, self.step

    @property
    def has_moved(self) -> bool:
        """Whether the step differs from the one at which the costs were first measured, or doubted."""
        if self._plain.few or self.step is None:
            return False
        self._first_step = self._first_step or self.step
        return drift_of(self.step / self._first_step) != 0

    @property
    def known_beta(self) -> dict[int, float]:
        """The measured β by width, and the kept one where no pass was measured since."""
        measured = (int(each) for each in np.flatnonzero(self.seen[2:]) + 2)
        kept = {} if self._kept is None else {width: float(self._kept[width]) for width in PRIOR_BETA}
        return kept | {width: float(self.beta[width]) for width in measured}

    def observe(self, width: int, seconds: float, *, passes: int = 1) -> None:
        """Learn from one pass, or the median of several. Wider ones are ignored until the baseline step is known."""
        if not 0 < seconds < math.inf or width > (self.widths or [math.inf])[-1]:  # several passes of fixed width
            return
        if self.widths:
            from .fixed_widths import fixed_width  # late, as below: most targets take any number of rows

            width = fixed_width(width, self.widths)
        if width == 1:
            for _ in range(min(passes, LATEST // 2 + 1)):  # so many decide the median
                self._plain.observe(seconds)
            self.plain += 1
            self.seen *= AGEING
            if self.plain % (4 * MEASURE) == 0:
                self._curve = []
            if self.step is not None or not self._plain.few:
                self.step = self._plain.value
                self._curve = [] if self.away else self._curve
            return
        if self.step is None:
            return
        seconds = max(seconds - self.away, self.step) if self.away else seconds
        predicted = self.step * self.c(width) - self.away
        width = min(width, WIDEST)
        # Other work makes a pass slower, never faster, and what is doubted bounds nothing.
        if self._kept is None or self.seen[width]:
            seconds = min(seconds, predicted * OUTLIER)
        self.seen *= AGEING
        self.seen[width] += 1
        weight = max(1 / ENOUGH, 1 / self.seen[width])
        self.beta[width] += weight * ((seconds / self.step - 1) / (width - 1) - self.beta[width])
        self._stale += 1
        self._wide += 1
        if self._stale >= min(REFIT, self._wide / 4):
            self._curve = []

    def is_due(self, rounds: int, *, most: int = MEASURE) -> bool:
        """Return whether to measure a baseline pass, `rounds` after the last one: soon at first, rarely later."""
        return self.step is None or not self.plain or rounds >= min(most, 2.0 ** min(self.plain, 6))

    def _refit(self) -> None:
        """Fit β by kernel regression over the measured widths and the prior."""
        rows = np.maximum(0, np.arange(WIDEST + 1) - 1)
        known = self._weights().sum(axis=0)
        self._stale = 0
        self.fits += 1
        curve = _monotone(np.maximum(1.0, 1.0 + self._beta() * rows))
        least = 1 + (curve - 1) * (1 - 0.5 / (1 + known))
        if self._kept is not None:  # what is doubted may be wrong by any factor, until such a width is measured again
            least = np.minimum(least, np.where(known < 0.5, 1 + 0.5 * _prior(self.widths) * rows, np.inf))
        self._curve, self._least = curve.tolist(), least.tolist()
        if self.widths:
            from .fixed_widths import fixed_curve

            self._curve, self._least = (fixed_curve(found, self.widths) for found in (self._curve, self._least))
        if self.away and self.step is not None:
            more = self.away / self.step
            self._curve, self._least = (
                found[:2] + [each + more for each in found[2:]] for found in (self._curve, self._least)
            )

    def _weights(self) -> npt.NDArray[np.float64]:
        """Return the weights of the passes measured at each width, at each other, [measured, width]."""
        weights = _kernel() * np.minimum(self.seen, ENOUGH)[:, None]
        weights[:2] = 0.0
        return weights

    def _beta(self) -> npt.NDArray[np.float64]:
        """Return the fitted β by width."""
        prior = np.maximum(_prior(self.widths) if self._kept is None else self._kept, LEAST_BETA)
        weights = self._weights()
        # Sums over the first axis add row by row: native code gives the same bits. A matrix product would not.
        ratios = weights * (self.beta / prior)[:, None]
        moved = (PRIOR_WEIGHT + ratios.sum(axis=0)) / (PRIOR_WEIGHT + weights.sum(axis=0))
        found: npt.NDArray[np.float64] = prior * moved
        return found


def drift_of(ratio: float | None) -> int:
    """Return 1 if the ratio is above DRIFT, -1 if it is below 1 / DRIFT, else 0."""
    return 0 if ratio is None else (ratio > DRIFT) - (ratio < 1 / DRIFT)


@cache
def _kernel() -> npt.NDArray[np.float64]:
    """Return the weight at each width of a measurement at each other; symmetric."""
    widths = np.maximum(1, np.arange(WIDEST + 1))
    ratios = np.minimum(widths[:, None], widths) / np.maximum(widths[:, None], widths)
    distance = logarithm(ratios) / REACH
    return 1 / (1 + distance**2)


@cache
def _prior(fixed: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """Return the prior β by width."""
    beta = np.interp(np.maximum(1, np.arange(WIDEST + 1)), list(PRIOR_BETA), list(PRIOR_BETA.values()))
    if not fixed:
        return beta
    from .fixed_widths import fixed_prior

    return fixed_prior(beta, fixed)


def _monotone(curve: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return a non-decreasing curve, midway between the lowest such curve above and the highest such curve below."""
    above, below = np.maximum.accumulate(curve), np.minimum.accumulate(curve[::-1])[::-1]
    return (above + below) / 2
