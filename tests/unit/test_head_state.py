"""Which rows a drafting head reads with features, and which with its own output, until the text differs or is long."""

from collections.abc import Sequence

import numpy as np
import pytest

from edgedecode.arrays import FloatArray
from edgedecode.decoding.heads import HeadOutput
from edgedecode.decoding.model import AdapterUse, ModelCard, Output, RowRequest, State
from edgedecode.decoding.policy import WHOLE, Plan
from edgedecode.drafters.block_state import BlockState
from edgedecode.drafters.head_state import CHUNK, HeadState
from edgedecode.drafters.model_drafter import ModelDrafter
from edgedecode.drafters.model_state import LEAST_WINDOW
from edgedecode.memory.budget import Budget
from edgedecode.sampling.sampler import Noise
from edgedecode.testing import TableState
from tests.toys import draft_setting

VOCABULARY = 50


class Recorder:
    """A target's state whose feature at a position is the position, from `oldest` on."""

    def __init__(self, length: int, oldest: int = 0) -> None:
        self.length, self.oldest = length, oldest

    def keep_features(self) -> "Recorder":
        return self

    def rows(self, start: int, stop: int) -> FloatArray:
        assert self.oldest <= start <= stop <= self.length
        return np.arange(start, stop, dtype=np.float32)[:, None]


class RecordingHead:
    """A head that records each pass: its tokens and what the rows read. Its output is -1 for each row."""

    def __init__(self, context: int = 64) -> None:
        self.card = ModelCard(name="head", rows=VOCABULARY, vocabulary_size=VOCABULARY, context=context)
        self.passes: list[tuple[list[int], list[float]]] = []

    def new_state(self, capacity: int, *, rows: int = 1, tree: bool = False) -> TableState:
        return TableState(capacity, Budget().reserve("kv:head", 8))

    def draft(
        self,
        tokens: Sequence[int],
        state: State,
        *,
        features: FloatArray | None = None,
        hidden: FloatArray | None = None,
    ) -> HeadOutput:
        assert isinstance(state, TableState)
        assert len(state.tokens) + len(tokens) <= state.capacity
        read = features if features is not None else hidden
        assert read is not None
        assert len(read) == len(tokens) > 0
        self.passes.append((list(tokens), read[:, 0].tolist()))
        state.parents += range(-1, len(tokens) - 1)
        state.rows += tokens
        return HeadOutput(np.zeros(VOCABULARY, np.float32), np.full(1, -1.0, np.float32))

    def forward(
        self,
        tokens: Sequence[int],
        state: State,
        *,
        parents: Sequence[int] | None = None,
        rows: RowRequest = "last",
        adapter: AdapterUse | None = None,
    ) -> Output:
        raise AssertionError

    def close(self) -> None:
        """Do nothing."""

    def taken(self) -> list[tuple[list[int], list[float]]]:
        """Return the passes since the last call."""
        found, self.passes = self.passes, []
        return found


@pytest.fixture
def head() -> RecordingHead:
    return RecordingHead()


def opened(head: RecordingHead, target: Recorder, capacity: int = 64) -> HeadState:
    return HeadState(head, target, capacity=capacity)  # type: ignore[arg-type]


def drafted(state: HeadState, context: list[int], *tokens: int, plan: Plan = WHOLE) -> None:
    """Draft these tokens after the context."""
    assert state.reach(context, len(tokens), plan) == len(tokens)
    state.catch_up(context)
    for token in tokens[:-1]:
        state.follow([token])


def test_rows_pair_a_position_with_the_next_token_and_drafts_read_the_last_output(head: RecordingHead) -> None:
    state = opened(head, target := Recorder(3))
    state.begin(context := [10, 11, 12, 13])
    assert state.unread(context) == 3
    drafted(state, context, 20, 21, 22)
    assert head.taken() == [([11, 12, 13], [0, 1, 2]), ([20], [-1]), ([21], [-1])]
    # two of them are accepted, and the target adds one: their rows are read again, with features
    context += [20, 21, 30]
    target.length = 6
    assert state.unread(context) == 3
    drafted(state, context, 40)
    assert head.taken() == [([20, 21, 30], [3, 4, 5])]
    drafted(state, context, 40)  # nothing is new: the last row is read again
    assert head.taken() == [([30], [5])]


def test_a_changed_text_is_read_again_from_the_difference(head: RecordingHead) -> None:
    state = opened(head, Recorder(5))
    state.begin([1, 2, 3, 4, 5, 6])
    drafted(state, [1, 2, 3, 4, 5, 6], 7)
    head.taken()
    state.begin([1, 2, 9, 4, 5, 6])
    drafted(state, [1, 2, 9, 4, 5, 6], 7)
    assert head.taken() == [([9, 4, 5, 6], [1, 2, 3, 4])]


def test_positions_without_features_are_left_out(head: RecordingHead) -> None:
    state = opened(head, target := Recorder(8, oldest=8))
    state.begin(context := list(range(1, 10)))
    assert state.unread(context) == 0
    assert state.reach(context, 4, WHOLE) == 0
    context += [20, 21]
    assert state.reach(context, 4, WHOLE) == 0  # the target has not processed them
    target.length = 10
    assert state.unread(context) == 2
    drafted(state, context, 30)
    assert head.taken() == [([20, 21], [8, 9])]
    target.oldest = target.length = 13  # a gap: the rows before it are dropped
    context += [22, 23, 24, 25]
    target.length = 14
    drafted(state, context, 31)
    assert head.taken() == [([25], [13])]


def test_a_short_text_after_a_long_one_is_read_from_its_start(head: RecordingHead) -> None:
    state = opened(head, target := Recorder(40, oldest=30))
    state.begin(list(range(41)))
    drafted(state, list(range(41)), 1)
    target.length, target.oldest = 4, 0
    head.taken()
    state.begin([7, 8, 9, 6, 5])
    assert state.unread([7, 8, 9, 6, 5]) == 4
    drafted(state, [7, 8, 9, 6, 5], 1)
    assert head.taken() == [([8, 9, 6, 5], [0, 1, 2, 3])]


def test_the_plan_may_limit_what_is_read(head: RecordingHead) -> None:
    state = opened(head, Recorder(20))
    state.begin(context := list(range(21)))
    drafted(state, context, 1, plan=Plan(1, read_max=4))
    assert head.taken() == [([17, 18, 19, 20], [16, 17, 18, 19])]


def test_a_full_window_starts_again_with_its_recent_half() -> None:
    head = RecordingHead(context=LEAST_WINDOW)
    state = opened(head, target := Recorder(LEAST_WINDOW - 20), capacity=4 * LEAST_WINDOW)
    context = [place % VOCABULARY for place in range(LEAST_WINDOW - 19)]
    state.begin(context)
    drafted(state, context, 1)  # the longest draft would not fit
    passes = head.taken()
    assert [len(tokens) for tokens, _ in passes] == [CHUNK] * (LEAST_WINDOW // 2 // CHUNK)
    tokens, read = ([each for one in passes for each in one[index]] for index in (0, 1))
    assert read == list(range(target.length - LEAST_WINDOW // 2, target.length))
    assert tokens == context[-LEAST_WINDOW // 2 :]
    context += [3, 4]
    target.length += 2
    drafted(state, context, 1)
    assert head.taken() == [([3, 4], [target.length - 2, target.length - 1])]


class RecordingBlock(RecordingHead):
    """A block drafter whose first rows are sure, and whose other ones know nothing."""

    longest = 5

    def __init__(self, sure: int) -> None:
        super().__init__()
        self._sure = sure

    def draft_block(self, token: int, state: State, *, features: FloatArray, count: int) -> FloatArray:
        assert isinstance(state, TableState)
        state.parents += range(-1, len(features) - 1)
        state.rows += [token] * len(features)
        rows = np.zeros((count, VOCABULARY), np.float32)
        rows[: self._sure, 7] = 20.0
        return rows

    def link(self, row: FloatArray, before: int) -> None:
        """Do nothing."""


@pytest.mark.parametrize("sure", [0, 2, 5])
@pytest.mark.parametrize(("limit", "rows"), [(4, 4), (9, 5)])
def test_a_block_counts_all_of_its_rows_however_many_tokens_are_kept(sure: int, limit: int, rows: int) -> None:
    block, target = RecordingBlock(sure), Recorder(3)
    drafter = ModelDrafter(
        block,
        draft_setting(VOCABULARY),
        make=lambda: BlockState(block, target, capacity=64),  # type: ignore[arg-type]
    )
    drafter.begin([1, 2, 3, 4])
    draft = drafter.propose([1, 2, 3, 4], limit, Noise(0), Plan(limit, floor=0.5))
    assert draft.tokens == (7,) * min(sure, rows)
    assert draft.at_once == rows
