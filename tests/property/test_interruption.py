"""A reply may be abandoned anywhere: the session continues like a new session with the remaining transcript.

Interrupts are raised before and after the real work of every call to the target, the drafter, the verifier and the
detokenizer, one run for each. The pair generates printable ASCII only, so that ids and text correspond.
"""

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedecode.decoding.stats import FinishReason
from edgedecode.drafters.model_drafter import ModelDrafter
from edgedecode.drafters.recycle import RecycleDrafter
from edgedecode.drafters.suffix import SuffixDrafter
from edgedecode.drafters.tree_drafter import TreeDrafter
from edgedecode.options import SessionOptions
from edgedecode.pair import Pair
from edgedecode.sampling.weights import SamplingOptions
from edgedecode.sessions.chunks import Chunk
from edgedecode.sessions.session import Session
from edgedecode.testing import TableModel, TableState
from edgedecode.text.messages import Message
from edgedecode.text.token_text import Detokenizer
from edgedecode.text.tokenizer import Tokenizer
from tests.toys import ascii_pair, check_accounts

WARM = SamplingOptions(temperature=0.9, top_k=40, repetition_penalty=1.1)
FIRST, NEXT = "tell me, tell me, tell me", "and then, tell me?"
MAX_TOKENS = 14
SEED = 6
WAYS: list[tuple[str, SamplingOptions | None]] = [(name, None) for name in ("model", "suffix", "tree")]
WAYS += [(name, WARM) for name in ("model", "recycle", "tree", "none")]
EVERY_WAY = pytest.mark.parametrize(
    ("drafter", "sampling"), WAYS, ids=[name if warm is None else f"{name}, sampled" for name, warm in WAYS]
)


OPENED: list[Session] = []


@pytest.fixture(autouse=True)
def all_are_closed() -> Iterator[None]:
    """Close all sessions: open ones would hold ever more leases of the pair that tests share."""
    yield
    while OPENED:
        OPENED.pop().close()


def open_session(
    drafter: str = "model",
    sampling: SamplingOptions | None = None,
    *,
    messages: Sequence[Message] = (),
    tokenizer: Tokenizer | None = None,
    ending: float = 0.0,
    seed: int = SEED,
) -> Session:
    length = 4 if drafter == "tree" else 3  # smaller trees are chains
    options = SessionOptions(sampling=sampling, drafter=drafter, draft_max=length, seed=seed)
    pair = shared_pair(tokenizer, ending)
    if drafter in ("suffix", "recycle"):  # these would draft from the outputs of other sessions of the pair
        pair = ascii_pair(noise=0.4, tokenizer=tokenizer, ending=ending)
    session = pair.session(options, messages=messages)
    OPENED.append(session)
    return session


@functools.cache
def shared_pair(tokenizer: Tokenizer | None, ending: float) -> Pair:
    """Return one pair for many sessions, which cache nothing in it."""
    return ascii_pair(noise=0.4, tokenizer=tokenizer, ending=ending)


def check_state(session: Session) -> None:
    """Check that the target's KV state is a prefix of the session's tokens."""
    state: Any = session._turns.state
    assert state.tokens == list(session.tokens[: state.length])


@dataclass(frozen=True)
class NextTurn:
    """A session's next reply, and its tokens and messages after it."""

    tokens: Sequence[int]
    text: str
    context: Sequence[int]
    messages: Sequence[Message]


@functools.cache
def next_turn_of_a_fresh_session(
    messages: Sequence[Message], seed: int, *, drafter: str, sampling: SamplingOptions | None
) -> NextTurn:
    """Return the next turn of a fresh session, cached per transcript: many interrupts leave the same one."""
    fresh = open_session(drafter, sampling, messages=messages, seed=seed)
    done = fresh.generate(NEXT, max_tokens=MAX_TOKENS)
    return NextTurn(done.tokens, done.text, fresh.tokens, fresh.messages)


def check_continues_like_a_fresh_session(session: Session, drafter: str, sampling: SamplingOptions | None) -> None:
    """Check that the next turn equals that of a new session with the same transcript and seed, token for token."""
    messages = session.messages
    assert [message.role for message in messages] == ["user", "assistant"] * (len(messages) // 2)
    done = session.generate(NEXT, max_tokens=MAX_TOKENS)
    expected = next_turn_of_a_fresh_session(messages, session.seed, drafter=drafter, sampling=sampling)
    assert done.tokens == expected.tokens
    assert done.text == expected.text
    assert session.tokens == expected.context
    assert session.messages == expected.messages
    check_accounts(done.stats, emitted=len(done.tokens))


# -- closing a stream --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@EVERY_WAY
def test_stream_may_be_closed_after_every_chunk(drafter: str, sampling: SamplingOptions | None) -> None:
    whole = list(open_session(drafter, sampling).stream(FIRST, max_tokens=MAX_TOKENS))
    text = "".join(chunk.text for chunk in whole)
    reused = 0
    for count in range(1, len(whole) + 1):
        session = open_session(drafter, sampling)
        stream = session.stream(FIRST, max_tokens=MAX_TOKENS)
        seen = [next(stream) for _ in range(count)]
        close(stream)
        assert seen == whole[:count]
        assert session.messages[0] == Message("user", FIRST)
        assert text.startswith(session.messages[1].content)
        assert session.messages[1].content.startswith("".join(chunk.text for chunk in seen))
        check_state(session)
        assert list(stream) == []
        check_continues_like_a_fresh_session(session, drafter, sampling)
        reused += session.stats.cached_tokens
    assert reused > 0


def test_stop_string_text_held_back_is_part_of_the_transcript() -> None:
    whole = open_session().generate(FIRST, max_tokens=MAX_TOKENS).text
    session = open_session()
    stream = session.stream(FIRST, max_tokens=MAX_TOKENS, stop=[whole[2:12] + "never"])
    emitted = 0
    while emitted < 6:
        emitted += len(next(stream).tokens)
    close(stream)
    content = session.messages[1].content
    assert content == whole[: len(content)]
    assert len(content) >= 6
    before = session.tokens
    check_continues_like_a_fresh_session(session, "model", None)
    assert session.tokens[: len(before)] == before


def close(stream: Iterator[Chunk]) -> None:
    stream.close()  # type: ignore[attr-defined]


def test_stream_that_was_never_started_adds_nothing() -> None:
    session = open_session()
    stream = session.stream(FIRST)
    close(stream)
    assert session.messages == ()
    assert session.tokens == ()
    check_continues_like_a_fresh_session(session, "model", None)


@pytest.mark.parametrize("started", [0, 1, 3])
def test_stream_start_closes_the_previous_stream(started: int) -> None:
    session = open_session()
    first = session.stream(FIRST, max_tokens=MAX_TOKENS)
    seen = [next(first) for _ in range(started)]
    second = session.stream(NEXT, max_tokens=MAX_TOKENS)
    assert list(first) == []
    shown = "".join(chunk.text for chunk in seen)
    if started:
        assert session.messages[0].content == FIRST
        assert session.messages[1].content.startswith(shown)
    else:
        assert session.messages == ()
    fresh = open_session(messages=session.messages)
    assert list(second) == list(fresh.stream(NEXT, max_tokens=MAX_TOKENS))
    assert session.tokens == fresh.tokens


def test_stream_dropped_without_closing_is_closed_by_the_next() -> None:
    session = open_session()
    next(session.stream(FIRST, max_tokens=MAX_TOKENS))
    done = session.generate(NEXT, max_tokens=MAX_TOKENS)
    fresh = open_session(messages=session.messages[:2])
    assert fresh.messages[1].role == "assistant"
    assert fresh.generate(NEXT, max_tokens=MAX_TOKENS).tokens == done.tokens


@pytest.mark.parametrize("other", ["complete", "reset", "refused"])
def test_stream_is_closed_by_other_calls(other: str) -> None:
    session = open_session()
    stream = session.stream(FIRST, max_tokens=MAX_TOKENS)
    next(stream)
    if other == "complete":
        session.collect(session.complete("once upon", max_tokens=5))
        check_state(session)
    elif other == "reset":
        session.reset([Message("user", "a"), Message("assistant", "b")])
    else:
        with pytest.raises(ValueError, match="prompt is too long"):
            session.stream("x" * 1000)
    assert list(stream) == []
    check_continues_like_a_fresh_session(session, "model", None)


# -- interrupts at every call ------------------------------------------------------------------------------------------


@dataclass
class Interrupter:
    """Count calls, and raise KeyboardInterrupt in the one numbered `at`, before or after its work."""

    at: int = -1
    after: bool = False
    calls: int = 0

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def wrapped(*arguments: Any, **settings: Any) -> Any:
            number, self.calls = self.calls, self.calls + 1
            if number == self.at and not self.after:
                raise KeyboardInterrupt
            result = call(*arguments, **settings)
            if number == self.at:
                raise KeyboardInterrupt
            return result

        return wrapped


PLACES: dict[str, tuple[Any, str]] = {
    "forward": (TableModel, "forward"),  # the target's and the draft's
    "propose": (ModelDrafter, "propose"),
    "propose suffix": (SuffixDrafter, "propose"),
    "propose recycle": (RecycleDrafter, "propose"),
    "propose tree": (TreeDrafter, "propose"),
    "observe tree": (TreeDrafter, "observe"),
    "observe": (ModelDrafter, "observe"),
    "observe recycle": (RecycleDrafter, "observe"),
    "verify": (sys.modules["edgedecode.decoding.loop"], "verify"),
    "detokenizer": (Detokenizer, "push"),
    "begin": (ModelDrafter, "begin"),
}


DRAFTERS = {ModelDrafter: "model", SuffixDrafter: "suffix", RecycleDrafter: "recycle", TreeDrafter: "tree"}
CALLED = [
    (place, *way) for place, (owner, _) in PLACES.items() for way in WAYS if way[0] == DRAFTERS.get(owner, way[0])
]


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("place", "drafter", "sampling"), CALLED)
def test_interrupt_at_any_call_leaves_a_usable_session(
    place: str, drafter: str, sampling: SamplingOptions | None, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name = PLACES[place]
    original = getattr(owner, name)
    whole = open_session(drafter, sampling).generate(FIRST, max_tokens=MAX_TOKENS)
    counter = Interrupter()
    monkeypatch.setattr(owner, name, counter.wrap(original))
    open_session(drafter, sampling).generate(FIRST, max_tokens=MAX_TOKENS)
    calls = counter.calls
    assert calls >= (1 if place == "begin" else 4)
    kept = 0
    for at in range(calls):
        monkeypatch.setattr(owner, name, Interrupter(at, after).wrap(original))
        session = open_session(drafter, sampling)
        with pytest.raises(KeyboardInterrupt):
            session.generate(FIRST, max_tokens=MAX_TOKENS)
        monkeypatch.setattr(owner, name, original)
        check_state(session)
        shown = "".join(message.content for message in session.messages[1:])
        assert whole.text.startswith(shown)
        assert bool(shown) == bool(session.messages)
        kept += len(shown)
        check_continues_like_a_fresh_session(session, drafter, sampling)
    assert kept > 0 or place == "begin"


@pytest.mark.parametrize("place", ["forward", "verify", "detokenizer"])
def test_interrupt_in_complete_leaves_a_usable_session(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name = PLACES[place]
    original = getattr(owner, name)
    for at in range(6):
        monkeypatch.setattr(owner, name, Interrupter(at).wrap(original))
        session = open_session()
        with pytest.raises(KeyboardInterrupt):
            session.collect(session.complete("once upon a time", max_tokens=MAX_TOKENS))
        monkeypatch.setattr(owner, name, original)
        check_state(session)
        assert session.messages == ()
        done = session.collect(session.complete("once upon a time", max_tokens=MAX_TOKENS))
        fresh = open_session()
        assert done.tokens == fresh.collect(fresh.complete("once upon a time", max_tokens=MAX_TOKENS)).tokens
        check_continues_like_a_fresh_session(session, "model", None)


def test_interrupt_between_keep_and_count_is_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state is then ahead of the tokens; the next turn rolls it back."""
    original = TableState.keep
    for at in range(6):
        monkeypatch.setattr(TableState, "keep", Interrupter(at, after=True).wrap(original))
        session = open_session()
        with pytest.raises(KeyboardInterrupt):
            session.generate(FIRST, max_tokens=MAX_TOKENS)
        monkeypatch.setattr(TableState, "keep", original)
        check_continues_like_a_fresh_session(session, "model", None)


@given(cuts=st.lists(st.integers(0, 9), min_size=1, max_size=5), data=st.data())
@settings(max_examples=25)
def test_interrupts_in_a_long_conversation(cuts: list[int], data: st.DataObject) -> None:
    drafter, sampling = data.draw(st.sampled_from(WAYS))
    session = open_session(drafter, sampling)
    for turn, cut in enumerate(cuts):
        stream = session.stream(f"turn {turn}", max_tokens=8)
        for _, _ in zip(range(cut), stream, strict=False):
            pass
        close(stream)
        check_state(session)
    check_continues_like_a_fresh_session(session, drafter, sampling)


# -- turns -------------------------------------------------------------------------------------------------------------


@EVERY_WAY
def test_generate_reuses_the_kv_cache_and_equals_a_fresh_session(
    drafter: str, sampling: SamplingOptions | None
) -> None:
    session = open_session(drafter, sampling)
    for turn in range(4):
        messages = session.messages
        done = session.generate(f"turn {turn}, tell me", max_tokens=MAX_TOKENS)
        fresh = open_session(drafter, sampling, messages=messages, seed=session.seed)
        assert fresh.generate(f"turn {turn}, tell me", max_tokens=MAX_TOKENS).tokens == done.tokens
        assert fresh.stats.cached_tokens == 0
        assert (session.stats.cached_tokens > 0) == (turn > 0)
        check_state(session)
        check_accounts(done.stats, emitted=len(done.tokens))


@pytest.mark.parametrize("drafter", ["model", "none"])
@pytest.mark.parametrize("length", [1, 2, 4])
def test_stop_string_leaves_a_usable_session(drafter: str, length: int) -> None:
    whole = open_session(drafter).generate(FIRST, max_tokens=MAX_TOKENS)
    surplus = 0
    for place in range(1, MAX_TOKENS - length):
        stop = whole.text[place : place + length]
        session = open_session(drafter)
        done = session.generate(FIRST, max_tokens=MAX_TOKENS, stop=[stop])
        found = whole.text.index(stop)
        assert done.text == whole.text[:found]
        assert done.tokens == whole.tokens[: found + length]
        assert done.finish_reason is FinishReason.STOP
        assert session.messages[-1].content == done.text
        assert done.stats.verified_tokens == len(done.tokens)
        surplus += done.stats.accepted + done.stats.rounds - len(done.tokens)
        check_continues_like_a_fresh_session(session, drafter, None)
    assert (surplus > 0) == (drafter == "model")  # a draft ran past the stop string, and was cut back


def test_end_token_between_turns_is_not_read_twice() -> None:
    session = open_session(ending=8.0)
    assert session.generate(FIRST, max_tokens=200).finish_reason is FinishReason.STOP
    before = session.tokens
    session.generate(NEXT, max_tokens=3)
    assert session.tokens[: len(before)] == before
    assert session.stats.cached_tokens >= len(before) - 1


def test_saved_conversation_continues_the_same() -> None:
    session = open_session(sampling=WARM)
    session.generate(FIRST, max_tokens=MAX_TOKENS)
    saved = [{"role": message.role, "content": message.content} for message in session.messages]
    other = open_session(sampling=WARM)
    other.generate("something else", max_tokens=5)
    other.reset([Message(**message) for message in saved])
    expected = session.generate(NEXT, max_tokens=MAX_TOKENS)
    restored = open_session(sampling=WARM, messages=[Message(**message) for message in saved], seed=session.seed)
    for made in (restored, other):
        assert made.generate(NEXT, max_tokens=MAX_TOKENS).tokens == expected.tokens
        assert made.messages == session.messages
