"""`bench` and the scheduler: equal conditions for every request."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from edgedecode import Pair, SamplingOptions
from edgedecode.bench.measure.timed_answers import Requests
from edgedecode.bench.settings import PLAIN, SCHEDULED, Arm, Settings, arms_of
from edgedecode.cli import main
from edgedecode.decoding.policy import RoundCost, Score
from edgedecode.schedule.acceptance import Acceptance
from edgedecode.text.prompts import Prompt

PROMPT = Prompt("chat", (), ("hello there", "and again"))


def settings(*prompts: Prompt, **changes: object) -> Settings:
    plain = Settings(
        prompts or (PROMPT,), drafters=("suffix",), lengths=(2,), repetitions=1, max_tokens=40, context=1024
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def test_arms_are_plain_scheduled_and_optionally_fixed() -> None:
    assert arms_of(settings()) == (PLAIN, SCHEDULED, Arm("suffix", 2))
    assert arms_of(settings(fixed=False)) == (PLAIN, SCHEDULED)
    assert [str(arm) for arm in (PLAIN, SCHEDULED, Arm("suffix", 2))] == ["plain", "scheduled", "suffix 2"]


# -- equal conditions --------------------------------------------------------------------------------------------------


def test_requests_restore_the_experience_of_the_warm_up(toy: Pair) -> None:
    requests = Requests(toy, settings())
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
    requests = Requests(toy, settings(max_tokens=30))
    arm = Arm("suffix", 8)
    runs = [requests.answer(PROMPT, arm) for _ in range(2)]
    counts = [[(stats.proposed, stats.accepted) for stats in run.stats] for run in runs]
    assert counts[0] == counts[1]


def test_requests_with_sampling_generate_the_same_tokens_in_every_arm(toy: Pair) -> None:
    sampled = settings(sampling=SamplingOptions(temperature=0.9, top_p=0.95), seed=7)
    requests = Requests(toy, sampled)
    plain, scheduled, fixed = (requests.answer(PROMPT, arm) for arm in (PLAIN, SCHEDULED, Arm("model", 3)))
    assert plain.tokens == scheduled.tokens == fixed.tokens
    assert sum(stats.accepted for stats in fixed.stats) > 0
    other = Requests(requests.pair, replace(sampled, seed=8)).answer(PROMPT, PLAIN)
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
        assert (family["arms"], family["hindsight"], scheduled["divergent"]) == ([], None, 0)
        used = sum(count["rounds"] for count in scheduled["drafters"].values())
        assert used + sum(scheduled["plain_rounds"].values()) == scheduled["rounds"] > 0
        assert scheduled["whole_speed_up"] > 0
    assert "temperature 0.7" in value["conditions"]["decoding"]
    assert "has answered 12 other prompts" in value["conditions"]["scheduler"]
    assert "Text: 2 of 2 speculative answers" in out
    assert {"mean", "worst"} <= {row.split("│")[1].strip() for row in out.splitlines() if row.startswith("│")}
    toy.save_experience()
    assert not kept.exists()  # experience from a bench's own prompts is not saved
