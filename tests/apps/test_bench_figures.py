"""`bench` figures computed from known measurements, and the order in which costs are measured."""

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


def test_costs_interpolate_and_extend_the_curve() -> None:
    assert [round(COSTS.c(n), 3) for n in (1, 2, 3, 4, 6)] == [1.0, 1.2, 1.5, 1.8, 2.4]
    assert COSTS.d("model") == pytest.approx(0.1)
    assert COSTS.d("suffix") == 0.0


def test_costs_after_draft_steps_have_a_separate_curve() -> None:
    """A draft's first step follows a target pass, and costs more than its other steps."""
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


def test_cost_meter_samples_in_the_order_of_a_round(toy: Pair) -> None:
    """For each width: settling passes, a timed pass, two draft steps, and the target pass that follows them."""
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


def test_cost_meter_without_a_draft_model_times_only_the_target(toy: Pair) -> None:
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
def test_costs_charge_every_model_drafter_for_its_steps(drafter: str, tmp_path: Path) -> None:
    """The predicted speed-up, the bound and a calibration all use the head's own step time."""
    with headed_pair(tmp_path) as pair:
        needs_model = pair.drafter_source(drafter).needs_model
        timed = TimedPair(pair, with_draft=needs_model, drafters=[drafter])
        meter = CostMeter(timed, tokens=[5, 6, 7], widest=3)
        meter.sample()
        costs = meter.costs()
        meter.close()
    assert (costs.d(drafter, 4) > 0) == (drafter in costs.drafters) == needs_model


def test_costs_of_a_trimmed_head_use_its_own_steps() -> None:
    costs = replace(COSTS, drafts=COSTS.drafts | {"trim": DraftCosts(0.0004, 0.0002, {1: 0.01, 2: 0.011, 4: 0.012})})
    assert [costs.d("trim", length) for length in (1, 2)] == pytest.approx([0.04, 0.03])
    assert [costs.c(n, "trim") for n in (2, 4)] == pytest.approx([1.1, 1.2])
    survival = Survival(rounds=100, tokens=280, proposed=300, accepted=180, survived=[80, 60, 40], reached=[100] * 3)
    assert predicted(survival, costs, drafter="trim", host=NO_HOST) == pytest.approx(2.8 / (1.2 + 3 * 0.08 / 3))


def test_predicted_tree_costs_its_nodes_in_width_and_one_step_per_level() -> None:
    """100 trees with 3 nodes on 2 levels: each costs c(4) and two draft steps."""
    survival = Survival(rounds=100, tokens=220, proposed=300, accepted=120, survived=[80, 40], reached=[100] * 2)
    assert survival.branching == 1.5
    assert predicted(survival, COSTS, drafter="tree", host=NO_HOST) == pytest.approx(2.2 / (1.8 + 0.2))


def test_predicted_follows_the_formula_in_methods() -> None:
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


def test_predicted_counts_short_drafts_with_their_own_length() -> None:
    survival = Survival(rounds=10, tokens=14, proposed=8, accepted=4, survived=[3, 1], reached=[5, 3])
    assert [survival.drafts_of(length, longest=2) for length in range(3)] == [5, 2, 3]
    assert [survival.drafts_of(length, longest=1) for length in range(2)] == [5, 5]
    assert survival.per_position == [3 / 5, 1 / 3]
    assert survival.acceptance_length == 1.4
    assert predicted(survival, COSTS, drafter="suffix", host=NO_HOST) == pytest.approx(14 / (5 * 1 + 2 * 1.2 + 3 * 1.5))


def test_survival_excludes_the_prefill_pass() -> None:
    survival = Survival()
    survival.add(Stats(rounds=4, verified_tokens=9, proposed=6, accepted=5, survival=[3, 2], reached=[3, 3]))
    assert (survival.rounds, survival.tokens) == (3, 8)


def test_host_gaps_exclude_draft_passes() -> None:
    target = [Pass(0, 1, 5), Pass(2, 3, 1), Pass(4.5, 5, 4), Pass(6, 7, 4)]
    draft = [Pass(3.1, 3.6, 9), Pass(3.7, 4.0, 1), Pass(5.2, 5.6, 1)]
    gaps = host_gaps(target, draft)
    assert [round(gap.seconds, 6) for gap in gaps] == [1.0, 0.7, 0.6]
    assert [gap.drafted for gap in gaps] == [False, False, True]


def test_reading_seconds_is_the_drafts_prefill_without_its_draft_steps() -> None:
    """Three prefill chunks, then two more draft steps: the target pass verifies a draft of three."""
    target = [Pass(0, 1, 600), Pass(9, 10, 4), Pass(12, 13, 4)]
    draft = [Pass(1, 2, 512), Pass(2, 3.5, 512), Pass(4, 4.25, 1), Pass(5, 6, 1), Pass(6, 7, 1), Pass(10, 11, 1)]
    assert reading_seconds(target, draft) == 2.75
    assert reading_seconds(target[:1], []) == reading_seconds(target, []) == 0.0
    assert reading_seconds([Pass(0, 1, 9), Pass(2, 3, 1)], []) == 0.0


def test_reading_seconds_of_a_long_prompt_cover_all_chunks(toy: Pair) -> None:
    timed = TimedPair(toy, with_draft=True)
    prompt = Prompt("chat", (), ("x" * 600,))
    settings = Settings((prompt,), drafters=("model",), lengths=(4,), repetitions=1, max_tokens=8, context=1024)
    run = answer(timed, prompt, arm=Arm("model", 4), settings=settings)
    first, second = timed.draft_passes[:2]
    assert (first.width, run.reading_seconds) == (512, pytest.approx(first.seconds + second.seconds))


def test_cost_meter_times_prefill_on_request(toy: Pair) -> None:
    timed = TimedPair(toy, with_draft=True)
    meter = CostMeter(timed, tokens=[5, 6, 7], widest=3, context=100, reading=True)
    timed.clear()
    meter.sample()
    assert timed.draft_passes[-1].width == READ
    costs = meter.costs()
    assert costs.context == 100
    assert costs.read_seconds is not None
    assert (
        costs.read_seconds >= timed.draft_passes[-1].seconds / READ > 0
    )  # the meter's clock runs around the pass's own
    meter.close()
