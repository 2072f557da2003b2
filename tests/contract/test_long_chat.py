"""A long chat with the bundled pack on each engine: turns are dropped, and the text equals a new session's."""

from collections.abc import Iterator

import pytest

import edgedecode
from edgedecode import Message, Pair, SamplingOptions, SessionOptions
from tests.toys import session_options

ENGINES = {"onnx": "onnxruntime", "llama": "llama_cpp"}
SYSTEM = Message("system", "You are brief.")
CONTEXT = 384


@pytest.fixture(scope="module", params=ENGINES)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    pytest.importorskip(ENGINES[request.param])
    with edgedecode.load(runtime=request.param) as made:
        yield made


def options(**named: object) -> SessionOptions:
    return session_options(
        **{"context": CONTEXT, "sampling": SamplingOptions(), "ignore_eos": True, **named}  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("drafter", ["none", None], ids=["plain", "scheduled"])
def test_chat_of_20_turns_equals_new_sessions_with_the_kept_turns(pair: Pair, drafter: str | None) -> None:
    """Text is equal where rows do not depend on a pass's width; elsewhere a near tie may flip and only counts agree."""
    dropped = 0
    with pair.session(options(drafter=drafter), messages=[SYSTEM]) as session:
        for turn in range(20):
            chunks = list(session.stream(f"Tell me about boat number {turn}.", max_tokens=24))
            text = "".join(chunk.text for chunk in chunks)
            assert session.messages[0] == SYSTEM
            assert session.messages[-1] == Message("assistant", text)
            assert len(session.tokens) <= CONTEXT
            dropped += session.stats.dropped_turns
            if chunks[0].event is not None and pair.target.card.row_invariant:
                *kept, asked, _ = session.messages
                with pair.session(options(drafter="none"), messages=kept) as fresh:
                    assert fresh.generate(asked.content, max_tokens=24).text == text
    assert dropped >= 6
    assert (len(session.messages) - 1) // 2 == 20 - dropped


def test_chat_answer_that_outgrows_its_context_continues(pair: Pair) -> None:
    with pair.session(options(), messages=[SYSTEM]) as session:
        for turn in range(4):
            session.generate(f"Tell me about boat number {turn}.", max_tokens=24)
        done = session.generate("Tell me a long story.", max_tokens=330)
        assert len(done.tokens) == 330
        assert done.stats.dropped_turns == 4
        assert done.stats.reread_tokens > 100
        assert session.messages[1:] == (Message("user", "Tell me a long story."), Message("assistant", done.text))
