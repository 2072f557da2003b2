"""Sessions after failures, and sessions that were dropped: the conversation stays valid and no lease remains."""

import gc
from typing import Any

import pytest

from edgedecode.decoding.drafts import Draft
from edgedecode.decoding.verify import Rule
from edgedecode.errors import BudgetExceeded, CapabilityError
from edgedecode.memory.budget import Budget
from edgedecode.options import SessionOptions
from edgedecode.sampling.weights import SamplingOptions
from edgedecode.sessions.session import Session
from edgedecode.testing import TableModel, TableState
from tests.toys import ascii_pair, session_options


def session(**options: object) -> Session:
    return ascii_pair(ending=0.0, noise=0.7).session(session_options(seed=1, **options))


def test_generate_that_fails_leaves_the_conversation_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    made = session(drafter="none")
    made.generate("hello", max_tokens=8)
    before = made.messages
    forward, calls = type(made._shared.target).forward, 0

    def failing(*words: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise CapabilityError("the engine failed")
        return forward(*words, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(type(made._shared.target), "forward", failing)
        with pytest.raises(CapabilityError, match="the engine failed"):
            made.generate("and now?", max_tokens=8)
    assert calls == 4
    assert made.messages == before
    fresh = session(drafter="none")
    fresh.reset(before)
    assert made.generate("and now?", max_tokens=8).text == fresh.generate("and now?", max_tokens=8).text


def test_session_that_is_dropped_releases_its_scratch_memory() -> None:
    pair = ascii_pair(budget=Budget())
    made = pair.session(SessionOptions(drafter="suffix"))
    assert {"sampling", "suffix index"} <= {lease.name for lease in pair.budget.leases}
    del made
    gc.collect()
    assert not {"sampling", "suffix index"} & {lease.name for lease in pair.budget.leases}


def test_session_that_is_refused_closes_the_draft_model(monkeypatch: pytest.MonkeyPatch) -> None:
    with ascii_pair(budget=Budget()) as pair:
        leases, closed = pair.budget.leases, list[TableModel]()
        monkeypatch.setattr(TableModel, "close", lambda model: closed.append(model))  # noqa: PLW0108 (a method)
        made = TableModel.new_state

        def new_state(model: TableModel, capacity: int, **how: Any) -> TableState:
            if model is not pair.target:
                raise BudgetExceeded("no room for the draft's keys and values", table="")
            return made(model, capacity, **how)

        with monkeypatch.context() as patch:
            patch.setattr(TableModel, "new_state", new_state)
            with pytest.raises(BudgetExceeded, match="no room"):
                pair.session(SessionOptions(drafter="model"))
            assert len(closed) == 1
            assert pair.budget.leases == leases
            with pair.session() as session:
                assert session.drafter_name == "suffix"
                assert pair.drafts.loaded == ()
        with pair.session(SessionOptions(drafter="model")) as session:
            assert session.drafter_name == "model"


def test_session_leases_the_distributions_of_sampled_drafts() -> None:
    with ascii_pair(budget=Budget()) as pair:
        options = session_options(
            drafter="model", draft_max=8, sampling=SamplingOptions(temperature=1), rule=Rule.RATIO
        )
        with pair.session(options) as made:
            held = {lease.name: lease.nbytes for lease in pair.budget.leases}
            size = pair.target.card.vocabulary_size
            draft = made._drafts.drafting.drafters["model"]
            proposed: list[Draft] = []
            propose = draft.propose
            draft.propose = lambda *words, **how: (proposed.append(propose(*words, **how)), proposed[-1])[1]
            made.generate("hello", max_tokens=60)
            kept = max(sum(probs.ids.nbytes + probs.p.nbytes for probs in each.probs or ()) for each in proposed)
            assert size * 16 < kept <= held["distributions:model"] == 8 * 16 * size
            assert {lease.name: lease.nbytes for lease in pair.budget.leases} == held
        assert "distributions:model" not in {lease.name for lease in pair.budget.leases}


def test_close_with_a_failing_drafter_leaves_no_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = ascii_pair(budget=Budget())
    failing, _ = (pair.session(SessionOptions(drafter="suffix")) for _ in range(2))
    leases = len(pair.budget.leases)
    with monkeypatch.context() as patch:
        patch.setattr(failing._drafts.drafting.drafters["suffix"], "close", fails)
        with pytest.raises(OSError, match="disk is full"):
            failing.close()
        assert len(pair.budget.leases) == leases - 3  # its state, row and encoder; the drafter holds its own lease
        with pytest.raises(OSError, match="disk is full"):
            pair.close()
    failing.close()
    assert pair.budget.leases == ()


def test_close_of_a_pair_releases_everything_although_parts_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = ascii_pair(budget=Budget())
    made = pair.session(SessionOptions(drafter="suffix"))
    running = made.stream("hello", max_tokens=9)
    next(running)
    monkeypatch.setattr(pair, "_save_experience", fails)
    monkeypatch.setattr(running, "end", fails)
    with pytest.raises(OSError, match="disk is full"):
        pair.close()
    assert pair.budget.leases == ()


def fails(*_: object) -> None:
    raise OSError("the disk is full")
