"""`bench` and the scheduler: equal conditions for every request, and calibration."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from edgedecode import Pair, SamplingOptions
from edgedecode.bench.measure.cost_meter import READ, Costs, DraftCosts
from edgedecode.bench.measure.device_costs import CONTEXTS, bucket_contexts, learn, measure_host
from edgedecode.bench.measure.timed import TimedPair
from edgedecode.bench.measure.timed_answers import Requests
from edgedecode.bench.settings import PLAIN, SCHEDULED, Arm, Settings, arms_of
from edgedecode.cli import main
from edgedecode.decoding.policy import RoundCost, Score
from edgedecode.schedule.acceptance import Acceptance
from edgedecode.schedule.cost import CONTEXT_BUCKETS, context_bucket
from edgedecode.schedule.experience import Experience
from edgedecode.schedule.prices import Prices
from edgedecode.sessions.experience_file import load_experience
from edgedecode.text.prompts import Prompt

CURVE = Costs(
    context=256,
    samples=9,
    target_seconds={n: 0.01 * (1 + 0.2 * (n - 1)) for n in range(1, 18)},
    drafts={
        "model": DraftCosts(0.001, 0.001, {n: 0.01 * (1 + 0.2 * (n - 1)) for n in range(1, 18)}),
        "trim": DraftCosts(0.0005, 0.0005, {n: 0.01 * (1 + 0.2 * (n - 1)) for n in range(1, 18)}),
    },
    read_seconds=0.0002,
)
PROMPT = Prompt("chat", (), ("hello there", "and again"))


def settings(*prompts: Prompt, **changes: object) -> Settings:
    plain = Settings(
        prompts or (PROMPT,), drafters=("suffix",), lengths=(2,), repetitions=1, max_tokens=40, context=1024
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def line(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    value: dict[str, object] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return value


def test_arms_are_plain_scheduled_and_optionally_fixed() -> None:
    assert arms_of(settings()) == (PLAIN, SCHEDULED, Arm("suffix", 2))
    assert arms_of(settings(fixed=False)) == (PLAIN, SCHEDULED)
    assert [str(arm) for arm in (PLAIN, SCHEDULED, Arm("suffix", 2))] == ["plain", "scheduled", "suffix 2"]


# -- equal conditions --------------------------------------------------------------------------------------------------


def test_requests_restore_the_experience_of_the_warm_up(toy: Pair) -> None:
    requests = Requests(TimedPair(toy, with_draft=True), settings())
    acceptance = Acceptance(toy.experience.history)
    acceptance.add(Score("suffix", 3, 2, 4))
    requests.warm_up([Prompt("chat", (), ("something else",))])
    known = toy.experience.as_dict()
    assert toy.experience.costs.tables  # learned in the warm-up
    requests.answer(PROMPT, SCHEDULED)
    Acceptance(toy.experience.history).add(Score("suffix", 3, 0, 4))
    toy.experience.costs.observe(RoundCost(1, 9.0), context_tokens=9)
    learnt = toy.experience.as_dict()
    assert learnt["history"] != known["history"]
    requests.restore()
    restored = toy.experience.as_dict()
    assert restored["history"] == known["history"]
    assert restored["tables"] == learnt["tables"] != known["tables"]
    assert restored["balances"] == learnt["balances"], "balances carry over between requests, as they do in use"


def test_requests_do_not_draft_from_an_earlier_answer(toy: Pair) -> None:
    timed, chosen = TimedPair(toy, with_draft=False), settings(max_tokens=30)
    requests = Requests(timed, chosen)
    arm = Arm("suffix", 8)
    runs = [requests.answer(PROMPT, arm) for _ in range(2)]
    counts = [[(stats.proposed, stats.accepted) for stats in run.stats] for run in runs]
    assert counts[0] == counts[1]


def test_requests_with_sampling_generate_the_same_tokens_in_every_arm(toy: Pair) -> None:
    sampled = settings(sampling=SamplingOptions(temperature=0.9, top_p=0.95), seed=7)
    requests = Requests(TimedPair(toy, with_draft=True), sampled)
    plain, scheduled, fixed = (requests.answer(PROMPT, arm) for arm in (PLAIN, SCHEDULED, Arm("model", 3)))
    assert plain.tokens == scheduled.tokens == fixed.tokens
    assert sum(stats.accepted for stats in fixed.stats) > 0
    other = Requests(requests.timed, replace(sampled, seed=8)).answer(PROMPT, PLAIN)
    assert other.tokens != plain.tokens


# -- the default run ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("tables_too")
def test_bench_measures_only_plain_and_scheduled_by_default(
    toy: Pair, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    kept = tmp_path / "experience.json"
    toy.keep_experience(kept)
    words = ["--families", "edit,story", "--per-family", "1", "--repetitions", "1", "-n", "24", "--temp", "0.7"]
    assert main(["bench", *words, "--json"]) == 0
    out = capsys.readouterr().out
    value = json.loads(out.splitlines()[-1])
    for family in value["families"]:
        scheduled = family["scheduled"]
        assert (family["arms"], family["bound"], family["hindsight"], scheduled["divergent"]) == ([], None, None, 0)
        used = sum(count["rounds"] for count in scheduled["drafters"].values())
        assert used + sum(scheduled["plain_rounds"].values()) == scheduled["rounds"] > 0
        assert scheduled["whole_speed_up"] > 0
    assert "temperature 0.7" in value["conditions"]["decoding"]
    assert "has answered 12 other prompts" in value["conditions"]["scheduler"]
    assert "Text: 2 of 2 speculative answers" in out
    assert {"mean", "worst"} <= {row.split("│")[1].strip() for row in out.splitlines() if row.startswith("│")}
    toy.save_experience()
    assert not kept.exists()  # experience from a bench's own prompts is not saved


# -- calibration -------------------------------------------------------------------------------------------------------


def test_calibration_has_a_context_for_each_bucket() -> None:
    assert [context_bucket(context) for context in CONTEXTS] == list(range(len(CONTEXT_BUCKETS) + 1))
    assert bucket_contexts(2048) == [256, 1024]
    assert bucket_contexts(100) == [100 - READ]


def test_learn_passes_the_measured_costs_to_the_scheduler(toy: Pair) -> None:
    longer = replace(CURVE, context=1024, target_seconds={n: 3 * s for n, s in CURVE.target_seconds.items()})
    learn(toy, [CURVE, longer], host={"none": 0.0005, "suffix": 0.001})
    costs = toy.experience.costs
    assert costs.table(256).step == pytest.approx(0.01)
    assert costs.table(1024).step == pytest.approx(0.03)
    assert [costs.table(256).c(n) for n in (2, 5, 17)] == pytest.approx([1.2, 1.8, 4.2], rel=0.02)  # smoothed
    prices = Prices(costs, costs.table(256), 0.01)
    for drafter in ("model", "tree"):
        assert prices.step(drafter) == pytest.approx(0.1)
    assert prices.step("trim") == pytest.approx(0.05)
    assert [prices.read(drafter) for drafter in ("model", "tree", "trim")] == pytest.approx([0.02] * 3)
    assert (prices.host("none"), prices.host("suffix")) == (pytest.approx(0.05), pytest.approx(0.1))


def test_measure_host_reports_each_drafter(toy: Pair) -> None:
    requests = Requests(TimedPair(toy, with_draft=True), settings(drafters=("model",)))
    host = measure_host(requests, [PROMPT])
    assert set(host) == {"none", "model"}
    assert all(seconds > 0 for seconds in host.values())


def test_calibrate_ends_with_one_json_line(toy: Pair, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    kept = tmp_path / "experience.json"
    toy.keep_experience(kept)
    words = ["--calibrate", "--families", "edit", "--repetitions", "1", "-n", "8"]
    assert main(["bench", *words, "--json"]) == 0
    value = line(capsys)
    calibration = value["calibration"]
    assert isinstance(calibration, list)
    assert [costs["context"] for costs in calibration] == [256]
    assert len(calibration[0]["c"]) == 17
    assert calibration[0]["read_seconds"] > 0
    assert toy.experience.costs.table(256).step == pytest.approx(calibration[0]["target_seconds"]["1"])
    measured = Experience.from_dict(toy.experience.as_dict())
    measured.doubt()
    assert load_experience(kept).as_dict() == measured.as_dict()
