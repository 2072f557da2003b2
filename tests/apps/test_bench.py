"""`bench`: prompts, results, and full runs on a toy pair and on the bundled pack."""

import json
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from edgedecode import InputError, Pair, SamplingOptions
from edgedecode.apps.bundled_prompts import bundled_prompts
from edgedecode.bench.choices import choose
from edgedecode.bench.kinds import QUICK_EXTRACTIONS
from edgedecode.bench.measure import cost_meter
from edgedecode.bench.measure.cost_meter import CostMeter, Costs, DraftCosts
from edgedecode.bench.measure.families import FamilyResult, measure_family
from edgedecode.bench.measure.structured import WAYS
from edgedecode.bench.measure.timed_answers import Requests, answer
from edgedecode.bench.measure.timed_answers import Run as AnswerRun
from edgedecode.bench.report.conditions import Conditions
from edgedecode.bench.settings import PLAIN, SCHEDULED, Arm, Settings
from edgedecode.cli import main
from edgedecode.decoding.policy import RoundCost, Score
from edgedecode.engines.registry import drafter_names
from edgedecode.schedule.acceptance import Acceptance
from edgedecode.text.prompts import Prompt, read_prompts
from tests.conftest import Told
from tests.peft_folders import list_adapter, write_peft

QUICK = ["bench", "--quick", "--families", "edit,story", "--per-family", "1", "--repetitions", "2", "--json", "--fixed"]

USABLE = [name for name in drafter_names() if name not in ("head", "trim")]
"""All drafters but those that these packs have no models for."""


def settings(**changes: object) -> Settings:
    values: dict[str, object] = {
        "prompts": tuple(choose(bundled_prompts(), families=["edit"], per_family=2)),
        "drafters": ("model", "suffix"),
        "lengths": (1, 3),
        "repetitions": 2,
        "max_tokens": 16,
        "context": 512,
    }
    return Settings(**(values | changes))  # type: ignore[arg-type]


def test_conditions_report_the_threads_in_use(toy: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def reported_threads(*, requested: int | None) -> str:
        arguments = Namespace(threads=requested, prompts=None, provider="cpu", draft_on=None, structured=False)
        return Conditions.of(toy, settings(), arguments=arguments).threads

    assert reported_threads(requested=None) == "the runtime's choice"
    assert reported_threads(requested=3) == "3"
    for role, threads in (("target", 2), ("draft", 1)):
        model = getattr(toy, role)
        monkeypatch.setattr(model, "card", replace(model.card, threads=threads))
    assert reported_threads(requested=None) == "target 2, draft 1"


def test_bundled_prompts_are_20_in_each_of_12_families() -> None:
    prompts = bundled_prompts()
    assert set(Counter(prompt.family for prompt in prompts).values()) == {20}
    assert len({prompt.family for prompt in prompts}) == 12
    assert all(prompt.turns and not prompt.history for prompt in prompts)


def test_read_prompts_accepts_both_formats(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    ours = {"family": "a", "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]}
    theirs = {"question_id": 1, "category": "b", "turns": ["one", "two"]}
    file.write_text(f"{json.dumps(ours)}\n\n{json.dumps(theirs)}\n")
    first, second = read_prompts(file)
    assert (first.family, [message.content for message in first.history], first.turns) == ("a", ["s"], ("u",))
    assert second == Prompt("b", (), ("one", "two"))
    with pytest.raises(InputError, match="no prompts of family c; there are: a, b"):
        choose([first, second], families=["c"], per_family=1)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", "holds no prompts"),
        ("{", "line 1 is not JSON"),
        ("[]", "line 1 is not a JSON object"),
        ('{"turns": ["x"]}', "neither a family nor a category"),
        ('{"family": "a"}', "neither messages nor turns"),
        ('{"family": "a", "turns": [3]}', "neither messages nor turns"),
        ('{"family": "a", "turns": ["x", " "]}', "line 1 has an empty turn"),
        ('{"family": "a", "messages": [{"role": "user", "content": ""}]}', "line 1 has an empty turn"),
        ('{"family": "a", "turns": ["\\ud800"]}', "line 1 is not valid UTF-8"),
        ("1" * 5000, "line 1 is not JSON: Exceeds the limit"),
        ('{"family": "a", "messages": "x"}', "messages must be a list"),
        ('{"family": "a", "messages": [{"role": "assistant", "content": "x"}]}', "the last message must be the user's"),
        ('{"family": "a", "messages": [{"role": "user", "content": 1}]}', "use a string"),
    ],
)
def test_read_prompts_refuses_bad_lines(line: str, expected: str, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(line)
    with pytest.raises(InputError, match=expected):
        read_prompts(file)


def test_answer_sums_the_turns_of_a_prompt(toy: Pair) -> None:
    prompt = Prompt("chat", (), ("hello", "again"))
    short = settings(max_tokens=12)
    plain = answer(toy, prompt, arm=PLAIN, settings=short)
    drafted = answer(toy, prompt, arm=Arm("model", 4), settings=short)
    assert plain.tokens == drafted.tokens
    assert len(plain.stats) == len(drafted.stats) == 2
    assert sum(stats.accepted for stats in drafted.stats) > 0
    assert plain.whole_seconds > plain.seconds > 0
    assert plain.whole_seconds > plain.first_seconds > 0


def measure_with_changed_texts(toy: Pair, *, changed: Callable[[Prompt], bool], prompts: int = 2) -> FamilyResult:
    """Measure a family; on `changed` prompts the arm "suffix 3" alters its text and reports 99 extra rounds."""

    class ChangedTexts(Requests):
        def answer(self, prompt: Prompt, arm: Arm) -> AnswerRun:
            run = super().answer(prompt, arm)
            if arm == Arm("suffix", 3) and changed(prompt):
                run.tokens[-1] += 1
                run.stats[0].rounds += 99
            return run

    chosen = settings(prompts=tuple(choose(bundled_prompts(), families=["edit"], per_family=prompts)))
    return measure_family(ChangedTexts(toy, chosen), "edit", advance=lambda: None)


def test_family_excludes_divergent_texts_and_counts_them(toy: Pair) -> None:
    result = measure_with_changed_texts(toy, changed=lambda prompt: True)
    divergent_arms = [arm for arm in result.arms if arm.name == "suffix 3"]
    assert [(arm.divergent, arm.speed_up) for arm in divergent_arms] == [(2, None)]
    assert divergent_arms[0].rounds > 2 * 2 * 99  # no run agrees, so all runs are shown
    assert all(arm.divergent == 0 and arm.speed_up for arm in result.arms if arm.name != "suffix 3")
    assert result.plain_unstable == 0
    assert (result.scheduled.name, result.scheduled.divergent) == ("scheduled", 0)
    assert result.hindsight.arm != "suffix 3"


def test_family_counts_are_those_of_the_prompts_with_equal_text(toy: Pair) -> None:
    first = choose(bundled_prompts(), families=["edit"], per_family=1)[0]
    alone = measure_with_changed_texts(toy, changed=lambda prompt: False, prompts=1).arms[-1]
    among_others = measure_with_changed_texts(toy, changed=lambda prompt: prompt != first, prompts=3).arms[-1]
    assert (among_others.name, among_others.divergent) == ("suffix 3", 2)
    assert among_others.speed_up is not None
    assert (among_others.acceptance_length, among_others.proposed) == (alone.acceptance_length, alone.proposed)


@pytest.mark.parametrize(("prompts", "divergent", "best"), [(4, 2, "suffix 2"), (4, 3, "model 2"), (1, 1, "model 2")])
def test_family_best_arm_must_match_plain_text_on_half_of_the_prompts(
    toy: Pair, prompts: int, divergent: int, best: str
) -> None:
    result = measure_with_changed_texts(toy, changed=lambda prompt: False, prompts=1)
    slow = replace(result.arms[0], drafter="model", length=2, speed_up=1.1, divergent=0)
    fast = replace(slow, drafter="suffix", speed_up=1.9, divergent=divergent)
    measured = replace(result, prompts=prompts, arms=(slow, fast)).best
    assert measured.name == best
    assert replace(result, prompts=prompts, arms=(replace(fast, divergent=prompts),)).best is None


@pytest.mark.usefixtures("toy", "tables_too")
def test_bench_ends_with_one_json_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(QUICK) == 0
    out = capsys.readouterr().out
    value = json.loads(out.splitlines()[-1])
    assert set(value) == {"conditions", "costs", "families"}
    assert len(value["costs"]["c"]) == 16
    assert [family["family"] for family in value["families"]] == ["edit", "story"]
    assert [arm["length"] for arm in value["families"][0]["arms"]] == [2, 4] * len(USABLE)
    assert all(arm["divergent"] == 0 for family in value["families"] for arm in family["arms"])
    assert out.count("threads: the runtime's choice") == 2  # under every table
    answers = 2 + 4 * len(USABLE)
    assert f"{answers} of {answers} speculative answers" in out
    assert "only a rough measurement" in out


def test_bench_quick_on_the_bundled_pack(told: Told, pack: Path) -> None:
    words = ("--families", "copy", "--repetitions", "1", "-n", "24")
    value = told("bench", "-m", pack, "--quick", "--fixed", *words)
    assert {arm["drafter"] for family in value["families"] for arm in family["arms"]} == {*USABLE, "trim"}
    assert any(arm["accepted"] > 0 for family in value["families"] for arm in family["arms"])


def test_bench_structured_counts_forced_tokens_and_right_values(told: Told, pack: Path) -> None:
    pytest.importorskip("llguidance", reason="the structured extra is not installed")
    value = told("bench", "-m", pack, "--structured", "--quick", "--repetitions", "1")
    ways = value["structured"]
    assert "facts of a text" in str(value["conditions"])
    assert [(way["grammar"], way["arm"]) for way in ways] == [(name, str(arm)) for name, arm in WAYS]
    plain, drafts, *_, free, _ = ways
    assert (free["grammar"], free["forced"], free["tokens_per_pass"]) == ("no grammar", 0, 1.0)
    assert plain["forced"] > 0
    assert drafts["tokens_per_pass"] >= plain["tokens_per_pass"] > 1.0
    assert plain["valid"] == plain["right"] == drafts["right"] == QUICK_EXTRACTIONS
    assert all(way["right"] <= way["same_values"] for way in ways)


def test_bench_measures_an_adapter(told: Told, pack_copy: Path, tmp_path: Path) -> None:
    list_adapter(pack_copy, "odd", write_peft(tmp_path / "odd", seed=1, invocation=(1, 307, 201)))
    words = ["--quick", "--repetitions", "1", "-n", "12", "--per-family", "1", "--families", "story,lists"]
    value = told("bench", "-m", pack_copy, "--runtime", "onnx", "--adapter", "odd:0.5", *words)
    assert value["conditions"]["decoding"].startswith("greedy, adapter odd times 0.5")
    assert [family["family"] for family in value["families"]] == ["story", "lists"]


# -- the scheduler and costs -------------------------------------------------------------------------------------------

PROMPT = Prompt("chat", (), ("hello there", "and again"))


def short(**changes: object) -> Settings:
    given = {"prompts": (PROMPT,), "drafters": ("suffix",), "lengths": (2,), "repetitions": 1, "max_tokens": 40}
    return settings(**given | {"context": 1024} | changes)


# -- equal conditions --------------------------------------------------------------------------------------------------


def test_requests_restore_the_experience_of_the_warm_up(toy: Pair) -> None:
    requests = Requests(toy, short())
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
    requests = Requests(toy, short(max_tokens=30))
    arm = Arm("suffix", 8)
    runs = [requests.answer(PROMPT, arm) for _ in range(2)]
    counts = [[(stats.proposed, stats.accepted) for stats in run.stats] for run in runs]
    assert counts[0] == counts[1]


def test_requests_with_sampling_generate_the_same_tokens_in_every_arm(toy: Pair) -> None:
    sampled = short(sampling=SamplingOptions(temperature=0.9, top_p=0.95), seed=7)
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


# -- costs of passes ---------------------------------------------------------------------------------------------------

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
