"""Several threads on one pair: every answer equals that of a single run, and any thread may stop any answer.

The toy model overwrites its returned rows at its next pass, so that an answer that used another session's rows, or its
own rows after another pass, would fail or differ.
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
from edgedecode.fair_lock import FairLock
from edgedecode.memory.budget import Budget
from edgedecode.options import SessionOptions
from edgedecode.pair import Pair
from edgedecode.sampling.weights import SamplingOptions
from edgedecode.sessions.chunks import Completion
from edgedecode.sessions.session import Session
from edgedecode.text.messages import Message
from tests.toys import ascii_pair, session_options

PATIENCE = 60.0
"""Seconds after which a test counts as hanging."""
WARM = SamplingOptions(temperature=0.9, top_k=40)
PROMPTS = ["hello", "tell me, tell me, tell me", "and then?", "once upon a time"]
DRAFTERS = ["none", "model", "suffix", "recycle", "tree"]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Yield a pair whose lazily made parts exist, so that leases can be compared."""
    made = ascii_pair(noise=0.4, context=2048, budget=Budget())
    for drafter in DRAFTERS:
        made.session(options(drafter)).close()
    with made:
        yield made


@pytest.fixture
def hasty() -> Iterator[None]:
    """Make threads alternate every few lines."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def leases(pair: Pair) -> list[tuple[str, int]]:
    return sorted((lease.name, lease.nbytes) for lease in pair.budget.leases)


@dataclass
class Worker:
    """A thread and the outcome of its work."""

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
    """Hold the target's passes: `entered` is set when one waits, `go` lets all run."""

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
    length = 6 if drafter == "tree" else 3  # smaller trees are chains
    return session_options(**{"drafter": drafter, "draft_max": length, "seed": 5, "sampling": sampling, **named})


def answered(pair: Pair, prompt: str, chosen: SessionOptions, *, max_tokens: int = 30) -> Completion:
    with pair.session(chosen) as session:
        return session.generate(prompt, max_tokens=max_tokens)


# -- answers -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [None, WARM], ids=["greedy", "sampled"])
def test_threads_get_the_answers_of_single_runs(pair: Pair, sampling: SamplingOptions | None, hasty: None) -> None:
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


def test_threads_finish_a_round_before_another_sessions_pass(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between a pass of a session and the end of its round no other session's pass runs, and rounds alternate."""
    passes = list[tuple[str, int]]()
    target: Any = pair.target
    forward, keep = target.forward, type(pair.session(options("none"))._turns.state).keep  # type: ignore[attr-defined]

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
    assert {state for _, state in passes} == {id(session._turns.state) for session in sessions}


def test_threads_answer_during_the_prefill_of_a_long_prompt(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    order = list[str]()
    target: Any = pair.target
    long, short = pair.session(options("none")), pair.session(options("none"))
    forward, ready = target.forward, Event()

    def passed(tokens: Any, state: Any, **named: Any) -> Any:
        name = "long" if state is long._turns.state else "short"
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
    """Wait until `count` threads wait for the models."""
    while len(pair.turn._queue) < count:
        Event().wait(0.001)


def test_threads_may_open_and_close_sessions_while_others_answer(hasty: None) -> None:
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


def test_generate_stopped_by_another_thread_is_cancelled(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_interrupt_between_two_pieces_of_the_prompt(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    before = leases(pair)

    def interrupt(_: FairLock) -> None:
        raise KeyboardInterrupt

    session = pair.session(options("none"), messages=[Message("user", "a"), Message("assistant", "b")])
    with monkeypatch.context() as patch:
        patch.setattr(FairLock, "pass_on", interrupt)
        answer = session.stream("x" * (3 * PREFILL_CHUNK), max_tokens=5)
        with pytest.raises(KeyboardInterrupt):
            next(answer)
    assert answer.ended
    assert [message.content for message in session.messages] == ["a", "b"]
    assert session.generate("and now?", max_tokens=5).tokens == fresh_turn(pair, session.messages[:2], "and now?")
    session.close()
    assert leases(pair) == before


def fresh_turn(pair: Pair, messages: Any, prompt: str) -> tuple[int, ...]:
    with pair.session(options("none"), messages=messages) as session:
        return session.generate(prompt, max_tokens=5).tokens


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
