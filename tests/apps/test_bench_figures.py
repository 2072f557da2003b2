"""What `bench` computes from what it measured, on known numbers; and in which order it measures costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edgedecode import Pair, Stats
from edgedecode.bench.measure.cost_meter import READ, CostMeter, Costs, DraftCosts
from edgedecode.bench.measure.survival import Host, Survival, predicted, predicted_at
from edgedecode.bench.measure.timed import Pass, TimedPair, TimedRuntime
from edgedecode.bench.measure.timed_answers import answer, host_gaps, reading_seconds
from edgedecode.bench.settings import Arm, Settings
from edgedecode.engines.interface import ModelRequest
from edgedecode.engines.registry import drafter_names
from edgedecode.memory.budget import Budget
from edgedecode.testing import TableModel, TableRuntime, toy_pair, toy_tables
from edgedecode.text.prompts import Prompt
from tests.toys import HeadedTable

CURVE = {1: 0.01, 2: 0.012, 4: 0.018}
COSTS = Costs(context=256, samples=15, target_seconds=CURVE, drafts={"model": DraftCosts(0.001, 0.001, CURVE)})
NO_HOST = Host(0.0, 0.0)


def test_the_curve_is_interpolated_and_extended() -> None:
    assert [round(COSTS.c(n), 3) for n in (1, 2, 3, 4, 6)] == [1.0, 1.2, 1.5, 1.8, 2.4]
    assert COSTS.d("model") == pytest.approx(0.1)
    assert COSTS.d("suffix") == 0.0


def test_what_follows_draft_steps_has_a_curve_of_its_own() -> None:
    """Also a draft's first step, behind a target pass, costs more than its others."""
    costs = replace(COSTS, drafts={"model": DraftCosts(0.001, 0.0005, {1: 0.02, 2: 0.013, 4: 0.02})})
    assert [round(costs.c(n, "model"), 3) for n in (1, 2, 3, 4)] == [1.0, 1.3, 1.65, 2.0]
    assert [round(costs.c(n, "suffix"), 3) for n in (1, 2, 3, 4)] == [1.0, 1.2, 1.5, 1.8]
    assert [round(costs.d("model", n), 4) for n in (1, 2, 4)] == [0.1, 0.075, 0.0625]
    assert costs.d("suffix", 4) == 0.0
    survival = Survival(rounds=100, tokens=280, proposed=300, accepted=180, survived=[80, 60, 40], reached=[100] * 3)
    assert predicted(survival, costs, drafter="model", host=NO_HOST) == pytest.approx(2.8 / (2.0 + 0.2))
    assert predicted(survival, costs, drafter="suffix", host=NO_HOST) == pytest.approx(2.8 / 1.8)
    mixed = predicted(survival, costs, drafter="none", host=NO_HOST, drafting=100 * 0.2)
    assert mixed == pytest.approx(2.8 / (1.8 + 0.2))


def test_costs_are_measured_in_the_order_of_a_round(toy: Pair) -> None:
    """At every width passes that settle it, one timed, two draft steps, and the target's pass behind them."""
    timed = TimedPair(toy, with_draft=True)
    meter = CostMeter(timed, tokens=[5, 6, 7], widest=3)
    timed.clear()
    meter.sample()
    named = [*((step, "t") for step in timed.target.passes), *((step, "d") for step in timed.draft_passes)]
    order = [(name, step.width) for step, name in sorted(named)]
    settling = {1: 8, 2: 4, 3: 2}
    rounds = {width: [("t", width)] * (settling[width] + 1) + [("d", 1), ("d", 1), ("t", width)] for width in (1, 2, 3)}
    assert order == [*rounds[1], *rounds[2], *rounds[3]]
    meter.sample(2)
    costs = meter.costs(since=1)
    assert (meter.samples, costs.samples, list(costs.target_seconds)) == (3, 2, [1, 2, 3])
    assert list(costs.drafts) == ["model"]
    assert list(costs.drafts["model"].target_seconds) == [1, 2, 3]
    meter.close()


def test_without_a_draft_model_only_the_target_is_timed(toy: Pair) -> None:
    meter = CostMeter(TimedPair(toy, with_draft=False), tokens=[5, 6, 7], widest=3)
    meter.sample()
    costs = meter.costs()
    assert costs.drafts == {}
    assert costs.c(2, "model") == costs.c(2)


class HeadedRuntime(TableRuntime):
    """Opens a draft model with a trimmed head."""

    def open(self, request: ModelRequest) -> TableModel:
        tables = self._tables[request.name]
        if request.name == "target":
            return TableModel(tables, context=512, budget=request.budget)
        return HeadedTable(tables, range(0, tables[0].shape[-1], 2), budget=request.budget)


def headed_pair(root: Path) -> Pair:
    toy = toy_pair()
    target = toy_tables(toy.tokenizer.size, seed=0)
    tables = {"target": target, "draft": toy_tables(toy.tokenizer.size, seed=1, scale=0.5, near=target)}
    runtime = TimedRuntime(HeadedRuntime(tables))
    return Pair(toy.manifest, root, tokenizer=toy.tokenizer, runtime=runtime, budget=Budget())


@pytest.mark.parametrize("drafter", drafter_names())
def test_every_drafter_with_a_model_is_charged_for_its_steps(drafter: str, tmp_path: Path) -> None:
    """In S predicted, the bound and a calibration: each head by its own steps."""
    with headed_pair(tmp_path) as pair:
        needs_model = pair.drafter_source(drafter).needs_model
        timed = TimedPair(pair, with_draft=needs_model, drafters=[drafter])
        meter = CostMeter(timed, tokens=[5, 6, 7], widest=3)
        meter.sample()
        costs = meter.costs()
        meter.close()
    assert (costs.d(drafter, 4) > 0) == (drafter in costs.drafters) == needs_model


def test_heads_cost_what_their_own_steps_cost() -> None:
    costs = replace(COSTS, drafts=COSTS.drafts | {"trim": DraftCosts(0.0004, 0.0002, {1: 0.01, 2: 0.011, 4: 0.012})})
    assert [costs.d("trim", length) for length in (1, 2)] == pytest.approx([0.04, 0.03])
    assert [costs.c(n, "trim") for n in (2, 4)] == pytest.approx([1.1, 1.2])
    survival = Survival(rounds=100, tokens=280, proposed=300, accepted=180, survived=[80, 60, 40], reached=[100] * 3)
    assert predicted(survival, costs, drafter="trim", host=NO_HOST) == pytest.approx(2.8 / (1.2 + 3 * 0.08 / 3))


def test_a_tree_is_as_wide_as_its_nodes_and_takes_a_step_a_level() -> None:
    """100 trees of 3 nodes on 2 levels: c(4), and two draft steps."""
    survival = Survival(rounds=100, tokens=220, proposed=300, accepted=120, survived=[80, 40], reached=[100] * 2)
    assert survival.branching == 1.5
    assert predicted(survival, COSTS, drafter="tree", host=NO_HOST) == pytest.approx(2.2 / (1.8 + 0.2))


def test_the_prediction_is_the_formula_of_methods() -> None:
    """100 full drafts of 3: 80, 60 and 40 survive. S(3) = (1 + 0.8 + 0.6 + 0.4) / (c(4) + 3 d + o)."""
    survival = Survival(rounds=100, tokens=280, proposed=300, accepted=180, survived=[80, 60, 40], reached=[100] * 3)
    expected = 2.8 / (1.8 + 0.3)
    assert predicted(survival, COSTS, drafter="model", host=NO_HOST) == pytest.approx(expected)
    assert predicted_at(survival, COSTS, drafter="model", host=NO_HOST, length=3) == pytest.approx(expected)
    assert predicted_at(survival, COSTS, drafter="model", host=NO_HOST, length=1) == pytest.approx(1.8 / 1.3)
    assert predicted_at(survival, COSTS, drafter="suffix", host=NO_HOST, length=1) == pytest.approx(1.8 / 1.2)
    assert predicted_at(survival, COSTS, drafter="model", host=NO_HOST, length=0) == 1.0
    host = Host(plain_seconds=0.001, round_seconds=0.002)
    assert predicted(survival, COSTS, drafter="model", host=host) == pytest.approx(2.8 * 1.1 / (1.8 + 0.3 + 0.2))


def test_short_drafts_count_with_their_own_length() -> None:
    survival = Survival(rounds=10, tokens=14, proposed=8, accepted=4, survived=[3, 1], reached=[5, 3])
    assert [survival.drafts_of(length, longest=2) for length in range(3)] == [5, 2, 3]
    assert [survival.drafts_of(length, longest=1) for length in range(2)] == [5, 5]
    assert survival.per_position == [3 / 5, 1 / 3]
    assert survival.acceptance_length == 1.4
    assert predicted(survival, COSTS, drafter="suffix", host=NO_HOST) == pytest.approx(14 / (5 * 1 + 2 * 1.2 + 3 * 1.5))


def test_survival_leaves_the_prompts_own_pass_out() -> None:
    survival = Survival()
    survival.add(Stats(rounds=4, verified_tokens=9, proposed=6, accepted=5, survival=[3, 2], reached=[3, 3]))
    assert (survival.rounds, survival.tokens) == (3, 8)


def test_host_gaps_leave_the_drafts_passes_out() -> None:
    target = [Pass(0, 1, 5), Pass(2, 3, 1), Pass(4.5, 5, 4), Pass(6, 7, 4)]
    draft = [Pass(3.1, 3.6, 9), Pass(3.7, 4.0, 1), Pass(5.2, 5.6, 1)]
    gaps = host_gaps(target, draft)
    assert [round(gap.seconds, 6) for gap in gaps] == [1.0, 0.7, 0.6]
    assert [gap.drafted for gap in gaps] == [False, False, True]


def test_reading_the_prompt_is_every_pass_before_the_first_draft_but_its_steps() -> None:
    """Three chunks are read, then two more tokens drafted: the target's pass holds one token and a draft of three."""
    target = [Pass(0, 1, 600), Pass(9, 10, 4), Pass(12, 13, 4)]
    draft = [Pass(1, 2, 512), Pass(2, 3.5, 512), Pass(4, 4.25, 1), Pass(5, 6, 1), Pass(6, 7, 1), Pass(10, 11, 1)]
    assert reading_seconds(target, draft) == 2.75
    assert reading_seconds(target[:1], []) == reading_seconds(target, []) == 0.0
    assert reading_seconds([Pass(0, 1, 9), Pass(2, 3, 1)], []) == 0.0


def test_a_long_prompts_reading_is_more_than_its_first_chunk(toy: Pair) -> None:
    timed = TimedPair(toy, with_draft=True)
    prompt = Prompt("chat", (), ("x" * 600,))
    settings = Settings((prompt,), drafters=("model",), lengths=(4,), repetitions=1, max_tokens=8, context=1024)
    run = answer(timed, prompt, arm=Arm("model", 4), settings=settings)
    first, second = timed.draft_passes[:2]
    assert (first.width, run.reading_seconds) == (512, pytest.approx(first.seconds + second.seconds))


def test_reading_is_timed_where_it_is_asked_for(toy: Pair) -> None:
    timed = TimedPair(toy, with_draft=True)
    meter = CostMeter(timed, tokens=[5, 6, 7], widest=3, context=100, reading=True)
    timed.clear()
    meter.sample()
    assert timed.draft_passes[-1].width == READ
    costs = meter.costs()
    assert costs.context == 100
    assert costs.read_seconds is not None
    assert costs.read_seconds >= timed.draft_passes[-1].seconds / READ > 0  # its clock is around the pass's own
    meter.close()
