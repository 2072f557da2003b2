"""Sessions with tree drafts: their text, models that read chains only, and memory."""

from dataclasses import replace

import pytest

from edgedecode.decoding.verify import Verdict
from edgedecode.errors import BudgetExceeded, CapabilityError
from edgedecode.memory.budget import Budget
from edgedecode.memory.limit import Limit
from edgedecode.options import SessionOptions
from edgedecode.sampling.weights import SamplingOptions
from edgedecode.testing import TableModel, TableState
from tests.toys import ascii_pair, session_options

WARM = SamplingOptions(temperature=0.9)
TREES = SessionOptions(drafter="tree", draft_max=12, seed=5)


@pytest.mark.parametrize("sampling", [SamplingOptions(), WARM], ids=["greedy", "sampled"])
def test_tree_text_equals_plain_decoding_and_siblings_are_accepted(
    sampling: SamplingOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = recorded(monkeypatch)
    texts = []
    with ascii_pair(noise=0.9) as pair:
        for each in (replace(TREES, drafter="none", draft_max=None), TREES):
            with pair.session(session_options(each, sampling=sampling, ignore_eos=True)) as session:
                texts.append([session.generate(prompt, max_tokens=80).tokens for prompt in ("hello", "again")])
    assert texts[0] == texts[1]
    trees = [(verdict, verdict.draft.parents) for verdict in rounds if verdict.draft.parents is not None]
    assert max(len(parents) for _, parents in trees) == 12
    assert any(parents[node] in parents[:node] for verdict, parents in trees for node in verdict.path)


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Verdict]:
    """Return a list that receives the rounds of all sessions."""
    import edgedecode.decoding.loop as loop

    found: list[Verdict] = []
    verify = loop.verify

    def kept(*given: object, **named: object) -> Verdict:
        found.append(verify(*given, **named))  # type: ignore[arg-type]
        return found[-1]

    monkeypatch.setattr(loop, "verify", kept)
    return found


@pytest.mark.parametrize("role", ["target", "draft"])
def test_tree_with_a_model_that_reads_chains_only_is_refused(role: str) -> None:
    with ascii_pair() as pair:
        model = getattr(pair, role)
        assert isinstance(model, TableModel)
        model.card = replace(model.card, tree=False)
        with pytest.raises(CapabilityError, match=f"{role}( model)? reads chains only"):
            pair.session(TREES)


@pytest.mark.parametrize("spare", [1_000_000, 2_500_000], ids=["target", "draft"])
def test_tree_that_does_not_fit_the_budget_is_refused_and_leaves_no_lease(
    spare: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = TableModel.new_state

    def new_state(model: TableModel, capacity: int, *, rows: int = 1, tree: bool = False) -> TableState:
        state = made(model, capacity, rows=rows, tree=tree)
        try:
            state._lease.resize(state._lease.nbytes + 2_000_000 * tree)
        except BudgetExceeded:
            state.close()
            raise
        return state

    monkeypatch.setattr(TableModel, "new_state", new_state)
    with ascii_pair(budget=Budget()) as pair:
        with pair.session(SessionOptions(drafter="none")):
            pair.budget.limit = Limit(pair.budget.used_nbytes + spare)
        with pytest.raises(BudgetExceeded, match="the table's keys and values"):
            pair.session(TREES)
        assert [lease for lease in pair.budget.leases if lease.name.startswith("kv:")] == []
