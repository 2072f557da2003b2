"""The chained drafter: a model's head, and what followed it before; it shares the session's drafters or has its own."""

from __future__ import annotations

import pytest

from edgedecode.decoding.drafter import Drafter
from edgedecode.decoding.policy import Plan
from edgedecode.decoding.sampling import Noise
from edgedecode.drafters.chain import HEAD, ChainDrafter, ChainSource
from edgedecode.drafters.model import ModelSource
from edgedecode.drafters.past import STORE_NBYTES
from edgedecode.drafters.suffix import TOKEN_NBYTES, SuffixSource
from edgedecode.errors import BudgetExceeded, CapabilityError
from edgedecode.memory import Budget
from edgedecode.testing import TableModel, toy_tables
from tests.toys import draft_setting, toy_model

VOCABULARY = 20
NOISE = Noise(0)


def greedy(model: TableModel, tokens: list[int], length: int) -> tuple[int, ...]:
    whole = list(tokens)
    for _ in range(length):
        whole.append(int(model.logits_after(whole)[:VOCABULARY].argmax()))
    return tuple(whole[len(tokens) :])


def example(model: TableModel) -> tuple[list[int], tuple[int, ...], list[int]]:
    """A context in which what the model says next stood before: context, head, what followed."""
    for first in range(11):
        head = greedy(model, [0, 0, 11, 12, 13, 14, first], HEAD)  # the toy looks at two tokens and the position
        if not {*head} & {11, 12, 13, 14, first}:
            return [*head, 11, 12, 13, 14, first], head, [11, 12, 13, 14, first]
    raise AssertionError("no seed of the toy gives an example")


def test_it_goes_on_where_the_models_tokens_stood_before() -> None:
    model = toy_model(VOCABULARY, seed=2)
    context, head, followed = example(model)
    made = ChainSource().open(draft_setting(VOCABULARY, model=model))
    made.begin(context)
    draft = made.propose(context, 6, NOISE)
    assert draft.tokens == (*head, *followed[:4])
    assert draft.source == "chain"
    assert not made.free
    assert made.propose(context, HEAD, NOISE).tokens == head
    assert made.propose(context, 1, NOISE).tokens == head[:1]


def test_without_a_match_the_head_is_all() -> None:
    model = toy_model(VOCABULARY, seed=2)
    made = ChainSource().open(draft_setting(VOCABULARY, model=model))
    made.begin([1, 2])
    assert made.propose([1, 2], 8, NOISE).tokens == greedy(model, [1, 2], HEAD)


def test_it_stops_at_an_end_token_and_where_the_model_is_not_sure() -> None:
    model = toy_model(VOCABULARY, seed=2)
    context, head, followed = example(model)
    for ends, tokens in (
        ({head[0]}, head[:1]),
        ({head[1]}, head),
        ({followed[1]}, (*head, *followed[:2])),
    ):
        made = ChainSource().open(draft_setting(VOCABULARY, model=model, ends=frozenset(ends)))
        made.begin(context)
        assert made.propose(context, 8, NOISE).tokens == tokens
    made = ChainSource().open(draft_setting(VOCABULARY, model=model))
    made.begin(context)
    assert len(made.propose(context, 8, NOISE, Plan(8, floor=0.99999))) == 0


def opened(budget: Budget, model: TableModel) -> dict[str, Drafter]:
    setting = draft_setting(VOCABULARY, model=model, budget=budget, capacity=100)
    return {"suffix": SuffixSource().open(setting), "model": ModelSource().open(setting)}


def test_it_shares_what_the_session_has_open() -> None:
    budget = Budget()
    model = TableModel(toy_tables(VOCABULARY, seed=2), budget=budget)
    others = opened(budget, model)
    before = budget.used_nbytes
    made = ChainSource().open(draft_setting(VOCABULARY, model=model, budget=budget, capacity=100, opened=others))
    assert made.nbytes == 0
    assert budget.used_nbytes == before
    context, head, followed = example(model)
    for drafter in (*others.values(), made):
        drafter.begin(context)
    assert made.propose(context, 4, NOISE).tokens == (*head, *followed[:2])
    assert others["model"].unread(context) == 0
    made.close()
    assert budget.used_nbytes == before
    assert others["model"].propose(context, 2, NOISE).tokens == head


def test_alone_it_has_its_own_and_gives_them_back() -> None:
    budget = Budget()
    model = TableModel(toy_tables(VOCABULARY, seed=2), budget=budget)
    source = ChainSource()
    made = source.open(draft_setting(VOCABULARY, model=model, budget=budget, capacity=100))
    assert isinstance(made, ChainDrafter)
    assert made.nbytes == 800 + 100 * TOKEN_NBYTES
    assert budget.used_nbytes == made.nbytes + STORE_NBYTES
    made.close()
    source.close()
    assert budget.used_nbytes == 0


def test_what_cannot_be_opened_leaves_nothing_behind() -> None:
    with pytest.raises(CapabilityError, match="no draft model"):
        ChainSource().open(draft_setting(VOCABULARY))
    budget = Budget(2_000)  # room for the model's state only
    model = TableModel(toy_tables(VOCABULARY, seed=2), budget=budget)
    with pytest.raises(BudgetExceeded, match="suffix index"):
        ChainSource().open(draft_setting(VOCABULARY, model=model, budget=budget, capacity=100))
    assert budget.used_nbytes == 0
