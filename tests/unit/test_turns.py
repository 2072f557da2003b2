"""The fair lock: order, nesting, interrupts, and what finalizers leave until their thread is free."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Callable
from threading import Event, Thread, get_ident
from time import sleep

import pytest

from edgedecode.errors import CapabilityError
from edgedecode.turns import FairLock, when_free

PATIENCE = 30.0


def started(target: Callable[[], object]) -> Thread:
    thread = Thread(target=target, daemon=True)
    thread.start()
    return thread


def until(true: Callable[[], bool]) -> None:
    """Wait until something is so; the test hangs no longer than `PATIENCE`."""
    for _ in range(int(PATIENCE * 1000)):
        if true():
            return
        sleep(0.001)
    raise AssertionError("it did not come about")


def waiting(lock: FairLock) -> int:
    return len(lock._queue)


def test_threads_get_it_in_the_order_they_came() -> None:
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


def test_one_that_asks_again_at_once_comes_last() -> None:
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


def test_those_who_wait_come_first_where_it_is_passed_on() -> None:
    lock, order = FairLock(), list[str]()

    def first() -> None:
        order.append("first")
        until(lambda: waiting(lock) == 2)
        lock.pass_on()
        order.append("again")
        lock.pass_on()  # nobody waits

    thread = started(lambda: lock.run(first))
    until(lambda: bool(order))
    lock.run(lambda: order.append("second"))
    thread.join(PATIENCE)
    assert order == ["first", "second", "again"]
    assert waiting(lock) == 0


def test_its_holder_may_ask_again_and_an_error_gives_it_back() -> None:
    lock = FairLock()
    assert lock.run(lambda: lock.run(lambda: waiting(lock))) == 1
    assert not lock.held
    with pytest.raises(ZeroDivisionError):
        lock.run(lambda: 1 // 0)
    assert waiting(lock) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="a thread cannot be sent a signal there")
@pytest.mark.parametrize("passing", [False, True], ids=["asking", "passing on"])
def test_an_interrupt_while_waiting_leaves_the_queue_in_order(passing: bool) -> None:
    lock, go, order = FairLock(), Event(), list[str]()
    threads = list[Thread]()

    def interrupt() -> None:
        until(lambda: waiting(lock) == 2)
        sleep(0.05)  # until this thread waits, and does not only stand in the queue
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


def test_what_a_finalizer_wants_waits_until_its_thread_is_in_no_lock() -> None:
    outer, inner, order = FairLock(), FairLock(), list[str]()

    def work() -> None:
        inner.run(lambda: when_free(lambda: outer.run(lambda: order.append("closed"))))
        order.append("worked")

    outer.run(work)
    assert order == ["worked", "closed"]
    when_free(lambda: order.append("at once"))
    assert order[-1] == "at once"


def test_deferred_work_that_fails_is_logged_and_changes_neither_a_result_nor_what_was_deferred_after_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lock, order = FairLock(), list[str]()

    def work() -> str:
        when_free(lambda: print(1 // 0))
        when_free(lambda: order.append("closed"))
        return "worked"

    with caplog.at_level(logging.ERROR, logger="edgedecode"):
        assert lock.run(work) == "worked"
    assert order == ["closed"]
    (record,) = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


def test_however_much_was_deferred_all_of_it_is_done() -> None:
    lock, done = FairLock(), list[int]()
    count = 2 * sys.getrecursionlimit()

    def work() -> None:
        for number in range(count):
            when_free(lambda number=number: lock.run(lambda: done.append(number)))  # type: ignore[misc]

    lock.run(work)
    assert done == list(range(count))


@pytest.mark.skipif(sys.platform == "win32", reason="a thread cannot be sent a signal there")
def test_a_signal_handler_of_a_thread_that_waits_does_not_run_beside_the_holder() -> None:
    lock, go, handled, beside = FairLock(), Event(), Event(), list[bool]()

    def handle(*_: object) -> None:
        try:
            assert not lock.held
            with pytest.raises(CapabilityError, match="from a signal handler or a finalizer while its thread waits"):
                lock.run(lambda: beside.append(not go.is_set()))
            when_free(lambda: lock.run(lambda: beside.append(not go.is_set())))
        finally:
            handled.set()

    def interrupt() -> None:
        until(lambda: waiting(lock) == 2)
        sleep(0.05)  # until this thread waits, and does not only stand in the queue
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
    assert beside == [False]
    assert not lock.held
