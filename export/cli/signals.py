"""SIGTERM ends a long job as Ctrl-C does, so that cleanup runs, wherever it comes."""

from __future__ import annotations

import _thread
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Timer, main_thread
from types import FrameType

_RESEND_SECONDS = 0.05
_asked = Event()
"""Whether SIGTERM has come in `ending_on_sigterm`."""


@contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """Turn SIGTERM into SystemExit. Outside of the main thread, where signals are delivered, it changes nothing."""
    before, hook = signal.getsignal(signal.SIGTERM), sys.unraisablehook
    try:
        signal.signal(signal.SIGTERM, _terminate)
    except ValueError:
        yield
        return
    sys.unraisablehook = _resend_signal
    try:
        yield
    finally:
        _asked.clear()
        sys.unraisablehook = hook
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def end_if_asked() -> None:
    """Raise SystemExit again if SIGTERM has come and the job goes on: native code drops exceptions, rarely."""
    if _asked.is_set():
        _terminate(signal.SIGTERM, None)


def _terminate(number: int, frame: FrameType | None) -> None:
    _asked.set()
    raise SystemExit(128 + number)


def _resend_signal(dropped: sys.UnraisableHookArgs) -> None:
    """Resend a signal whose exception was raised in a destructor or weak-reference callback, where Python drops it."""
    ended = {SystemExit: signal.SIGTERM, KeyboardInterrupt: signal.SIGINT}.get(dropped.exc_type)
    if ended is None:
        sys.__unraisablehook__(dropped)
        return
    Timer(_RESEND_SECONDS, _signal_main_thread, [ended]).start()


def _signal_main_thread(number: signal.Signals) -> None:
    ident = main_thread().ident
    if hasattr(signal, "pthread_kill") and ident is not None:
        signal.pthread_kill(ident, number)  # also interrupts a system call
    else:
        _thread.interrupt_main(number)
