"""The draft model as drafter: lazy, reconciling to the context, greedy or really sampled."""

from __future__ import annotations

import numpy as np
import pytest

from edgedecode.drafters.model import ModelDrafter, ModelSource
from edgedecode.errors import BudgetExceeded, CapabilityError
from edgedecode.loop import PREFILL_CHUNK
from edgedecode.memory import Budget
from edgedecode.protocols import State
from edgedecode.sampling import Noise, SamplingOptions
from edgedecode.testing import TableModel, toy_tables
from edgedecode.types import DraftMode, FloatArray, ModelCard, Output
from tests.toys import draft_setting, reference_row, toy_model

VOCABULARY = 20


def drafter(model: TableModel, **setting: object) -> ModelDrafter:
    return ModelDrafter(model, draft_setting(VOCABULARY, model=model, **setting))  # type: ignore[arg-type]


def greedy_chain(model: TableModel, context: list[int], length: int) -> tuple[int, ...]:
    tokens = list(context)
    for _ in range(length):
        tokens.append(int(model.logits_after(tokens)[:VOCABULARY].argmax()))
    return tuple(tokens[len(context) :])


def test_it_reads_nothing_before_it_is_asked() -> None:
    model = toy_model(VOCABULARY)
    made = drafter(model)
    made.begin(list(range(VOCABULARY)))
    assert model.passes == []
    made.propose(list(range(VOCABULARY)), 3, Noise(0))
    assert model.passes == [VOCABULARY, 1, 1]  # the last drafted token is not read
    assert model.rows_made == 3


def test_it_proposes_the_arg_max_chain_also_when_the_context_turned_out_otherwise() -> None:
    model = toy_model(VOCABULARY, seed=3)
    made = drafter(model)
    context = [1, 2, 3]
    made.begin(context)
    rng = np.random.default_rng(0)
    rereads = 0
    for _ in range(30):
        draft = made.propose(context, 4, Noise(0))
        assert draft.tokens == greedy_chain(model, context, 4)
        assert draft.mode is DraftMode.DETERMINISTIC
        accepted = int(rng.integers(0, 5))
        rereads += accepted == 4
        context = [*context, *draft.tokens[:accepted], int(rng.integers(0, VOCABULARY))]
    assert rereads > 0


def test_an_unchanged_context_is_proposed_for_again() -> None:
    model = toy_model(VOCABULARY, seed=4)
    made = drafter(model)
    made.begin([5, 6, 7])
    first = made.propose([5, 6, 7], 4, Noise(0))
    assert made.propose([5, 6, 7], 4, Noise(0)) == first


def test_another_conversation_keeps_only_what_is_shared() -> None:
    model = toy_model(VOCABULARY, seed=5)
    made = drafter(model)
    made.begin([1, 2, 3, 4, 5])
    made.propose([1, 2, 3, 4, 5], 2, Noise(0))
    model.passes.clear()
    other = [1, 2, 3, 9, 9, 9]
    made.begin(other)
    assert made.propose(other, 2, Noise(0)).tokens == greedy_chain(model, other, 2)
    assert model.passes == [3, 1]


def test_a_long_context_is_read_in_chunks_without_rows() -> None:
    model = toy_model(VOCABULARY, context=2000)
    made = drafter(model, capacity=2000)
    context = [index % VOCABULARY for index in range(2 * PREFILL_CHUNK + 100)]
    made.begin(context)
    assert made.propose(context, 1, Noise(0)).tokens == greedy_chain(model, context, 1)
    assert model.passes == [PREFILL_CHUNK, PREFILL_CHUNK, 100]
    assert model.rows_made == 1


def test_it_stops_after_an_end_token() -> None:
    model = toy_model(VOCABULARY, seed=6)
    chain = greedy_chain(model, [1, 2], 6)
    made = drafter(model, ends=frozenset({chain[2]}))
    made.begin([1, 2])
    assert made.propose([1, 2], 6, Noise(0)).tokens == chain[: chain.index(chain[2]) + 1]


def test_a_smaller_context_shortens_the_draft_and_then_ends_it() -> None:
    model = toy_model(VOCABULARY, context=16)
    made = drafter(model, capacity=64)
    context = [index % VOCABULARY for index in range(13)]
    made.begin(context)
    assert 1 <= len(made.propose(context, 8, Noise(0))) <= 4
    assert len(made.propose([*context, 1, 2, 3], 8, Noise(0))) == 0
    assert len(made.propose([*context, 1, 2, 3, 4, 5], 8, Noise(0))) == 0


def test_penalties_follow_the_context_and_the_draft() -> None:
    model = toy_model(VOCABULARY, seed=7, scale=0.5)
    options = SamplingOptions(temperature=0.9, repetition_penalty=3.0)
    made = drafter(model, sampling=options)
    context = [1, 2]
    made.begin(context)
    for _ in range(5):
        draft = made.propose(context, 3, Noise(0))
        tokens = list(context)
        for token in draft.tokens:
            greedy = SamplingOptions(repetition_penalty=3.0)
            row = reference_row(model.logits_after(tokens), vocabulary=VOCABULARY, options=greedy, seen=tokens)
            assert row[token] == 1
            tokens.append(token)
        context = [*context, draft.tokens[0], 11]


def test_for_the_ratio_rule_it_draws_and_tells_from_what() -> None:
    model = toy_model(VOCABULARY, seed=8, scale=1.0)
    options = SamplingOptions(temperature=0.8, top_k=6, repetition_penalty=1.2)
    made = drafter(model, sampling=options, sampled=True)
    made.begin([1, 2])
    noise = Noise(5)
    draft = made.propose([1, 2], 4, noise)
    assert draft.mode is DraftMode.SAMPLED
    assert draft.probs is not None
    tokens = [1, 2]
    replay = Noise(5)
    for token, q in zip(draft.tokens, draft.probs, strict=True):
        row = reference_row(model.logits_after(tokens), vocabulary=VOCABULARY, options=options, seen=tokens)
        np.testing.assert_allclose([q.of(id) for id in range(VOCABULARY)], row, atol=1e-6)
        assert token == q.draw(replay.random())
        tokens.append(token)


class TrimmedModel(TableModel):
    """Keeps some rows of the head only; its card says which."""

    def __init__(self, tables: tuple[FloatArray, ...], *, kept: list[int]) -> None:
        super().__init__(tables)
        self._kept = kept
        self.card = ModelCard("trimmed", len(kept), VOCABULARY, 512, token_ids=np.array(kept))
        self._whole = ModelCard("whole", VOCABULARY, VOCABULARY, 512)

    def forward(self, tokens, state: State, **asked) -> Output:  # type: ignore[no-untyped-def, override]
        trimmed, self.card = self.card, self._whole
        output = super().forward(tokens, state, **asked)
        self.card = trimmed
        return Output(output.logits[:, self._kept])


@pytest.mark.parametrize("sampled", [False, True])
def test_a_trimmed_vocabulary_is_mapped_back(sampled: bool) -> None:
    kept = [1, 4, 5, 11, 19]
    tables = toy_tables(VOCABULARY, seed=9)
    model = TrimmedModel(tables, kept=kept)
    options = SamplingOptions(temperature=1.0 if sampled else 0.0)
    made = drafter(model, sampling=options, sampled=sampled)
    whole = TableModel(tables)
    context = [1, 2]
    made.begin(context)
    draft = made.propose(context, 5, Noise(1))
    allowed = [id in kept for id in range(VOCABULARY)]
    for index, token in enumerate(draft.tokens):
        tokens = [*context, *draft.tokens[:index]]
        row = reference_row(
            whole.logits_after(tokens), vocabulary=VOCABULARY, options=options, seen=[], allowed=allowed
        )
        assert row[token] > 0
        if draft.probs is not None:
            np.testing.assert_allclose([draft.probs[index].of(id) for id in range(VOCABULARY)], row, atol=1e-6)


def test_its_memory_is_the_states_and_is_given_back() -> None:
    budget = Budget(10_000)
    model = TableModel(toy_tables(VOCABULARY, seed=0), budget=budget)
    made = ModelSource().open(draft_setting(VOCABULARY, model=model, budget=budget, capacity=100))
    assert made.nbytes == budget.used_nbytes == 800
    made.close()
    assert budget.used_nbytes == 0
    tight = TableModel(toy_tables(VOCABULARY, seed=0), budget=Budget(100))
    with pytest.raises(BudgetExceeded):
        ModelSource().open(draft_setting(VOCABULARY, model=tight))


def test_a_pack_without_a_draft_says_what_to_do() -> None:
    with pytest.raises(CapabilityError, match="no draft model: use --drafter ngram"):
        ModelSource().open(draft_setting(VOCABULARY))
