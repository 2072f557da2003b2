"""Several threads on one pair: every answer is that of a lone run, and any thread may stop any answer.

The toy model overwrites the rows it gave out at its next pass, so that an answer that read another session's rows, or
its own after somebody else's pass, would fail or say something else.
"""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from threading import Event, Thread, get_ident
from typing import Any

import pytest

from edgedecode.decoding.loop import PREFILL_CHUNK
from edgedecode.decoding.stats import FinishReason
from edgedecode.errors import InputError
from edgedecode.memory.budget import Budget
from edgedecode.options import SessionOptions
from edgedecode.pair import Pair
from edgedecode.sampling.weights import SamplingOptions
from edgedecode.sessions.chunks import Completion
from edgedecode.sessions.session import Session
from edgedecode.text.messages import Message
from tests.toys import ascii_pair

PATIENCE = 60.0
"""Seconds after which a test says that something hangs."""
WARM = SamplingOptions(temperature=0.9, top_k=40)
PROMPTS = ["hello", "tell me, tell me, tell me", "and then?", "once upon a time"]
DRAFTERS = ["none", "model", "suffix", "recycle", "tree"]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A pair whose lazily made parts are made, so that leases can be compared."""
    made = ascii_pair(noise=0.4, context=2048, budget=Budget())
    for drafter in DRAFTERS:
        made.session(SessionOptions(drafter=drafter, draft_max=3)).close()
    with made:
        yield made


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads alternate at every few lines."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def leases(pair: Pair) -> list[tuple[str, int]]:
    """Return who holds how much, past answers apart: they grow with what is said."""
    return sorted((lease.name, lease.nbytes) for lease in pair.budget.leases if lease.name != "past outputs")


@dataclass
class Worker:
    """A thread, and what became of its work."""

    work: Callable[[], object]
    result: Any = None
    error: BaseException | None = None
    thread: Thread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.result = self.work()
        except BaseException as error:
            self.error = error

    def join(self) -> Any:
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive(), "it hangs"
        if self.error is not None:
            raise self.error
        return self.result


@dataclass
class Gate:
    """Holds the target's passes: `entered` tells that one waits, `go` lets it and all others run."""

    entered: Event = field(default_factory=Event)
    go: Event = field(default_factory=Event)

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *exception: object) -> None:
        self.go.set()


def gated(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> Gate:
    gate, forward = Gate(), pair.target.forward

    def wait(*words: Any, **named: Any) -> Any:
        gate.entered.set()
        assert gate.go.wait(PATIENCE)
        return forward(*words, **named)

    monkeypatch.setattr(pair.target, "forward", wait)
    return gate


def options(drafter: str = "model", sampling: SamplingOptions | None = None, **named: Any) -> SessionOptions:
    return SessionOptions(**{"drafter": drafter, "draft_max": 3, "seed": 5, "sampling": sampling, **named})


def answered(pair: Pair, prompt: str, chosen: SessionOptions, *, max_tokens: int = 30) -> Completion:
    with pair.session(chosen) as session:
        return session.generate(prompt, max_tokens=max_tokens)


# -- answers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [None, WARM], ids=["greedy", "sampled"])
def test_answers_in_several_threads_are_those_of_lone_runs(
    pair: Pair, sampling: SamplingOptions | None, hasty: None
) -> None:
    before = leases(pair)
    lone = {
        (prompt, drafter): answered(pair, prompt, options(drafter, sampling))
        for prompt in PROMPTS
        for drafter in DRAFTERS
    }

    def work(number: int) -> None:
        for turn, drafter in enumerate(DRAFTERS):
            prompt = PROMPTS[(number + turn) % len(PROMPTS)]
            done = answered(pair, prompt, options(drafter, sampling))
            assert done.tokens == lone[prompt, drafter].tokens
            assert done.text == lone[prompt, drafter].text

    for worker in [Worker(lambda number=number: work(number)) for number in range(6)]:  # type: ignore[misc]
        worker.join()
    assert leases(pair) == before


def test_rows_are_read_before_another_session_computes_others(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between a pass of one session and the end of its round no other session's pass runs, and rounds alternate."""
    passes = list[tuple[str, int]]()
    target: Any = pair.target
    forward, keep = target.forward, type(pair.session(options("none"))._state).keep  # type: ignore[attr-defined]

    def passed(tokens: Any, state: Any, **named: Any) -> Any:
        passes.append(("forward", id(state)))
        return forward(tokens, state, **named)

    def kept(state: Any, path: Any) -> None:
        passes.append(("keep", id(state)))
        keep(state, path)

    monkeypatch.setattr(target, "forward", passed)
    monkeypatch.setattr("edgedecode.testing.TableState.keep", kept)
    sessions = [pair.session(options("none")) for _ in range(4)]
    for worker in [Worker(lambda each=each: each.generate("hello", max_tokens=40)) for each in sessions]:  # type: ignore[misc]
        worker.join()
    assert [what for what, _ in passes] == ["forward", "keep"] * (len(passes) // 2)
    assert all(first == second for (_, first), (_, second) in zip(passes[::2], passes[1::2], strict=True))
    assert {state for _, state in passes} == {id(session._state) for session in sessions}


def test_others_answer_while_a_long_prompt_is_read(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    order = list[str]()
    target: Any = pair.target
    long, short = pair.session(options("none")), pair.session(options("none"))
    forward, ready = target.forward, Event()

    def passed(tokens: Any, state: Any, **named: Any) -> Any:
        name = "long" if state is long._state else "short"
        order.append(name)
        if name == "long" and len(order) == 1:
            ready.set()
            waiting(pair, 2)
        return forward(tokens, state, **named)

    monkeypatch.setattr(target, "forward", passed)
    reader = Worker(lambda: long.generate("x" * (3 * PREFILL_CHUNK), max_tokens=1))
    assert ready.wait(PATIENCE)
    short.generate("hello", max_tokens=3)
    reader.join()
    assert order[:3] == ["long", "short", "long"]


def waiting(pair: Pair, count: int) -> None:
    """Wait until so many threads want the models."""
    while len(pair.turn._queue) < count:
        Event().wait(0.001)


def test_sessions_may_be_opened_and_closed_while_others_answer(hasty: None) -> None:
    pair = ascii_pair(noise=0.4, budget=Budget())
    lone = answered(ascii_pair(noise=0.4), "hello", options("none"), max_tokens=60).tokens

    def work(drafter: str) -> None:
        for _ in range(5):
            assert answered(pair, "hello", options(drafter), max_tokens=60).tokens == lone

    for worker in [Worker(lambda drafter=drafter: work(drafter)) for drafter in DRAFTERS]:  # type: ignore[misc]
        worker.join()
    assert len(pair.drafts.loaded) == 1
    pair.close()
    assert leases(pair) == []


# -- stopping ----------------------------------------------------------------------------------------------------------

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
def test_any_thread_may_stop_an_answer_in_the_middle_of_a_pass(
    pair: Pair, how: str, drafter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = leases(pair)
    lone = answered(pair, "hello", options(drafter), max_tokens=200)
    session = pair.session(options(drafter))
    stream = session.stream("hello", max_tokens=200)
    said = [next(stream) for _ in range(3)]
    with gated(pair, monkeypatch) as gate:
        reader = Worker(lambda: said.extend(stream))
        assert gate.entered.wait(PATIENCE)
        stopper = Worker(lambda: STOPS[how](pair, session, stream))
        stopper.thread.join(0.05)
        assert stopper.thread.is_alive(), "it did not wait for the pass"
    found = stopper.join()
    reader.join()
    tokens = tuple(token for chunk in said for token in chunk.tokens)
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


def test_a_whole_answer_that_another_thread_stops_is_a_cancelled_one(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = pair.session(options("none"))
    with gated(pair, monkeypatch) as gate:
        answer = Worker(lambda: session.generate("hello", max_tokens=200))
        assert gate.entered.wait(PATIENCE)
        stopper = Worker(session.close)
        stopper.thread.join(0.05)
    stopper.join()
    done = answer.join()
    assert done.finish_reason is FinishReason.CANCELLED
    assert len(done.tokens) <= 1


@pytest.mark.parametrize("place", ["encoding", "its first pass"])
def test_an_answer_whose_session_is_closed_before_its_first_token_is_a_cancelled_one(
    pair: Pair, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = leases(pair)
    session, closers = pair.session(options("none")), list[Worker]()
    owner: Any = session._transcript if place == "encoding" else session
    name = "open_turn" if place == "encoding" else "_begin"
    called = getattr(owner, name)

    def closing(*given: Any) -> Any:
        closers.append(Worker(session.close))
        while not session._closed:
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
def test_a_signal_handler_may_close_the_pair_while_its_thread_waits_for_the_models(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = pair.session(options("none")), pair.session(options("none"))
    closed = Event()

    def close(*_: object) -> None:
        pair.close()
        closed.set()

    def interrupt() -> None:
        waiting(pair, 2)
        Event().wait(0.05)  # until the main thread waits, and does not only stand in the queue
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


def test_an_answer_stops_between_two_pieces_of_its_prompt(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    before = leases(pair)
    session = pair.session(options("none"), messages=[Message("user", "a"), Message("assistant", "b")])
    with gated(pair, monkeypatch) as gate:
        reader = Worker(lambda: list(session.stream("x" * (3 * PREFILL_CHUNK), max_tokens=5)))
        assert gate.entered.wait(PATIENCE)
        stopper = Worker(lambda: session.reset(session.messages[:2]))
        stopper.thread.join(0.05)
        assert stopper.thread.is_alive()
    stopper.join()
    assert reader.join() == []
    assert [message.content for message in session.messages] == ["a", "b"]
    assert session.generate("and now?", max_tokens=5).tokens == fresh_turn(pair, session.messages[:2], "and now?")
    session.close()
    assert leases(pair) == before


def fresh_turn(pair: Pair, messages: Any, prompt: str) -> tuple[int, ...]:
    with pair.session(options("none"), messages=messages) as session:
        return session.generate(prompt, max_tokens=5).tokens


def test_a_suspended_answer_is_ended_by_whoever_stops_it(pair: Pair) -> None:
    before = leases(pair)
    session = pair.session(options())
    stream = session.stream("hello", max_tokens=50)
    next(stream)
    Worker(session.close).join()
    assert list(stream) == []
    assert [message.role for message in session.messages] == ["user", "assistant"]
    assert leases(pair) == before


@pytest.mark.parametrize("whose", ["its own", "another session", "the pair"])
def test_what_is_closed_in_the_middle_of_a_round_is_closed_when_the_round_is_over(
    pair: Pair, whose: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finalizer or a signal handler does that: waiting would be for ever, and the pass goes on with what is freed."""
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
            assert session._state.length > 0  # nothing is freed yet
        return forward(*words, **named)

    monkeypatch.setattr(pair.target, "forward", closing)
    chunks = Worker(lambda: list(session.stream("hello", max_tokens=20))).join()
    assert len(chunks) == (21 if whose == "another session" else 3)
    if whose != "its own":
        assert list(rest) == []
    session.close()
    other.close()
    assert leases(pair) == ([] if whose == "the pair" else before)


def test_a_pair_is_closed_while_three_threads_answer(hasty: None) -> None:
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


def test_a_session_that_is_dropped_in_an_answer_gives_its_memory_back(pair: Pair) -> None:
    before = leases(pair)

    class Owner:
        """Closes its session when it is collected, in whatever thread and in the middle of whatever that is."""

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
