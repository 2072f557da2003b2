"""FairLock: order, nesting, interrupts, and work that finalizers defer until their thread is free."""

import logging
import signal
import sys
from collections.abc import Callable
from threading import Event, Thread, get_ident
from time import sleep

import pytest

from edgedecode.errors import CapabilityError
from edgedecode.fair_lock import FairLock, when_free

PATIENCE = 30.0


def started(target: Callable[[], object]) -> Thread:
    thread = Thread(target=target, daemon=True)
    thread.start()
    return thread


def until(true: Callable[[], bool]) -> None:
    """Wait until the condition holds, at most `PATIENCE` seconds."""
    for _ in range(int(PATIENCE * 1000)):
        if true():
            return
        sleep(0.001)
    raise AssertionError("the condition never held")


def waiting(lock: FairLock) -> int:
    return len(lock._queue)


def test_fair_lock_serves_threads_in_order_of_arrival() -> None:
    lock, go, order = FairLock(), Event(), list[int]()
    threads = [started(lambda: lock.run(go.wait))]
    for number in range(6):
        until(lambda: waiting(lock) == len(threads))
        threads.append(started(lambda number=number: lock.run(lambda: order.append(number))))  # type: ignore[misc]
    until(lambda: waiting(lock) == len(threads))
    go.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert order == list(range(6))
    assert waiting(lock) == 0


def test_fair_lock_puts_a_thread_that_asks_again_last() -> None:
    lock, order = FairLock(), list[str]()

    def often(name: str, times: int) -> None:
        for _ in range(times):
            lock.run(lambda: note(name))

    def note(name: str) -> None:
        until(lambda: waiting(lock) > 1 or len(order) > 6)
        order.append(name)

    threads = [started(lambda: often("a", 4)), started(lambda: often("b", 4))]
    for thread in threads:
        thread.join(PATIENCE)
    assert order[:6] in (list("ababab"), list("bababa"))


def test_pass_on_lets_waiting_threads_run_first() -> None:
    lock, order = FairLock(), list[str]()

    def first() -> None:
        order.append("first")
        until(lambda: waiting(lock) == 2)
        lock.pass_on()
        order.append("again")
        lock.pass_on()  # no thread waits

    thread = started(lambda: lock.run(first))
    until(lambda: bool(order))
    lock.run(lambda: order.append("second"))
    thread.join(PATIENCE)
    assert order == ["first", "second", "again"]
    assert waiting(lock) == 0


def test_fair_lock_is_reentrant_and_released_by_an_error() -> None:
    lock = FairLock()
    assert lock.run(lambda: lock.run(lambda: waiting(lock))) == 1
    assert not lock.held
    with pytest.raises(ZeroDivisionError):
        lock.run(lambda: 1 // 0)
    assert waiting(lock) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="a thread cannot be sent a signal there")
@pytest.mark.parametrize("passing", [False, True], ids=["asking", "passing on"])
def test_fair_lock_keeps_its_order_after_an_interrupt_while_waiting(passing: bool) -> None:
    lock, go, order = FairLock(), Event(), list[str]()
    threads = list[Thread]()

    def interrupt() -> None:
        until(lambda: waiting(lock) == 2)
        sleep(0.05)  # the thread is in the queue; give it time to block
        signal.pthread_kill(main, signal.SIGINT)

    def other() -> None:
        threads.append(started(lambda: lock.run(go.wait)))
        until(lambda: waiting(lock) == len(threads) + passing)

    def pass_on() -> None:
        other()
        lock.pass_on()

    main = get_ident()
    if not passing:
        other()
    interrupter = started(interrupt)
    with pytest.raises(KeyboardInterrupt):
        lock.run(pass_on if passing else lambda: order.append("never"))
    assert not lock.held
    threads.append(started(lambda: lock.run(lambda: order.append("next"))))
    until(lambda: waiting(lock) == 2)
    go.set()
    for thread in (*threads, interrupter):
        thread.join(PATIENCE)
    assert order == ["next"]
    assert waiting(lock) == 0


def test_when_free_defers_work_until_the_thread_holds_no_lock() -> None:
    outer, inner, order = FairLock(), FairLock(), list[str]()

    def work() -> None:
        inner.run(lambda: when_free(lambda: outer.run(lambda: order.append("closed"))))
        order.append("worked")

    outer.run(work)
    assert order == ["worked", "closed"]
    when_free(lambda: order.append("at once"))
    assert order[-1] == "at once"


def test_when_free_logs_work_that_fails_and_runs_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    lock, order = FairLock(), list[str]()

    def work() -> str:
        when_free(lambda: print(1 // 0))
        when_free(lambda: order.append("closed"))
        return "worked"

    with caplog.at_level(logging.ERROR, logger="edgedecode"):
        assert lock.run(work) == "worked"
    assert order == ["closed"]
    (record,) = caplog.records
    assert record.exc_info[0] is ZeroDivisionError


def test_when_free_runs_any_amount_of_deferred_work() -> None:
    lock, done = FairLock(), list[int]()
    count = 2 * sys.getrecursionlimit()

    def work() -> None:
        for number in range(count):
            when_free(lambda number=number: lock.run(lambda: done.append(number)))  # type: ignore[misc]

    lock.run(work)
    assert done == list(range(count))


@pytest.mark.skipif(sys.platform == "win32", reason="a thread cannot be sent a signal there")
def test_fair_lock_refuses_a_signal_handler_of_a_waiting_thread() -> None:
    lock, go, handled, concurrent = FairLock(), Event(), Event(), list[bool]()

    def handle(*_: object) -> None:
        try:
            assert not lock.held
            with pytest.raises(CapabilityError, match="from a signal handler or a finalizer while its thread waits"):
                lock.run(lambda: concurrent.append(not go.is_set()))
            when_free(lambda: lock.run(lambda: concurrent.append(not go.is_set())))
        finally:
            handled.set()

    def interrupt() -> None:
        until(lambda: waiting(lock) == 2)
        sleep(0.05)  # the thread is in the queue; give it time to block
        signal.pthread_kill(main, signal.SIGUSR1)
        handled.wait(PATIENCE)
        go.set()

    main, before = get_ident(), signal.signal(signal.SIGUSR1, handle)
    try:
        threads = [started(lambda: lock.run(go.wait))]
        until(lambda: waiting(lock) == 1)
        threads.append(started(interrupt))
        assert lock.run(lambda: lock.held)
    finally:
        signal.signal(signal.SIGUSR1, before)
    for thread in threads:
        thread.join(PATIENCE)
    assert concurrent == [False]
    assert not lock.held
