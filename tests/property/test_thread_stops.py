"""Several threads on one pair: any thread may stop any answer, at any point."""

import gc
import signal
import sys
from collections.abc import Callable
from threading import Event, get_ident
from typing import Any
from unittest.mock import Mock

import pytest

from edgedecode.decoding.loop import PREFILL_CHUNK
from edgedecode.decoding.stats import FinishReason
from edgedecode.errors import InputError
from edgedecode.fair_lock import FairLock
from edgedecode.memory.budget import Budget
from edgedecode.pair import Pair
from edgedecode.sessions.session import Session
from edgedecode.text.messages import Message
from tests.property.workers import PATIENCE, Worker, answered, gated, leases, options, waiting
from tests.toys import ascii_pair

BEGUN = (Message("user", "a"), Message("assistant", "b"))
STOPS: dict[str, Callable[[Pair, Session, Any], object]] = {
    "session.close": lambda pair, session, stream: session.close(),
    "pair.close": lambda pair, session, stream: pair.close(),
    "stream.close": lambda pair, session, stream: stream.close(),
    "session.reset": lambda pair, session, stream: session.reset(),
    "session.stream": lambda pair, session, stream: session.stream("again", max_tokens=9),
    "session.complete": lambda pair, session, stream: session.complete("again", max_tokens=9),
    "session.generate": lambda pair, session, stream: session.generate("again", max_tokens=9),
}


@pytest.mark.parametrize("how", STOPS)
@pytest.mark.parametrize("drafter", ["none", "model"])
def test_stop_from_any_thread_in_the_middle_of_a_pass(
    pair: Pair, how: str, drafter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = leases(pair)
    lone = answered(pair, "hello", options(drafter), max_tokens=200)
    session = pair.session(options(drafter))
    stream = session.stream("hello", max_tokens=200)
    chunks = [next(stream) for _ in range(3)]
    with gated(pair, monkeypatch) as gate:
        reader = Worker(lambda: chunks.extend(stream))
        assert gate.entered.wait(PATIENCE)
        stopper = Worker(lambda: STOPS[how](pair, session, stream))
        stopper.thread.join(0.05)
        assert stopper.thread.is_alive(), "the stopper did not wait for the pass"
    found = stopper.join()
    reader.join()
    tokens = tuple(token for chunk in chunks for token in chunk.tokens)
    assert 0 < len(tokens) < 200
    assert tokens == lone.tokens[: len(tokens)]
    assert list(stream) == []
    if how in ("session.close", "pair.close"):
        with pytest.raises(InputError, match="this session is closed: open another"):
            session.generate("again")
        assert leases(pair) == (before if how == "session.close" else [])
        return
    if how in ("session.stream", "session.complete"):
        found = session.collect(found)
    if how == "session.generate":
        assert len(found.tokens) == 9
    session.generate("and now?", max_tokens=5)
    session.close()
    assert leases(pair) == before


@pytest.mark.parametrize("place", ["encoding", "its first pass"])
def test_generate_of_a_session_closed_before_its_first_token_is_cancelled(
    pair: Pair, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = leases(pair)
    session, closers = pair.session(options("none")), list[Worker]()
    owner: Any = session._turns.transcript if place == "encoding" else session._turns
    name = "open_turn" if place == "encoding" else "begin"
    called = getattr(owner, name)

    def closing(*given: Any) -> Any:
        closers.append(Worker(session.close))
        while not session._running.closed:
            Event().wait(0.001)
        return called(*given)

    monkeypatch.setattr(owner, name, closing)
    done = Worker(lambda: session.generate("hello", max_tokens=9)).join()
    closers[0].join()
    assert done.finish_reason is FinishReason.CANCELLED
    assert len(done.tokens) <= 1
    with pytest.raises(InputError, match="this session is closed: open another"):
        session.generate("again")
    assert leases(pair) == before


@pytest.mark.skipif(sys.platform == "win32", reason="a thread cannot be sent a signal there")
def test_close_of_the_pair_in_a_signal_handler_of_a_waiting_thread(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, other = pair.session(options("none")), pair.session(options("none"))
    closed = Event()

    def close(*_: object) -> None:
        pair.close()
        closed.set()

    def interrupt() -> None:
        waiting(pair, 2)
        Event().wait(0.05)  # the main thread is in the queue; give it time to block
        signal.pthread_kill(main, signal.SIGUSR1)
        assert closed.wait(PATIENCE)
        assert leases(pair) != []
        gate.go.set()

    main, handler = get_ident(), signal.signal(signal.SIGUSR1, close)
    try:
        with gated(pair, monkeypatch) as gate:
            worker = Worker(lambda: other.generate("hello", max_tokens=200))
            assert gate.entered.wait(PATIENCE)
            interrupter = Worker(interrupt)
            done = mine.generate("hello", max_tokens=200)
    finally:
        signal.signal(signal.SIGUSR1, handler)
    interrupter.join()
    assert {done.finish_reason, worker.join().finish_reason} == {FinishReason.CANCELLED}
    assert leases(pair) == []


def test_stop_between_two_pieces_of_the_prompt(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    before = leases(pair)
    session = pair.session(options("none"), messages=BEGUN)
    with gated(pair, monkeypatch) as gate:
        reader = Worker(lambda: list(session.stream("x" * (3 * PREFILL_CHUNK), max_tokens=5)))
        assert gate.entered.wait(PATIENCE)
        stopper = Worker(lambda: session.reset(BEGUN))
        stopper.thread.join(0.05)
        assert stopper.thread.is_alive()
    stopper.join()
    assert reader.join() == []
    check_nothing_was_added(session, pair)
    assert leases(pair) == before


def test_interrupt_between_two_pieces_of_the_prompt(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    before = leases(pair)
    session = pair.session(options("none"), messages=BEGUN)
    with monkeypatch.context() as patch:
        patch.setattr(FairLock, "pass_on", Mock(side_effect=KeyboardInterrupt))
        answer = session.stream("x" * (3 * PREFILL_CHUNK), max_tokens=5)
        with pytest.raises(KeyboardInterrupt):
            next(answer)
    assert answer.ended
    check_nothing_was_added(session, pair)
    assert leases(pair) == before


def check_nothing_was_added(session: Session, pair: Pair) -> None:
    """Check that a session begun with `BEGUN` answers as a fresh one does, and close it."""
    assert session.messages == BEGUN
    with pair.session(options("none"), messages=BEGUN) as fresh:
        assert session.generate("and now?", max_tokens=5).tokens == fresh.generate("and now?", max_tokens=5).tokens
    session.close()


def test_stop_of_a_suspended_answer_ends_it_in_the_calling_thread(pair: Pair) -> None:
    before = leases(pair)
    session = pair.session(options())
    stream = session.stream("hello", max_tokens=50)
    next(stream)
    Worker(session.close).join()
    assert list(stream) == []
    assert [message.role for message in session.messages] == ["user", "assistant"]
    assert leases(pair) == before


@pytest.mark.parametrize("whose", ["its own", "another session", "the pair"])
def test_close_in_the_middle_of_a_round_takes_effect_after_the_round(
    pair: Pair, whose: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finalizer or a signal handler may close: waiting would deadlock, and the pass must not use freed memory."""
    before = leases(pair)
    session, other = pair.session(options("none")), pair.session(options("none"))
    rest = other.stream("hello", max_tokens=50)
    next(rest)
    closed = {"its own": session, "another session": other, "the pair": pair}[whose]
    forward, passes = pair.target.forward, 0

    def closing(*words: Any, **named: Any) -> Any:
        nonlocal passes
        passes += 1
        if passes == 3:
            closed.close()
            assert session._turns.state.length > 0  # nothing is freed yet
        return forward(*words, **named)

    monkeypatch.setattr(pair.target, "forward", closing)
    chunks = Worker(lambda: list(session.stream("hello", max_tokens=20))).join()
    assert len(chunks) == (21 if whose == "another session" else 3)
    if whose != "its own":
        assert list(rest) == []
    session.close()
    other.close()
    assert leases(pair) == ([] if whose == "the pair" else before)


@pytest.mark.slow
def test_close_of_the_pair_while_three_threads_answer(hasty: None) -> None:
    for _ in range(5):
        pair = ascii_pair(noise=0.4, budget=Budget(), context=2048)
        lone = answered(ascii_pair(noise=0.4, context=2048), "hello", options("none"), max_tokens=1500).tokens
        sessions = [pair.session(options(drafter)) for drafter in ("none", "model", "suffix")]
        begun = [Event() for _ in sessions]

        def work(session: Session, ready: Event) -> tuple[int, ...]:
            tokens = list[int]()
            for chunk in session.stream("hello", max_tokens=1500):
                tokens += chunk.tokens
                ready.set()
            return tuple(tokens)

        workers = [
            Worker(lambda session=session, ready=ready: work(session, ready))  # type: ignore[misc]
            for session, ready in zip(sessions, begun, strict=True)
        ]
        for ready in begun:
            assert ready.wait(PATIENCE)
        pair.close()
        assert leases(pair) == []
        for worker in workers:
            tokens = worker.join()
            assert tokens == lone[: len(tokens)]
        with pytest.raises(InputError, match="this pair is closed: open the pack again"):
            pair.session()


@pytest.mark.slow
def test_session_dropped_in_an_answer_releases_its_memory(pair: Pair) -> None:
    before = leases(pair)

    class Owner:
        """Close its session when it is collected, in any thread and at any point."""

        def __init__(self) -> None:
            self.session = pair.session(options("none"))
            self.stream = self.session.stream("hello", max_tokens=50)
            self.me = self
            next(self.stream)

        def __del__(self) -> None:
            self.session.close()

    def work() -> None:
        for _ in range(10):
            Owner()
            answered(pair, "hello", options(), max_tokens=20)

    threshold = gc.get_threshold()
    gc.set_threshold(50)
    for worker in [Worker(work) for _ in range(4)]:
        worker.join()
    gc.set_threshold(*threshold)
    gc.collect()
    assert leases(pair) == before
