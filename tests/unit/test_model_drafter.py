"""The draft model as drafter: reading lazily, reconciled with the context, greedy or sampled."""

import numpy as np
import pytest

from edgedecode.decoding.drafts import Draft, DraftMode
from edgedecode.decoding.loop import PREFILL_CHUNK
from edgedecode.decoding.policy import Plan
from edgedecode.decoding.verify import Outcome, Verdict
from edgedecode.drafters.model_drafter import ModelDrafter, ModelSource
from edgedecode.errors import BudgetExceeded
from edgedecode.memory.budget import Budget
from edgedecode.sampling.probs import Probs
from edgedecode.sampling.sampler import Noise
from edgedecode.sampling.weights import SamplingOptions
from edgedecode.testing import TableModel, toy_tables
from tests.toys import TrimmedTable, draft_setting, reference_row, toy_model

VOCABULARY = 20


def drafter(model: TableModel, **setting: object) -> ModelDrafter:
    return ModelDrafter(model, draft_setting(VOCABULARY, model=model, **setting))  # type: ignore[arg-type]


def greedy_chain(model: TableModel, context: list[int], length: int) -> tuple[int, ...]:
    tokens = list(context)
    for _ in range(length):
        tokens.append(int(model.logits_after(tokens)[:VOCABULARY].argmax()))
    return tuple(tokens[len(context) :])


def test_model_drafter_reads_nothing_before_the_first_proposal() -> None:
    model = toy_model(VOCABULARY)
    model_drafter = drafter(model)
    model_drafter.begin(list(range(VOCABULARY)))
    assert model.passes == []
    model_drafter.propose(list(range(VOCABULARY)), 3, Noise(0))
    assert model.passes == [VOCABULARY, 1, 1]  # the last drafted token is not read
    assert model.rows_made == 3


def test_propose_reads_a_long_context_in_chunks_without_rows() -> None:
    model = toy_model(VOCABULARY, context=2000)
    model_drafter = drafter(model, capacity=2000)
    context = [index % VOCABULARY for index in range(2 * PREFILL_CHUNK + 100)]
    model_drafter.begin(context)
    assert model_drafter.propose(context, 1, Noise(0)).tokens == greedy_chain(model, context, 1)
    assert model.passes == [PREFILL_CHUNK, PREFILL_CHUNK, 100]
    assert model.rows_made == 1


def test_propose_for_the_ratio_rule_samples_and_returns_the_distributions() -> None:
    model = toy_model(VOCABULARY, seed=8, scale=1.0)
    options = SamplingOptions(temperature=0.8, top_k=6, repetition_penalty=1.2)
    model_drafter = drafter(model, sampling=options, sampled=True)
    model_drafter.begin([1, 2])
    noise = Noise(5)
    draft = model_drafter.propose([1, 2], 4, noise)
    assert draft.mode is DraftMode.SAMPLED
    assert draft.probs is not None
    tokens = [1, 2]
    replay = Noise(5)
    for token, q in zip(draft.tokens, draft.probs, strict=True):
        row = reference_row(model.logits_after(tokens), vocabulary=VOCABULARY, options=options, seen=tokens)
        np.testing.assert_allclose([q.of(id) for id in range(VOCABULARY)], row, atol=1e-6)
        assert token == q.draw(replay.random())
        tokens.append(token)


@pytest.mark.parametrize("sampled", [False, True])
def test_propose_maps_a_trimmed_vocabulary_back(sampled: bool) -> None:
    kept = [1, 4, 5, 11, 19]
    tables = toy_tables(VOCABULARY, seed=9)
    model = TrimmedTable(TableModel(tables), kept)
    options = SamplingOptions(temperature=1.0 if sampled else 0.0)
    model_drafter = drafter(model, sampling=options, sampled=sampled)
    full = TableModel(tables)
    context = [1, 2]
    model_drafter.begin(context)
    draft = model_drafter.propose(context, 5, Noise(1))
    allowed = [id in kept for id in range(VOCABULARY)]
    for index, token in enumerate(draft.tokens):
        tokens = [*context, *draft.tokens[:index]]
        row = reference_row(full.logits_after(tokens), vocabulary=VOCABULARY, options=options, seen=[], allowed=allowed)
        assert row[token] > 0
        if draft.probs is not None:
            np.testing.assert_allclose([draft.probs[index].of(id) for id in range(VOCABULARY)], row, atol=1e-6)


def test_model_drafter_holds_the_memory_of_its_state_and_releases_it() -> None:
    budget = Budget(10_000)
    model = TableModel(toy_tables(VOCABULARY, seed=0), budget=budget)
    model_drafter = ModelSource().open(draft_setting(VOCABULARY, model=model, budget=budget, capacity=100))
    assert model_drafter.nbytes == budget.used_nbytes == 800
    model_drafter.close()
    assert budget.used_nbytes == 0
    tight = TableModel(toy_tables(VOCABULARY, seed=0), budget=Budget(100))
    with pytest.raises(BudgetExceeded):
        ModelSource().open(draft_setting(VOCABULARY, model=tight))


# -- confidence --------------------------------------------------------------------------------------------------------


def observe(model_drafter: ModelDrafter, context: list[int], tokens: tuple[int, ...]) -> list[int]:
    after = [*context, *tokens]
    model_drafter.observe(after, Verdict(Draft(), tokens, (), Outcome.BONUS, None))  # type: ignore[arg-type]
    return after


def test_propose_stops_when_the_full_draft_is_unlikely_to_be_accepted() -> None:
    model = toy_model(VOCABULARY, seed=13)
    lengths: dict[float, int] = {}
    for floor in (0.0, 0.05, 0.3, 0.7, 0.999):
        lengths[floor] = 0
        for first in range(VOCABULARY):
            model_drafter = drafter(model)
            model_drafter.begin([1, first])
            draft = model_drafter.propose([1, first], 8, Noise(0), Plan(8, floor=floor))
            expected, alive, tokens = 0, 1.0, [1, first]
            for _ in range(8):
                row = np.exp(model.logits_after(tokens)[:VOCABULARY].astype(np.float64))
                alive *= row.max() / row.sum()
                if alive < floor:
                    break
                tokens.append(int(row.argmax()))
                expected += 1
            assert draft.tokens == tuple(tokens[2:])
            lengths[floor] += expected
    assert list(lengths.values()) == sorted(lengths.values(), reverse=True)
    assert lengths[0.0] == 8 * VOCABULARY
    assert 0 < lengths[0.7] < lengths[0.05]


def test_observe_learns_from_drafted_and_omitted_tokens() -> None:
    model = toy_model(VOCABULARY, seed=14)
    floor = Plan(4, floor=0.2)

    def proposed(model_drafter: ModelDrafter) -> int:
        return sum(len(_proposal(model_drafter, [1, first], floor)) for first in range(VOCABULARY))

    before = proposed(drafter(model))
    trusted, distrusted = drafter(model), drafter(model)
    for _ in range(10):
        for first in range(VOCABULARY):
            _proposal(trusted, [1, first], floor)
            observe(trusted, [1, first], greedy_chain(model, [1, first], 5))
            _proposal(distrusted, [1, first], floor)
            wrong = (greedy_chain(model, [1, first], 1)[0] + 1) % VOCABULARY
            observe(distrusted, [1, first], (wrong,))
    assert proposed(trusted) > 1.2 * before
    assert proposed(distrusted) < 0.6 * before


def _proposal(model_drafter: ModelDrafter, context: list[int], plan: Plan) -> Draft:
    model_drafter.begin(context)
    return model_drafter.propose(context, 4, Noise(0), plan)


def test_observe_ignores_rounds_without_a_draft_of_this_drafter() -> None:
    model = toy_model(VOCABULARY, seed=14)
    model_drafter = drafter(model)
    context = [1, 2]
    model_drafter.begin(context)
    model_drafter.propose(context, 4, Noise(0), Plan(4, floor=0.1))
    context = observe(model_drafter, context, (3,))
    learned = list(model_drafter._confidence.weights)
    for token in (4, 5, 6):
        context = observe(model_drafter, context, (token,))
    assert model_drafter._confidence.weights == learned != [1.0, 0.0, 0.0]


# -- the target's noise ------------------------------------------------------------------------------------------------


def test_propose_with_the_targets_noise_samples_the_targets_tokens() -> None:
    model = toy_model(VOCABULARY, seed=15, scale=0.7)
    options = SamplingOptions(temperature=0.9, top_k=8, repetition_penalty=1.2)
    noise = Noise(21)
    model_drafter = drafter(model, sampling=options, noise=noise)
    context = [1, 2, 3]
    model_drafter.begin(context)
    draft = model_drafter.propose(context, 6, Noise(5, stream=1))
    assert draft.mode is DraftMode.DETERMINISTIC
    assert noise.position == 0
    tokens = list(context)
    for token in draft.tokens:
        row = reference_row(model.logits_after(tokens), vocabulary=VOCABULARY, options=options, seen=tokens)
        assert token == noise.draw_at(Probs.dense(np.array(row)), len(tokens))
        tokens.append(token)
    assert draft.tokens != greedy_chain(model, context, 6)
