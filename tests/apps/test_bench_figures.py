"""`bench`: costs of passes, and the order in which they are measured."""

from collections.abc import Sequence

import pytest

from edgedecode import Pair
from edgedecode.bench.measure import cost_meter
from edgedecode.bench.measure.cost_meter import CostMeter, Costs, DraftCosts

CURVE = {1: 0.01, 2: 0.012, 4: 0.018}


def test_costs_are_in_steps_of_plain_decoding_and_after_draft_steps_of_a_curve_of_their_own() -> None:
    costs = Costs(256, 15, CURVE, {"model": DraftCosts(0.001, 0.0005, {1: 0.02, 2: 0.013, 4: 0.02})})
    assert [round(costs.c(n), 3) for n in (1, 2, 4)] == [1.0, 1.2, 1.8]
    assert [round(costs.c(n, "model"), 3) for n in (1, 2, 4)] == [1.0, 1.3, 2.0]
    assert costs.d("model") == pytest.approx(0.1)


def test_cost_meter_samples_in_the_order_of_a_round(toy: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """For each width: settling passes, a timed pass, two draft steps, and the target pass that follows them."""
    order: list[tuple[str, int]] = []

    def recorded(model: object, state: object, tokens: Sequence[int]) -> float:
        order.append(("t" if model is toy.target else "d", len(tokens)))
        return 0.001 * len(tokens)

    monkeypatch.setattr(cost_meter, "timed_pass", recorded)
    meter = CostMeter(toy, tokens=[5, 6, 7], widest=3)
    order.clear()
    meter.sample()
    settling = {1: 8, 2: 4, 3: 2}
    rounds = {width: [("t", width)] * (settling[width] + 1) + [("d", 1), ("d", 1), ("t", width)] for width in (1, 2, 3)}
    assert order == [*rounds[1], *rounds[2], *rounds[3]]
    meter.sample(2)
    costs = meter.costs()
    assert (costs.samples, list(costs.target_seconds), list(costs.drafts)) == (3, [1, 2, 3], ["model"])
    assert list(costs.drafts["model"].target_seconds) == [1, 2, 3]
    meter.close()


def test_cost_meter_without_a_draft_model_times_only_the_target(toy: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pair, "draft", None)
    meter = CostMeter(toy, tokens=[5, 6, 7], widest=3)
    meter.sample()
    assert meter.costs().drafts == {}
    meter.close()
