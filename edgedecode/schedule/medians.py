"""Medians of the last few measurements."""

LATEST = 5
"""The baseline step is the median of this many passes: an interrupted one takes many times as long."""
STEADY = 2 * LATEST - 1
"""Host overhead and draft steps are the median of this many. It exceeds LATEST so that, when the machine's speed
changes, the baseline step follows before these, which are relative to it."""


class Recent:
    """The median of the last few measurements."""

    __slots__ = ("_latest", "_most", "value")

    def __init__(self, value: float | None = None, *, most: int = LATEST) -> None:
        self.value = value
        """None: not measured yet."""
        self._latest: list[float] = [] if value is None else [value]
        self._most = most

    @property
    def few(self) -> bool:
        """Whether the first measurements, perhaps cold or under load, can still dominate the median."""
        return len(self._latest) <= self._most // 2

    def doubt(self) -> None:
        """Count everything so far as one measurement."""
        self._latest = [] if self.value is None else [self.value]

    def observe(self, value: float) -> None:
        self._latest.append(value)
        del self._latest[: -self._most]
        self.value = sorted(self._latest)[(len(self._latest) - 1) // 2]
