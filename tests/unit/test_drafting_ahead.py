"""A draft model that drafts on after its own draft: as in the next round, however far it came."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgedecode.decoding.beside import Stop, unstopped
from edgedecode.decoding.drafts import Draft
from edgedecode.decoding.policy import WHOLE, Plan
from edgedecode.drafters.model_drafter import ModelDrafter, distributions_nbytes
from edgedecode.memory.budget import Budget
from edgedecode.sampling.sampler import Noise
from edgedecode.sampling.weights import SamplingOptions
from edgedecode.testing import TableModel
from tests.toys import draft_setting, toy_model

VOCABULARY = 20
PROMPT = [1, 2, 3]
WARM = SamplingOptions(temperature=0.8)


def drafter(model: TableModel, **setting: object) -> ModelDrafter:
    return ModelDrafter(model, draft_setting(VOCABULARY, model=model, **setting))  # type: ignore[arg-type]


def after(count: int) -> Stop:
    """Return a stop after this many questions."""
    asked = iter(range(count))
    return lambda: next(asked, None) is None


def begun(made: ModelDrafter, length: int) -> tuple[list[int], Draft]:
    """Return a context and the drafter's first draft after it."""
    context = list(PROMPT)
    made.begin(context)
    return context, made.propose(context, length, Noise(0))


def expected(model: TableModel, context: list[int], draft: Draft) -> list[int]:
    """Return the context after the outcome that is prepared for."""
    tokens = [*context, *draft.tokens]
    return [*tokens, int(model.logits_after(tokens)[:VOCABULARY].argmax())]


def chain(model: TableModel, context: list[int], length: int) -> tuple[int, ...]:
    tokens = list(context)
    for _ in range(length):
        tokens.append(int(model.logits_after(tokens)[:VOCABULARY].argmax()))
    return tuple(tokens[len(context) :])


def test_draft_made_ahead_takes_no_pass_in_its_round() -> None:
    model = toy_model(VOCABULARY, seed=3)
    made = drafter(model)
    context, draft = begun(made, 4)
    made.ahead(draft, 4, Noise(0), plan=WHOLE, stop=unstopped)
    context = expected(model, context, draft)
    model.passes.clear()
    ready = made.propose(context, 4, Noise(0))
    assert ready.tokens == chain(model, context, 4)
    assert ready.ready == 4
    assert model.passes == []


@pytest.mark.parametrize("steps", range(8))
def test_draft_that_was_stopped_is_finished_in_its_round(steps: int) -> None:
    model = toy_model(VOCABULARY, seed=3)
    made = drafter(model)
    context, draft = begun(made, 4)
    made.ahead(draft, 4, Noise(0), plan=WHOLE, stop=after(steps))
    for _ in range(3):  # and what it drafts on from is intact
        context = expected(model, context, draft)
        draft = made.propose(context, 4, Noise(0))
        assert draft.tokens == chain(model, context, 4)
        made.ahead(draft, 4, Noise(0), plan=WHOLE, stop=after(steps))


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 7])
def test_draft_made_ahead_is_cut_or_extended_to_its_round(limit: int) -> None:
    model = toy_model(VOCABULARY, seed=3)
    made = drafter(model)
    context, draft = begun(made, 4)
    for _ in range(4):
        made.ahead(draft, 4, Noise(0), plan=WHOLE, stop=unstopped)
        context = expected(model, context, draft)
        draft = made.propose(context, limit, Noise(0))
        assert draft.tokens == chain(model, context, limit)
        assert draft.ready == min(limit, 4)


@pytest.mark.parametrize("steps", [1, 2, 9])
@pytest.mark.parametrize("accepted", range(5))
def test_draft_made_ahead_for_another_outcome_is_dropped(accepted: int, steps: int) -> None:
    model = toy_model(VOCABULARY, seed=3)
    made = drafter(model)
    context, draft = begun(made, 4)
    made.ahead(draft, 4, Noise(0), plan=WHOLE, stop=after(steps))
    other = (expected(model, [*context], draft)[len(context) + accepted] + 1) % VOCABULARY
    context = [*context, *draft.tokens[:accepted], other]
    found = made.propose(context, 4, Noise(0))
    assert found.tokens == chain(model, context, 4)
    assert found.ready == 0


def test_ahead_prepares_nothing_after_an_end_token() -> None:
    model = toy_model(VOCABULARY, seed=3)
    whole = chain(model, PROMPT, 9)
    for place in range(9):
        made = drafter(model, ends=frozenset({whole[place]}))
        _, draft = begun(made, 4)
        model.passes.clear()
        made.ahead(draft, 4, Noise(0), plan=WHOLE, stop=unstopped)
        first = whole.index(whole[place])
        assert (len(model.passes) == 0) == (first < 4)
        assert len(model.passes) == (0 if first < 4 else 1 if first == 4 else 1 + first - 4)


@pytest.mark.parametrize("spare", range(9))
def test_ahead_ends_where_the_state_is_full(spare: int) -> None:
    model = toy_model(VOCABULARY, seed=3)
    made = drafter(model, capacity=len(PROMPT) + 4 + spare)
    context, draft = begun(made, 4)
    made.ahead(draft, 4, Noise(0), plan=WHOLE, stop=unstopped)
    context = expected(model, context, draft)
    assert made.propose(context, 4, Noise(0)).tokens == chain(model, context, max(0, min(4, spare - 1)))


def test_ahead_under_the_ratio_rule_leases_two_distributions_or_does_nothing() -> None:
    one = distributions_nbytes(VOCABULARY, 4)
    for limit, leased in ((2 * one, 2 * one), (2 * one - 1, one)):
        model = toy_model(VOCABULARY)
        setting = draft_setting(VOCABULARY, model=model, sampling=WARM, sampled=True, budget=Budget(limit))
        made = ModelDrafter(model, replace(setting, draft_max=4, overlap=True))
        assert setting.budget.used_nbytes == leased
        _, draft = begun(made, 4)
        model.passes.clear()
        made.ahead(draft, 4, Noise(0), plan=WHOLE, stop=unstopped)
        assert (len(model.passes) > 0) == (leased == 2 * one)
        made.close()
        assert setting.budget.used_nbytes == 0


def test_draft_made_ahead_ends_by_confidence_as_in_its_round() -> None:
    model = toy_model(VOCABULARY, seed=3)
    plan = Plan(4, floor=0.2)
    made, alone = drafter(model), drafter(model)
    context = list(PROMPT)
    made.begin(context)
    alone.begin(context)
    lengths = set()
    for _ in range(40):
        draft = made.propose(context, 4, Noise(0), plan)
        assert draft.tokens == alone.propose(context, 4, Noise(0), plan).tokens
        lengths.add(len(draft))
        if len(draft):
            made.ahead(draft, 4, Noise(0), plan=plan, stop=unstopped)
        context = expected(model, context, draft)
    assert len(lengths) > 1
