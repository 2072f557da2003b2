"""A conversation that outgrows its context: whole oldest turns go, and what follows is a new session's."""

from __future__ import annotations

import pytest

from edgedecode.decoding.stats import FinishReason
from edgedecode.errors import BudgetExceeded, CapabilityError, ContextExceeded
from edgedecode.memory.budget import Budget
from edgedecode.memory.limit import Limit
from edgedecode.options import SessionOptions, WhenFull
from edgedecode.pair import Pair
from edgedecode.sampling.sampler import Noise
from edgedecode.sampling.weights import SamplingOptions
from edgedecode.sessions.chunks import Chunk, TurnsDropped
from edgedecode.sessions.session import Session
from edgedecode.testing import TableState
from edgedecode.text.encoder import BYTE_NBYTES, TOKEN_NBYTES
from edgedecode.text.messages import Message
from tests.toys import ascii_pair

CONTEXT = 400
SYSTEM = Message("system", "be brief")
LONG = "one more " * 10
WARM = SamplingOptions(temperature=0.9, top_k=30)


def session(pair: Pair, messages: tuple[Message, ...] = (SYSTEM,), **options: object) -> Session:
    return pair.session(
        SessionOptions(**{"context": CONTEXT, "seed": 3, "ignore_eos": True, **options}),  # type: ignore[arg-type]
        messages=messages,
    )


def reply_after(pair: Pair, messages: tuple[Message, ...], reply: str, *, count: int, drafter: str | None) -> str:
    """Return how a new session with these messages, the user's last, goes on after a beginning of its answer."""
    *before, asked = messages
    with session(pair, tuple(before), drafter="none") as fresh:
        prompt = fresh._transcript.open_turn(asked.content).tokens
        text = pair.tokenizer.decode([*prompt, *pair.tokenizer.encode(reply)], skip_special=False)
        assert pair.tokenizer.encode(text) == [*prompt, *pair.tokenizer.encode(reply)]
        return fresh.collect(fresh.complete(text, max_tokens=count)).text


def fill(made: Session, *, turns: int) -> None:
    """Say this many turns, as long that the fifth does not fit."""
    for turn in range(turns):
        assert made.generate(f"question {turn}", max_tokens=40).stats.dropped_turns == 0


@pytest.mark.parametrize("drafter", ["none", "model", "suffix", None])
def test_whole_oldest_turns_go_before_an_answer_without_room(
    drafter: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "edgedecode.user_notices")
    pair = ascii_pair()
    made = session(pair, drafter=drafter)
    fill(made, turns=4)
    before = made.messages
    chunks = list(made.stream(LONG, max_tokens=30))
    (event,) = (chunk.event for chunk in chunks if chunk.event is not None)
    kept = made.messages[:-2]
    assert kept == (SYSTEM, *before[1 + 2 * event.turns :])
    assert 0 < event.turns < 4
    assert made.stats.dropped_turns == event.turns
    assert event.tokens == made.stats.prompt_tokens <= 0.6 * CONTEXT
    assert caplog.messages == [
        f"the {event.turns} oldest turns were dropped: the conversation no longer fits the context of 400 tokens"
    ]
    with session(pair, kept, drafter="none") as fresh:
        assert fresh.generate(LONG, max_tokens=30).text == "".join(chunk.text for chunk in chunks)
        assert fresh.tokens == made.tokens


def test_as_many_turns_are_kept_as_fit() -> None:
    pair = ascii_pair()
    made = session(pair)
    fill(made, turns=4)
    before = made.messages
    made.generate(LONG, max_tokens=30)
    longer = (SYSTEM, *before[-len(made.messages[1:-2]) - 2 :])
    with session(pair, longer, when_full=WhenFull.STOP) as fresh:
        assert len(fresh._transcript.open_turn(LONG).tokens) > 0.6 * CONTEXT


def test_the_system_messages_are_not_read_again() -> None:
    made = session(ascii_pair())
    fill(made, turns=4)
    done = made.generate(LONG, max_tokens=30)
    assert done.stats.cached_tokens >= len("<|im_start|>system\nbe brief<|im_end|>\n") - 2 * len("<|im_end|>")


@pytest.mark.parametrize("sampling", [None, WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("drafter", ["none", "model", None])
def test_an_answer_goes_on_when_the_context_is_full(drafter: str | None, sampling: SamplingOptions | None) -> None:
    """The answer's first part is what it was, the second that of a new session with what was kept."""
    pair = ascii_pair()
    made = session(pair, drafter=drafter, sampling=sampling)
    fill(made, turns=2)
    before = made.messages
    chunks = list(made.stream("tell me a story", max_tokens=300))
    events = [place for place, chunk in enumerate(chunks) if chunk.event is not None]
    assert len(events) == 1
    first, second = ("".join(chunk.text for chunk in part) for part in (chunks[: events[0]], chunks[events[0] :]))
    assert sum(len(chunk.tokens) for chunk in chunks) == 300
    assert chunks[-1].finish_reason is FinishReason.LENGTH
    assert made.messages[-1].content == first + second
    event = chunks[events[0]].event
    assert event is not None
    kept = made.messages[:-1]
    assert kept == (SYSTEM, *before[1 + 2 * event.turns :], Message("user", "tell me a story"))
    assert event.tokens < CONTEXT
    assert 0 < made.stats.reread_tokens <= event.tokens
    assert made.stats.verified_tokens == 300
    assert not made.stats.context_full
    if sampling is None:
        assert reply_after(pair, kept, first, count=len(second), drafter=drafter) == second


def test_no_noise_is_used_twice_where_an_answer_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tokens come to positions where others of the same answer were drawn."""
    keys: list[int] = []
    key_at = Noise.key_at
    monkeypatch.setattr(Noise, "key_at", lambda noise, place: keys.append(key_at(noise, place)) or keys[-1])
    texts = []
    for _ in range(2):
        keys.clear()
        made = session(ascii_pair(), drafter="none", sampling=WARM)
        fill(made, turns=2)
        before = len(keys)
        done = made.generate("tell me a story", max_tokens=300)
        assert done.stats.dropped_turns > 0
        assert len({*keys[before:]}) == 300 == len(done.tokens)
        texts.append(done.text)
    assert texts[0] == texts[1]


def test_statistics_of_an_answer_that_went_on_count_once() -> None:
    made = session(ascii_pair(), drafter="model", draft_max=4)
    fill(made, turns=2)
    done = made.generate("tell me a story", max_tokens=300)
    stats = done.stats
    assert stats.corrections + stats.bonuses + stats.ended == stats.rounds
    assert stats.verified_tokens == len(done.tokens) == 300
    assert stats.prompt_tokens < CONTEXT - 100  # the first prompt's
    assert 0 < stats.time_to_first_token < stats.prefill_seconds


def test_an_answer_ends_where_it_alone_fills_the_context() -> None:
    made = session(ascii_pair())
    fill(made, turns=2)
    done = made.generate("tell me a story", max_tokens=3000)
    assert done.finish_reason is FinishReason.LENGTH
    assert done.stats.context_full
    assert len(made.tokens) == CONTEXT
    assert made.messages[:2] == (SYSTEM, Message("user", "tell me a story"))
    assert made.generate("and now", max_tokens=10).stats.dropped_turns == 1
    assert [message.content for message in made.messages[:2]] == ["be brief", "and now"]


def test_a_message_that_does_not_fit_alone_is_refused_and_drops_nothing() -> None:
    made = session(ascii_pair())
    fill(made, turns=2)
    before = made.messages, made.tokens
    for prompt in ("x" * 500, "x" * 5000):
        with pytest.raises(ContextExceeded):
            made.stream(prompt)
    assert (made.messages, made.tokens) == before


@pytest.mark.parametrize(("turns", "prompt", "count"), [(4, LONG, 30), (2, "tell me a story", 300)])
def test_turns_that_memory_cannot_encode_go_too(turns: int, prompt: str, count: int) -> None:
    """The budget has room to encode less than the context holds; what fits both is what goes on."""
    with ascii_pair(budget=Budget()) as pair:
        made = session(pair, drafter="none")
        fill(made, turns=turns)
        made._encoder._planned = 0
        made._encoder._lease.resize(0)
        pair.budget.limit = Limit(pair.budget.used_nbytes + 220 * (BYTE_NBYTES + TOKEN_NBYTES))
        done = made.generate(prompt, max_tokens=count)
        assert done.stats.dropped_turns > 0
        assert len(done.tokens) == count
        with pytest.raises(BudgetExceeded, match="encoding a prompt"):
            made.stream("x" * 300)


def test_nothing_is_dropped_on_request() -> None:
    made = session(ascii_pair(), when_full=WhenFull.STOP)
    fill(made, turns=2)
    done = made.generate("tell me a story", max_tokens=300)
    assert done.finish_reason is FinishReason.LENGTH
    assert len(made.tokens) == CONTEXT
    assert len(made.messages) == 7
    with pytest.raises(ContextExceeded, match="the context holds 400"):
        made.generate("more")


def test_a_bare_text_has_no_turns_to_drop() -> None:
    made = session(ascii_pair())
    done = made.collect(made.complete("hello " * 20, max_tokens=3000))
    assert done.finish_reason is FinishReason.LENGTH
    assert len(made.tokens) == CONTEXT


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_stopped_answer_leaves_a_sound_conversation(after: int) -> None:
    """Stopped before its first word it drops nothing, later what was dropped is gone; the next answer is sound."""
    pair = ascii_pair()
    made = session(pair)
    fill(made, turns=4)
    before = made.messages
    answer = made.stream(LONG, max_tokens=30)
    said = "".join(next(answer).text for _ in range(after))
    answer.close()
    if said:
        assert made.messages[-1] == Message("assistant", said)
        assert made.messages[0] == SYSTEM
        assert len(made.messages) < len(before)
    else:
        assert made.messages == before
    messages = made.messages
    with session(pair, messages, drafter="none") as fresh:
        assert fresh.generate("go on", max_tokens=20).text == made.generate("go on", max_tokens=20).text
        assert fresh.messages == made.messages


def test_a_conversation_of_many_turns_never_ends() -> None:
    pair = ascii_pair(ending=2.0)
    made = session(pair)
    events: list[TurnsDropped] = []
    for turn in range(60):
        chunks: list[Chunk] = list(made.stream(f"question {turn}", max_tokens=60))
        events += [chunk.event for chunk in chunks if chunk.event is not None]
        assert chunks[-1].finish_reason is not None
        assert made.messages[0] == SYSTEM
        assert len(made.tokens) <= CONTEXT
    assert len(events) > 5
    assert sum(event.turns for event in events) == 60 - (len(made.messages) - 1) // 2


@pytest.mark.parametrize("drafter", ["none", "model", "suffix", None])
def test_shift_keeps_keys_and_values_of_kept_turns(drafter: str | None) -> None:
    """This model looks at positions and at the token before only, so that its text is that of reading again."""
    texts, read = list[str](), list[int]()
    for when_full in (WhenFull.DROP, WhenFull.SHIFT):
        pair = ascii_pair(ending=-50)  # an end token in an answer would not be encoded again
        made = session(pair, drafter=drafter, when_full=when_full)
        fill(made, turns=4)
        done = made.generate(LONG, max_tokens=30)
        story = made.generate("tell me a story", max_tokens=300)
        texts.append(done.text + story.text)
        read.append(done.stats.prompt_tokens - done.stats.cached_tokens + story.stats.reread_tokens)
        for each in (done, story):
            assert each.stats.dropped_turns > 0
            assert (each.stats.shifted_tokens > 40) == (when_full is WhenFull.SHIFT)
    assert texts[0] == texts[1]
    assert read[1] < read[0] - 80


def test_shift_is_refused_where_the_state_cannot() -> None:
    pair = ascii_pair()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TableState, "shiftable", False)
        before = pair.budget.used_nbytes
        with pytest.raises(CapabilityError, match="--when-full drop prefills the kept turns again"):
            session(pair, when_full=WhenFull.SHIFT)
        assert pair.budget.used_nbytes == before
