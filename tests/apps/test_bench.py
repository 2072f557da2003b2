"""`bench`: its arithmetic on known numbers, its prompts, and whole runs on a toy pair and on the pack."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from edgedecode import InputError, Stats
from edgedecode.apps.bench.costs import CostMeter, Costs
from edgedecode.apps.bench.families import measure_family
from edgedecode.apps.bench.prompts import Prompt, bundled_prompts, choose, read_prompts
from edgedecode.apps.bench.runs import answer, host_gaps
from edgedecode.apps.bench.settings import PLAIN, Arm, Settings
from edgedecode.apps.bench.survival import Host, Survival, predicted, predicted_at
from edgedecode.apps.bench.timed import Pass, TimedPair
from edgedecode.cli import main

from .conftest import Run

COSTS = Costs(context=256, samples=15, target_seconds={1: 0.01, 2: 0.012, 4: 0.018}, draft_seconds=0.001)
NO_HOST = Host(0.0, 0.0)
QUICK = ["bench", "--quick", "--families", "edit,story", "--per-family", "1", "--repetitions", "2", "--json"]


def settings(**changes: object) -> Settings:
    values: dict[str, object] = {
        "prompts": tuple(choose(bundled_prompts(), families=["edit"], per_family=2)),
        "drafters": ("model", "ngram"),
        "lengths": (1, 3),
        "repetitions": 2,
        "max_tokens": 16,
        "context": 512,
    }
    return Settings(**(values | changes))  # type: ignore[arg-type]


def test_the_curve_is_interpolated_and_extended() -> None:
    assert [round(COSTS.c(n), 3) for n in (1, 2, 3, 4, 6)] == [1.0, 1.2, 1.5, 1.8, 2.4]
    assert COSTS.d("model") == pytest.approx(0.1)
    assert COSTS.d("ngram") == 0.0


def test_the_prediction_is_the_formula_of_methods() -> None:
    """100 full drafts of 3: 80, 60 and 40 survive. S(3) = (1 + 0.8 + 0.6 + 0.4) / (c(4) + 3 d + o)."""
    survival = Survival(rounds=100, tokens=280, proposed=300, accepted=180, survived=[80, 60, 40], reached=[100] * 3)
    expected = 2.8 / (1.8 + 0.3)
    assert predicted(survival, COSTS, drafter="model", host=NO_HOST) == pytest.approx(expected)
    assert predicted_at(survival, COSTS, drafter="model", host=NO_HOST, length=3) == pytest.approx(expected)
    assert predicted_at(survival, COSTS, drafter="model", host=NO_HOST, length=1) == pytest.approx(1.8 / 1.3)
    assert predicted_at(survival, COSTS, drafter="ngram", host=NO_HOST, length=1) == pytest.approx(1.8 / 1.2)
    assert predicted_at(survival, COSTS, drafter="model", host=NO_HOST, length=0) == 1.0
    host = Host(plain_seconds=0.001, round_seconds=0.002)
    assert predicted(survival, COSTS, drafter="model", host=host) == pytest.approx(2.8 * 1.1 / (1.8 + 0.3 + 0.2))


def test_short_drafts_count_with_their_own_length() -> None:
    survival = Survival(rounds=10, tokens=14, proposed=8, accepted=4, survived=[3, 1], reached=[5, 3])
    assert [survival.drafts_of(length, longest=2) for length in range(3)] == [5, 2, 3]
    assert [survival.drafts_of(length, longest=1) for length in range(2)] == [5, 5]
    assert survival.per_position == [3 / 5, 1 / 3]
    assert survival.acceptance_length == 1.4
    assert predicted(survival, COSTS, drafter="ngram", host=NO_HOST) == pytest.approx(14 / (5 * 1 + 2 * 1.2 + 3 * 1.5))


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


def test_the_bundled_prompts_are_twenty_of_twelve_families() -> None:
    prompts = bundled_prompts()
    assert set(Counter(prompt.family for prompt in prompts).values()) == {20}
    assert len({prompt.family for prompt in prompts}) == 12
    assert all(prompt.turns and not prompt.history for prompt in prompts)


def test_prompts_are_read_in_both_formats(tmp_path: Path) -> None:
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
        ("[]", "line 1 is no JSON object"),
        ('{"turns": ["x"]}', "neither a family nor a category"),
        ('{"family": "a"}', "neither messages nor turns"),
        ('{"family": "a", "turns": [3]}', "neither messages nor turns"),
        ('{"family": "a", "messages": "x"}', "messages must be a list"),
        ('{"family": "a", "messages": [{"role": "assistant", "content": "x"}]}', "the last message must be the user's"),
        ('{"family": "a", "messages": [{"role": "user", "content": 1}]}', "use a string"),
    ],
)
def test_bad_prompts_are_refused(line: str, expected: str, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(line)
    with pytest.raises(InputError, match=expected):
        read_prompts(file)


def test_a_run_counts_rounds_and_host_gaps(toy: pytest.FixtureRequest) -> None:
    timed = TimedPair(toy, with_draft=True)  # type: ignore[arg-type]
    prompt = Prompt("chat", (), ("hello", "again"))
    plain = answer(timed, prompt, arm=PLAIN, max_tokens=12, context=512)
    drafted = answer(timed, prompt, arm=Arm("model", 4), max_tokens=12, context=512)
    assert plain.tokens == drafted.tokens
    assert len(plain.stats) == len(drafted.stats) == 2
    assert len(plain.host) == sum(stats.rounds - 1 for stats in plain.stats)
    assert sum(stats.accepted for stats in drafted.stats) > 0
    assert any(gap.drafted for gap in drafted.host)
    assert not any(gap.drafted for gap in plain.host)
    assert drafted.reading_seconds > 0 == plain.reading_seconds


def test_a_divergent_text_is_counted_and_left_out(toy: pytest.FixtureRequest) -> None:
    class Lying(TimedPair):
        """Drops a token of every drafted answer."""

    timed = Lying(toy, with_draft=True)  # type: ignore[arg-type]
    from edgedecode.apps.bench import families

    def lie(timed: TimedPair, prompt: Prompt, *, arm: Arm, max_tokens: int, context: int) -> object:
        run = answer(timed, prompt, arm=arm, max_tokens=max_tokens, context=context)
        if arm == Arm("ngram", 3):
            run.tokens[-1] += 1
        return run

    meter = CostMeter(timed, tokens=[5, 6, 7])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(families, "answer", lie)
        result = measure_family(timed, "edit", settings=settings(), meter=meter, advance=lambda: None)
    lied = [arm for arm in result.arms if arm.name == "ngram 3"]
    assert [(arm.divergent, arm.speed_up) for arm in lied] == [(2, None)]
    assert all(arm.divergent == 0 and arm.speed_up for arm in result.arms if arm.name != "ngram 3")
    assert result.plain_unstable == 0
    assert result.bound >= 1.0


def test_settings_out_of_range_are_refused() -> None:
    for changes in ({"lengths": (0,)}, {"lengths": (65,)}, {"repetitions": 0}, {"max_tokens": 0}):
        with pytest.raises(InputError, match="out of range"):
            settings(**changes)


@pytest.mark.usefixtures("toy")
def test_a_whole_run_ends_with_one_json_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(QUICK) == 0
    out = capsys.readouterr().out
    value = json.loads(out.splitlines()[-1])
    assert set(value) == {"conditions", "costs", "families"}
    assert len(value["costs"]["c"]) == 16
    assert [family["family"] for family in value["families"]] == ["edit", "story"]
    assert [arm["length"] for arm in value["families"][0]["arms"]] == [2, 4, 2, 4]
    assert all(arm["divergent"] == 0 for family in value["families"] for arm in family["arms"])
    assert out.count("threads: the runtime's choice") == 2  # under every table
    assert "8 of 8 speculative answers" in out
    assert "no measurement" in out


@pytest.mark.usefixtures("toy")
def test_the_overhead_run_ends_with_one_json_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK, "--overhead"]) == 0
    value = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {"conditions", "host_work", "loops", "not_compared"} == set(value)
    assert [work["arm"] for work in value["host_work"]] == ["plain", "model 2", "model 4", "ngram 2", "ngram 4"]
    assert all(work["median_seconds"] > 0 for work in value["host_work"] if work["rounds"])


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (["--lengths", "1,x"], 2, "no list of whole numbers"),
        (["--lengths", "0"], 1, "out of range"),
        (["--families", "poetry"], 1, "no prompts of family poetry"),
        (["--drafters", "psychic"], 1, "no drafter 'psychic'"),
        (["--prompts", "/no/such/file"], 1, "No such file"),
        (["--per-family", "0"], 1, "out of range"),
    ],
)
def test_bad_input(words: list[str], code: int, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    if code == 2:
        with pytest.raises(SystemExit):
            main(["bench", "--quick", *words])
    else:
        assert main(["bench", "--quick", *words]) == code
    assert expected in capsys.readouterr().err


def json_line(done: subprocess.CompletedProcess[bytes]) -> dict[str, object]:
    assert done.returncode == 0, done.stderr.decode()
    value: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return value


def test_quick_on_the_pack(run: Run, pack: Path) -> None:
    value = json_line(run("bench", "-m", str(pack), "--quick", "--repetitions", "1", "--json"))
    assert isinstance(value["families"], list)
    assert {arm["drafter"] for family in value["families"] for arm in family["arms"]} == {"model", "ngram"}
    assert any(arm["accepted"] > 0 for family in value["families"] for arm in family["arms"])


def test_overhead_on_the_pack_compares_with_the_bare_loop(run: Run, pack: Path) -> None:
    words = ["--overhead", "--quick", "--repetitions", "1", "-n", "16", "--per-family", "1", "--json"]
    value = json_line(run("bench", "-m", str(pack), *words))
    assert isinstance(value["loops"], list)
    assert isinstance(value["not_compared"], list)
    for loop in value["loops"]:
        assert loop["same_tokens"] == loop["tokens"] == 16
