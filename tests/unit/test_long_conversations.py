"""Long conversations: the oldest turns are dropped, and the answers equal those of a new session without them."""

import pytest

from edgedecode.decoding.stats import FinishReason
from edgedecode.errors import BudgetExceeded
from edgedecode.memory.budget import Budget
from edgedecode.memory.limit import Limit
from edgedecode.options import WhenFull
from edgedecode.pair import Pair
from edgedecode.sampling.sampler import Noise
from edgedecode.sampling.weights import SamplingOptions
from edgedecode.sessions.chunks import Chunk, TurnsDropped
from edgedecode.sessions.session import Session
from edgedecode.text.encoder import BYTE_NBYTES, TOKEN_NBYTES
from edgedecode.text.messages import Message
from tests.toys import ascii_pair, session_options

CONTEXT = 400
SYSTEM = Message("system", "be brief")
LONG = "one more " * 10
WARM = SamplingOptions(temperature=0.9, top_k=30)


def session(pair: Pair, messages: tuple[Message, ...] = (SYSTEM,), **options: object) -> Session:
    return pair.session(
        session_options(**{"context": CONTEXT, "seed": 3, "ignore_eos": True, **options}), messages=messages
    )


def reply_after(pair: Pair, messages: tuple[Message, ...], reply: str, *, count: int, drafter: str | None) -> str:
    """Return how a new session continues `reply`, the beginning of an answer to the last of these messages."""
    *before, asked = messages
    with session(pair, tuple(before), drafter="none") as fresh:
        prompt = fresh._turns.transcript.open_turn(Message("user", asked.content)).tokens
        text = pair.tokenizer.decode([*prompt, *pair.tokenizer.encode(reply)], skip_special=False)
        assert pair.tokenizer.encode(text) == [*prompt, *pair.tokenizer.encode(reply)]
        return fresh.collect(fresh.complete(text, max_tokens=count)).text


def fill(chat: Session, *, turns: int) -> None:
    """Add this many turns, so long that a fifth would not fit."""
    for turn in range(turns):
        assert chat.generate(f"question {turn}", max_tokens=40).stats.dropped_turns == 0


@pytest.mark.parametrize("drafter", ["none", "model", "suffix", None])
def test_session_drops_the_oldest_turns_before_an_answer_that_does_not_fit(
    drafter: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "edgedecode.user_notices")
    pair = ascii_pair()
    chat = session(pair, drafter=drafter)
    fill(chat, turns=4)
    before = chat.messages
    chunks = list(chat.stream(LONG, max_tokens=30))
    (event,) = (chunk.event for chunk in chunks if chunk.event is not None)
    kept = chat.messages[:-2]
    assert kept == (SYSTEM, *before[1 + 2 * event.turns :])
    assert 0 < event.turns < 4
    assert chat.stats.dropped_turns == event.turns
    assert event.tokens == chat.stats.prompt_tokens <= 0.6 * CONTEXT
    assert caplog.messages == [
        f"the {event.turns} oldest turns were dropped: the conversation no longer fits the context of 400 tokens"
    ]
    with session(pair, kept, drafter="none") as fresh:
        assert fresh.generate(LONG, max_tokens=30).text == "".join(chunk.text for chunk in chunks)
        assert fresh.tokens == chat.tokens


def test_session_keeps_as_many_turns_as_fit() -> None:
    pair = ascii_pair()
    chat = session(pair)
    fill(chat, turns=4)
    before = chat.messages
    chat.generate(LONG, max_tokens=30)
    longer = (SYSTEM, *before[-len(chat.messages[1:-2]) - 2 :])
    with session(pair, longer, when_full=WhenFull.STOP) as fresh:
        assert len(fresh._turns.transcript.open_turn(Message("user", LONG)).tokens) > 0.6 * CONTEXT


def test_session_does_not_prefill_the_system_messages_again() -> None:
    chat = session(ascii_pair())
    fill(chat, turns=4)
    done = chat.generate(LONG, max_tokens=30)
    assert done.stats.cached_tokens >= len("<|im_start|>system\nbe brief<|im_end|>\n") - 2 * len("<|im_end|>")


@pytest.mark.parametrize("sampling", [None, WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("drafter", ["none", "model", None])
def test_session_continues_an_answer_when_the_context_is_full(
    drafter: str | None, sampling: SamplingOptions | None
) -> None:
    """The part after the dropped turns equals a new session's answer with the kept messages."""
    pair = ascii_pair()
    chat = session(pair, drafter=drafter, sampling=sampling)
    fill(chat, turns=2)
    before = chat.messages
    chunks = list(chat.stream("tell me a story", max_tokens=300))
    events = [place for place, chunk in enumerate(chunks) if chunk.event is not None]
    assert len(events) == 1
    first, second = ("".join(chunk.text for chunk in part) for part in (chunks[: events[0]], chunks[events[0] :]))
    assert sum(len(chunk.tokens) for chunk in chunks) == 300
    assert chunks[-1].finish_reason is FinishReason.LENGTH
    assert chat.messages[-1].content == first + second
    event = chunks[events[0]].event
    kept = chat.messages[:-1]
    assert kept == (SYSTEM, *before[1 + 2 * event.turns :], Message("user", "tell me a story"))
    assert event.tokens < CONTEXT
    assert 0 < chat.stats.reread_tokens <= event.tokens
    assert chat.stats.verified_tokens == 300
    assert not chat.stats.context_full
    if sampling is None:
        assert reply_after(pair, kept, first, count=len(second), drafter=drafter) == second


def test_session_uses_no_noise_twice_in_a_continued_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the drop, tokens are sampled at positions where earlier tokens of the answer were sampled."""
    keys: list[int] = []
    key_at = Noise.key_at
    monkeypatch.setattr(Noise, "key_at", lambda noise, place: keys.append(key_at(noise, place)) or keys[-1])
    texts = []
    for _ in range(2):
        keys.clear()
        chat = session(ascii_pair(), drafter="none", sampling=WARM)
        fill(chat, turns=2)
        before = len(keys)
        done = chat.generate("tell me a story", max_tokens=300)
        assert done.stats.dropped_turns > 0
        assert len({*keys[before:]}) == 300 == len(done.tokens)
        texts.append(done.text)
    assert texts[0] == texts[1]


def test_stats_of_a_continued_answer_count_every_token_once() -> None:
    chat = session(ascii_pair(), drafter="model", draft_max=4)
    fill(chat, turns=2)
    done = chat.generate("tell me a story", max_tokens=300)
    stats = done.stats
    assert stats.corrections + stats.bonuses + stats.ended == stats.rounds
    assert stats.verified_tokens == len(done.tokens) == 300
    assert stats.prompt_tokens < CONTEXT - 100  # the first prompt's
    assert 0 < stats.time_to_first_token < stats.prefill_seconds


def test_session_ends_an_answer_that_alone_fills_the_context() -> None:
    chat = session(ascii_pair())
    fill(chat, turns=2)
    done = chat.generate("tell me a story", max_tokens=3000)
    assert done.finish_reason is FinishReason.LENGTH
    assert done.stats.context_full
    assert len(chat.tokens) == CONTEXT
    assert chat.messages[:2] == (SYSTEM, Message("user", "tell me a story"))
    assert chat.generate("and now", max_tokens=10).stats.dropped_turns == 1
    assert [message.content for message in chat.messages[:2]] == ["be brief", "and now"]


@pytest.mark.parametrize(("turns", "prompt", "count"), [(4, LONG, 30), (2, "tell me a story", 300)])
def test_session_drops_turns_that_memory_cannot_encode(turns: int, prompt: str, count: int) -> None:
    """The budget allows less text to be encoded than the context holds; the kept turns fit both."""
    with ascii_pair(budget=Budget()) as pair:
        chat = session(pair, drafter="none")
        fill(chat, turns=turns)
        chat._turns._encoder._planned = 0
        chat._turns._encoder._lease.resize(0)
        pair.budget.limit = Limit(pair.budget.used_nbytes + 220 * (BYTE_NBYTES + TOKEN_NBYTES))
        done = chat.generate(prompt, max_tokens=count)
        assert done.stats.dropped_turns > 0
        assert len(done.tokens) == count
        with pytest.raises(BudgetExceeded, match="encoding a prompt"):
            chat.stream("x" * 300)


@pytest.mark.parametrize("after", [0, 1, 3])
def test_session_continues_correctly_after_a_stopped_answer(after: int) -> None:
    """An answer stopped before its first chunk drops nothing; one stopped later has dropped turns for good."""
    pair = ascii_pair()
    chat = session(pair)
    fill(chat, turns=4)
    before = chat.messages
    answer = chat.stream(LONG, max_tokens=30)
    text = "".join(next(answer).text for _ in range(after))
    answer.close()
    if text:
        assert chat.messages[-1] == Message("assistant", text)
        assert chat.messages[0] == SYSTEM
        assert len(chat.messages) < len(before)
    else:
        assert chat.messages == before
    messages = chat.messages
    with session(pair, messages, drafter="none") as fresh:
        assert fresh.generate("go on", max_tokens=20).text == chat.generate("go on", max_tokens=20).text
        assert fresh.messages == chat.messages


def test_session_keeps_answering_over_many_turns() -> None:
    pair = ascii_pair(ending=2.0)
    chat = session(pair)
    events: list[TurnsDropped] = []
    for turn in range(60):
        chunks: list[Chunk] = list(chat.stream(f"question {turn}", max_tokens=60))
        events += [chunk.event for chunk in chunks if chunk.event is not None]
        assert chunks[-1].finish_reason is not None
        assert chat.messages[0] == SYSTEM
        assert len(chat.tokens) <= CONTEXT
    assert len(events) > 5
    assert sum(event.turns for event in events) == 60 - (len(chat.messages) - 1) // 2
