"""How far long work is that clients wait for: a download, or a model that is being loaded."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from .places import CLOSING, Busy, Places

_MB = 1_000_000


@dataclass(slots=True, eq=False)
class Progress:
    """what, total, completed: the present step, and its bytes or parts. waits: it waits for room, or its turn."""

    places: Places
    what: str = ""
    total: int = 0
    completed: float = 0
    waits: bool = True

    @property
    def text(self) -> str:
        """The step and its share; empty: not known."""
        return f"{self.what}, {min(1.0, self.completed / self.total):.0%}" if self.total else ""

    @contextmanager
    def bar(self, what: str, total: int) -> Iterator[Callable[[float], None]]:
        """Take the progress of a step, which may count in megabytes. It ends with Busy when the server closes."""
        unit = _MB if what.endswith(", MB") else 1
        self.what, self.completed, self.total = what.removesuffix(", MB"), 0, max(1, total * unit)

        def advance(amount: float) -> None:
            self.completed += amount * unit
            if self.places.closing:
                raise Busy(CLOSING)

        yield advance
