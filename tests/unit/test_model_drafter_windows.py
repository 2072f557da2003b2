"""Windows and adapters of the draft model: what it reads, and which positions it reads again."""

import pytest

from edgedecode.decoding.loop import PREFILL_CHUNK
from edgedecode.decoding.model import AdapterSpan, AdapterUse, Output, State
from edgedecode.decoding.policy import Plan
from edgedecode.drafters.model_state import shorter_windows
from edgedecode.errors import BudgetExceeded
from edgedecode.memory.budget import Budget
from edgedecode.sampling.sampler import Noise
from edgedecode.testing import TableModel, toy_tables
from tests.toys import toy_model
from tests.unit.test_model_drafter import VOCABULARY, drafter, greedy_chain


def test_window_of_a_smaller_context_advances_by_half() -> None:
    """Drafts are those of the model after the window; when it is full, its newer half is read again."""
    model = toy_model(VOCABULARY, context=64)
    model_drafter = drafter(model, capacity=512)
    context = [index % VOCABULARY for index in range(13)]
    model_drafter.begin(context)
    start = restarts = 0
    for step in range(150):
        if model_drafter.unread(context) == 32:
            start, restarts = len(context) - 32, restarts + 1
        draft = model_drafter.propose(context, 8, Noise(0))
        assert draft.tokens == greedy_chain(model, context[start:], 8)
        context = [*context, *draft.tokens[: step % 3], step % VOCABULARY]
    assert len(context) > 300
    assert restarts == model.passes.count(32) > 8


def test_shorter_windows_are_those_of_the_larger_contexts() -> None:
    """A memory plan with a shorter context then reserves a window size that sessions try as well."""
    assert shorter_windows(4096) == (2048, 1024, 512)
    assert shorter_windows(1216) == (1024, 512)
    assert shorter_windows(512) == shorter_windows(64) == ()


def test_window_size_follows_the_available_memory() -> None:
    model = TableModel(toy_tables(VOCABULARY, seed=1), context=4096, budget=Budget(8 * 1100))
    model_drafter = drafter(model, capacity=4096)
    assert model_drafter.state.nbytes_of("model") == 8 * 1024
    model_drafter.close()
    with pytest.raises(BudgetExceeded):
        drafter(TableModel(toy_tables(VOCABULARY, seed=1), context=4096, budget=Budget(8 * 511)), capacity=4096)


# -- a window of the latest tokens -------------------------------------------------------------------------------------


def test_propose_far_behind_reads_only_the_latest_tokens_and_continues_from_there() -> None:
    model = toy_model(VOCABULARY, seed=12)
    model_drafter = drafter(model)
    context = [index * 7 % VOCABULARY for index in range(90)]
    model_drafter.begin(context)
    assert model_drafter.unread(context) == 90
    plan = Plan(4, read_max=10)
    assert model_drafter.propose(context, 4, Noise(0), plan).tokens == greedy_chain(model, context[-10:], 4)
    assert model.passes == [10, 1, 1, 1]
    for _ in range(8):  # the context differs from the draft: the window keeps its start
        context = [*context, (context[-1] + 3) % VOCABULARY, 5]
        assert model_drafter.unread(context) == 2
        assert model_drafter.propose(context, 4, Noise(0), plan).tokens == greedy_chain(model, context[80:], 4)
    model.passes.clear()
    model_drafter.begin(context)
    assert model_drafter.propose(context, 2, Noise(0), plan).tokens == greedy_chain(model, context[80:], 2)
    assert max(model.passes) == 1


def test_window_is_discarded_for_another_context() -> None:
    model = toy_model(VOCABULARY, seed=12)
    model_drafter = drafter(model)
    model_drafter.begin([index * 7 % VOCABULARY for index in range(90)])
    model_drafter.propose([index * 7 % VOCABULARY for index in range(90)], 2, Noise(0), Plan(2, read_max=10))
    for other in ([3, 4, 5], [index * 3 % VOCABULARY for index in range(100)]):
        model_drafter.begin(other)
        assert model_drafter.unread(other) == len(other)
        assert model_drafter.propose(other, 3, Noise(0)).tokens == greedy_chain(model, other, 3)


# -- the draft model's own adapter -------------------------------------------------------------------------------------

A, B, HALF_A = AdapterUse("a", "a"), AdapterUse("b", "b"), AdapterUse("a", "a", scale=0.5)


class AdaptedModel(TableModel):
    """A model that records the adapter of each position of its one state, and each pass's width and adapter."""

    def __init__(self, *, context: int = 512) -> None:
        super().__init__(toy_tables(VOCABULARY, seed=12), context=context)
        self.reads: list[tuple[int, AdapterUse | None]] = []
        self.read_with: list[AdapterUse | None] = []
        self.refuses = False

    def forward(self, tokens, state: State, *, adapter: AdapterUse | None = None, **asked) -> Output:  # type: ignore[no-untyped-def, override]
        if adapter is not None and self.refuses:
            raise BudgetExceeded("too little", table="")
        del self.read_with[state.length + state.pending :]
        self.read_with += [adapter] * len(tokens)
        self.reads.append((len(tokens), adapter))
        return super().forward(tokens, state, **asked)


@pytest.mark.parametrize(
    ("before", "after", "read"),
    [
        (AdapterSpan(), AdapterSpan(), [(1, None)]),
        (AdapterSpan(A), AdapterSpan(A), [(1, A)]),
        (AdapterSpan(), AdapterSpan(A), [(20, A)]),
        (AdapterSpan(A), AdapterSpan(), [(20, None)]),
        (AdapterSpan(A), AdapterSpan(B), [(20, B)]),
        (AdapterSpan(A), AdapterSpan(HALF_A), [(20, HALF_A)]),
        (AdapterSpan(), AdapterSpan(A, 15), [(5, A)]),
        (AdapterSpan(A, 15), AdapterSpan(B, 17), [(2, None), (3, B)]),
        (AdapterSpan(A, 15), AdapterSpan(A, 12), [(8, A)]),
        (AdapterSpan(A), AdapterSpan(A, 15), [(15, None), (5, A)]),
        (AdapterSpan(A, 15), AdapterSpan(), [(5, None)]),
    ],
)
def test_adapter_change_reads_again_from_the_first_affected_position(
    before: AdapterSpan, after: AdapterSpan, read: list[tuple[int, AdapterUse | None]]
) -> None:
    model = AdaptedModel()
    model_drafter = drafter(model)
    context = [index * 7 % VOCABULARY for index in range(20)]
    for span in (before, after):
        model.reads.clear()
        model_drafter.state.read_with(span)
        model_drafter.begin(context)
        unread = model_drafter.unread(context)
        assert model_drafter.propose(context, 3, Noise(0)).tokens == greedy_chain(model, context, 3)
        assert model.reads[-2:] == [(1, span.use)] * 2
        assert model.read_with == [span.at(position) for position in range(22)]
    assert model.reads[:-2] == read
    assert max(1, unread) == sum(width for width, _ in read)


def test_adapter_may_begin_within_a_long_prompt() -> None:
    model = AdaptedModel(context=2000)
    model_drafter = drafter(model, capacity=2000)
    context = [index % VOCABULARY for index in range(2 * PREFILL_CHUNK + 100)]
    start = PREFILL_CHUNK + 88
    model_drafter.state.read_with(AdapterSpan(A, start))
    model_drafter.begin(context)
    model_drafter.propose(context, 1, Noise(0))
    assert model.reads == [(PREFILL_CHUNK, None), (88, None), (PREFILL_CHUNK, A), (12, A)]


def test_window_is_read_with_the_adapter_of_its_positions() -> None:
    model = AdaptedModel()
    model_drafter = drafter(model)
    context = [index * 7 % VOCABULARY for index in range(90)]
    for span in (AdapterSpan(A, 85), AdapterSpan(B, 30), AdapterSpan()):
        model_drafter.state.read_with(span)
        model_drafter.begin(context)
        model_drafter.propose(context, 4, Noise(0), Plan(4, read_max=10))
        assert model.read_with == [span.at(80 + position) for position in range(13)]


@pytest.mark.parametrize("start", [0, 15])
def test_adapter_that_exceeds_the_budget_in_a_pass_is_left_out(start: int) -> None:
    """The model drafts without an adapter until another one is chosen."""
    model = AdaptedModel()
    model.refuses = True
    model_drafter = drafter(model)
    context = [index * 7 % VOCABULARY for index in range(20)]
    refused: list[BudgetExceeded] = []
    model_drafter.state.read_with(AdapterSpan(A, start), refused=refused.append)
    model_drafter.begin(context)
    for _ in range(2):
        assert model_drafter.propose(context, 3, Noise(0)).tokens == greedy_chain(model, context, 3)
        assert model.read_with == [None] * 22
    assert len(refused) == 1
