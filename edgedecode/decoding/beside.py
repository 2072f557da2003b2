"""Runs drafting in a thread of its own while the caller runs the target's pass.

The target stays in the caller's thread, where interrupts, locks and errors of its pass behave as without overlap.
Drafting can be stopped after any step, and a native pass cannot: so it is the drafting that has the thread.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread
from time import perf_counter
from types import TracebackType
from typing import Protocol, TypeAlias

__all__ = ["THREAD", "Beside", "BesideThread", "Stop", "unstopped"]

THREAD = "edgedecode-drafting"
"""Name of the thread."""
Stop: TypeAlias = Callable[[], bool]
"""Whether to stop after the running step: the target's pass is over."""


def unstopped() -> bool:
    """Return False: a `Stop` where no pass runs."""
    return False


class Beside(Protocol):
    """A context in which `work` runs beside its body. On leaving, the work has ended."""

    late_seconds: float
    """How long the body's end waited for the work's last step."""

    def __enter__(self) -> object: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class BesideThread:
    """Implements `Beside` with one thread per pass, so that nothing is left to close between passes.

    An error of the body is raised as it is; else an error of the work is raised, once, when the context is left.
    """

    def __init__(self, work: Callable[[Stop], None], clock: Callable[[], float] = perf_counter) -> None:
        self._work, self._clock = work, clock
        self._over = self._begun = False
        self._done = Event()
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, name=THREAD)
        self.late_seconds = 0.0

    def __enter__(self) -> BesideThread:
        try:
            self._thread.start()
        except RuntimeError:  # the system has no thread left: the round goes on without overlap
            return self
        except BaseException:  # an interrupt: the context is not left, since it was not entered
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over = True
        started = self._clock()
        self._end()
        self.late_seconds = self._clock() - started
        if self._error is not None and error is None:
            raise self._error

    def _run(self) -> None:
        self._begun = True
        try:
            if not self._over:
                self._work(lambda: self._over)
        except BaseException as error:
            self._error = error
        finally:
            self._done.set()

    def _end(self) -> None:
        """Stop the work after its running step and wait for it, also if interrupts come meanwhile.

        An event and not `Thread.join`: an interrupted `join` takes a running thread for an ended one in Python 3.11.
        A thread that has not begun sees `_over` first and does nothing.
        """
        interrupt: BaseException | None = None
        ended = False
        while not ended:
            try:
                self._over = True
                ended = not self._begun or self._done.wait()
            except BaseException as error:
                interrupt = error
        if interrupt is not None:
            raise interrupt
