"""States when adapters change: keys and values of one adapter are never used under another."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as some

from edgedecode.adapters.pack_adapters import ActiveAdapter
from edgedecode.decoding.model import AdapterSpan, AdapterUse
from edgedecode.memory.budget import Budget
from edgedecode.sessions.target_reading import TargetReading, adapter_span
from edgedecode.testing import TableState
from edgedecode.user_notices import NOTICES

HEADER = (7, 8)
"""Tokens that activate an adapter."""
ADAPTERS = (
    None,
    ActiveAdapter(AdapterUse("ordinary", "a")),
    ActiveAdapter(AdapterUse("ordinary", "a", scale=0.5)),
    ActiveAdapter(AdapterUse("activated", "b"), HEADER),
    ActiveAdapter(AdapterUse("another", "c"), HEADER),
)


def test_span_of_an_activated_adapter_begins_at_its_most_recent_invocation() -> None:
    activated = ADAPTERS[3]
    assert adapter_span(activated, [1, 7, 8, 2, 7, 8, 3]) == AdapterSpan(activated.use, 4)
    assert adapter_span(activated, [7, 8]) == AdapterSpan(activated.use, 0)
    assert adapter_span(ADAPTERS[1], [7, 8]) == AdapterSpan(AdapterUse("ordinary", "a"), 0)
    assert adapter_span(None, [7, 8]) == AdapterSpan()


def test_span_without_an_invocation_is_off_with_a_notice(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(NOTICES), "propagate", True)
    with caplog.at_level("INFO", logger=NOTICES):
        assert adapter_span(ADAPTERS[3], [1, 8, 7]) == adapter_span(ADAPTERS[3], []) == AdapterSpan()
    assert "the adapter 'activated' stays off" in caplog.text


class Marked(TableState):
    """A state that records the adapter of each position."""

    def __init__(self) -> None:
        super().__init__(64, Budget().reserve("kv:marked", 0))
        self.marks: list[AdapterUse | None] = []

    def read(self, tokens: list[int], span: AdapterSpan) -> None:
        for place in range(len(self.tokens), len(tokens)):
            self.tokens.append(tokens[place])
            self.marks.append(span.use if span.use is not None and place >= span.start else None)

    def crop(self, length: int) -> None:
        super().crop(length)
        del self.marks[length:]


@given(
    steps=some.lists(
        some.tuples(
            some.sampled_from(ADAPTERS),
            some.integers(0, 12),
            some.lists(some.integers(0, 3), max_size=6),
            some.booleans(),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_swaps_read_each_position_as_a_new_conversation_does(
    steps: list[tuple[ActiveAdapter | None, int, list[int], bool]],
) -> None:
    """Random swaps, cuts and interruptions: each position has the adapter that a lone run gives it."""
    state, tokens = Marked(), list[int]()
    reading = TargetReading(state)
    for adapter, kept, added, interrupted in steps:
        prompt = [*tokens[:kept], *added, *HEADER][-60:]
        reading.begin(tokens, prompt, adapter=adapter, prompt=prompt)
        tokens = prompt
        state.read(tokens[: len(tokens) // 2] if interrupted else tokens, reading.span)
        lone = Marked()
        span = adapter_span(adapter, prompt)
        assert span == reading.span
        lone.read(tokens, span)
        assert state.tokens == lone.tokens[: state.length]
        assert state.marks == lone.marks[: state.length]


def test_swap_of_activated_adapters_keeps_the_prompt() -> None:
    state = Marked()
    reading = TargetReading(state)
    prompt = [1, 2, 3, *HEADER]
    reading.begin([], prompt, adapter=ADAPTERS[3], prompt=prompt)
    tokens = [*prompt, 4, 5]
    state.read(tokens, reading.span)
    longer = [*tokens, 6, *HEADER]
    reading.begin(tokens, longer, adapter=ADAPTERS[4], prompt=longer)
    assert state.tokens == [1, 2, 3]  # without the header and the answer, which were computed with the other adapter
    reading.begin(tokens, tokens, adapter=ADAPTERS[1], prompt=tokens)
    assert state.length == 0
