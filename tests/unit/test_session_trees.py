"""Sessions with tree drafts: the drafters they open, their text, and models that read chains only."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from edgedecode.decoding.verify import Verdict
from edgedecode.errors import BudgetExceeded, CapabilityError
from edgedecode.memory.budget import Budget
from edgedecode.memory.limit import Limit
from edgedecode.options import SessionOptions
from edgedecode.sampling.weights import SamplingOptions
from edgedecode.testing import TableModel, TableState
from edgedecode.user_notices import NOTICES
from tests.toys import ascii_pair

WARM = SamplingOptions(temperature=0.9)


def read_chains_only(model: object) -> None:
    assert isinstance(model, TableModel)
    model.card = replace(model.card, tree=False)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"tree": True}, "model+suffix+recycle+tree"),
        ({}, "model+suffix"),
        ({"drafter": "tree"}, "tree"),
        ({"tree": True, "draft_max": 4}, "tree"),
        ({"tree": True, "drafter": "recycle", "draft_max": 4}, "recycle"),
    ],
    ids=str,
)
def test_tree_option_chooses_the_drafters(options: dict[str, object], names: str) -> None:
    with ascii_pair() as pair, pair.session(SessionOptions(**options)) as session:  # type: ignore[arg-type]
        assert session.drafter_name == names


@pytest.mark.parametrize("sampling", [SamplingOptions(), WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    "options",
    [
        {"drafter": "tree", "draft_max": 6},
        {"drafter": "tree"},
        {"tree": True},
        {"tree": True, "drafter": "recycle", "draft_max": 6},
    ],
    ids=str,
)
def test_tree_text_equals_plain_decoding(options: dict[str, object], sampling: SamplingOptions) -> None:
    texts = []
    with ascii_pair(noise=0.7) as pair:
        for each in ({"drafter": "none"}, options):
            full = SessionOptions(seed=5, sampling=sampling, ignore_eos=True, **each)  # type: ignore[arg-type]
            with pair.session(full) as session:
                replies = [session.generate(prompt, max_tokens=80) for prompt in ("hello", "again")]
            texts.append([reply.tokens for reply in replies])
            if "draft_max" in each:
                assert sum(reply.stats.accepted for reply in replies) > 0
    assert texts[0] == texts[1]


def branched(options: SessionOptions, monkeypatch: pytest.MonkeyPatch) -> list[Verdict]:
    """Return the rounds of a session whose draft was a tree."""
    import edgedecode.decoding.loop as loop

    found: list[Verdict] = []
    verify = loop.verify

    def recorded(*given: object, **named: object) -> Verdict:
        verdict = verify(*given, **named)  # type: ignore[arg-type]
        found.append(verdict)
        return verdict

    monkeypatch.setattr(loop, "verify", recorded)
    with ascii_pair(noise=0.9) as pair, pair.session(options) as session:
        session.generate("hello", max_tokens=80)
    return [verdict for verdict in found if verdict.draft.parents is not None]


@pytest.mark.parametrize("drafter", ["tree", "recycle"])
def test_tree_of_fixed_size_branches_and_siblings_are_accepted(drafter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = branched(SessionOptions(tree=True, drafter=drafter, draft_max=12, seed=1), monkeypatch)
    assert max(len(verdict.draft) for verdict in rounds) == 12
    if drafter == "tree":
        parents = [(verdict, verdict.draft.parents or ()) for verdict in rounds]
        assert any(tree[node] in tree[:node] for verdict, tree in parents for node in verdict.path)


def test_recycle_without_tree_drafts_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not branched(SessionOptions(drafter="recycle", draft_max=12, seed=1), monkeypatch)


def test_tree_with_a_target_that_reads_chains_only(caplog: pytest.LogCaptureFixture) -> None:
    with ascii_pair() as pair:
        read_chains_only(pair.target)
        with pytest.raises(CapabilityError, match="target reads chains only"):
            pair.session(SessionOptions(drafter="tree"))
        with caplog.at_level(logging.INFO, "edgedecode"), pair.session(SessionOptions(tree=True)) as session:
            assert "tree" not in session.drafter_name
        assert "target cannot verify trees" in caplog.text
        with pair.session(SessionOptions(tree=True, draft_max=4)) as session:
            assert session.drafter_name == "model"


def test_tree_with_a_draft_model_that_reads_chains_only(caplog: pytest.LogCaptureFixture) -> None:
    with ascii_pair() as pair:
        read_chains_only(pair.draft)
        with pytest.raises(CapabilityError, match="draft model reads chains only"):
            pair.session(SessionOptions(drafter="tree"))
        with caplog.at_level(logging.INFO, "edgedecode"), pair.session(SessionOptions(tree=True)) as session:
            assert "tree" not in session.drafter_name
        assert "the drafter tree is left out" in caplog.text
        assert "the draft model cannot draft trees (" in caplog.text


def enlarge_tree_states(nbytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let states for trees lease `nbytes` more."""
    made = TableModel.new_state

    def new_state(model: TableModel, capacity: int, *, rows: int = 1, tree: bool = False) -> TableState:
        state = made(model, capacity, rows=rows, tree=tree)
        if tree:
            try:
                state._lease.resize(state._lease.nbytes + nbytes)
            except BudgetExceeded:
                state.close()
                raise
        return state

    monkeypatch.setattr(TableModel, "new_state", new_state)


@pytest.mark.usefixtures("asked_every_round")
@pytest.mark.parametrize("options", [{"tree": True}, {"tree": True, "draft_max": 4}], ids=str)
def test_tree_that_does_not_fit_the_budget_falls_back_to_chains(
    options: dict[str, object], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    enlarge_tree_states(2_000_000, monkeypatch)
    with ascii_pair(budget=Budget()) as pair:
        pair.budget.limit = Limit(pair.budget.used_nbytes + 1_000_000)
        with pytest.raises(BudgetExceeded, match="the table's keys and values"):
            pair.session(SessionOptions(drafter="tree"))
        with caplog.at_level(logging.INFO, NOTICES), pair.session(SessionOptions(seed=1, **options)) as session:  # type: ignore[arg-type]
            assert "drafts are chains: trees do not fit the budget" in caplog.text
            assert "tree" not in session.drafter_name
            leases = {lease.name: lease.nbytes for lease in pair.budget.leases}
            session.generate("hello", max_tokens=60)
            assert session.stats.proposed > 0
            assert {lease.name: lease.nbytes for lease in pair.budget.leases} == leases


def test_tree_that_does_not_fit_the_draft_model_falls_back_with_a_notice(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    enlarge_tree_states(900_000, monkeypatch)
    with ascii_pair(budget=Budget()) as pair:
        with pair.session(SessionOptions(drafter="none")):
            pair.budget.limit = Limit(pair.budget.used_nbytes + 1_500_000)
        with caplog.at_level(logging.INFO, NOTICES), pair.session(SessionOptions(tree=True)) as session:
            assert session.drafter_name == "model+suffix+recycle"
        notices = [record.getMessage() for record in caplog.records if record.name == NOTICES]
        assert len(notices) == 1
        assert notices[0].startswith("the draft model cannot draft trees (0.9 MB are needed for ")
        assert notices[0].endswith("; drafting with model, suffix, recycle")
        with pytest.raises(BudgetExceeded, match="the table's keys and values"):
            pair.session(SessionOptions(drafter="tree"))
        assert [lease for lease in pair.budget.leases if lease.name.startswith("kv:")] == []
