"""`bench`: prompts, results, and full runs on a toy pair and on the bundled pack."""

import json
import shutil
import subprocess
from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from edgedecode import InputError, Pair
from edgedecode.apps.bundled_prompts import bundled_prompts
from edgedecode.bench.choices import choose
from edgedecode.bench.kinds import QUICK_EXTRACTIONS
from edgedecode.bench.measure import placements
from edgedecode.bench.measure.families import measure_family
from edgedecode.bench.measure.family_results import FamilyResult
from edgedecode.bench.measure.structured import WAYS
from edgedecode.bench.measure.timed_answers import Requests, answer
from edgedecode.bench.measure.timed_answers import Run as AnswerRun
from edgedecode.bench.report.conditions import Conditions
from edgedecode.bench.settings import PLAIN, Arm, Settings
from edgedecode.cli import main
from edgedecode.engines.interface import Device
from edgedecode.engines.registry import drafter_names
from edgedecode.engines.selection import EngineRequest
from edgedecode.engines.wrappers.kept_placement import Placement, kept_placement
from edgedecode.engines.wrappers.placed import Place
from edgedecode.pack.hub import BUNDLED_PACK
from edgedecode.pack.manifest import Manifest
from edgedecode.text.prompts import Prompt, read_prompts
from tests.peft_folders import list_adapter, write_peft

from .conftest import Run

QUICK = ["bench", "--quick", "--families", "edit,story", "--per-family", "1", "--repetitions", "2", "--json", "--fixed"]

USABLE = [name for name in drafter_names() if name != "trim"]
"""All drafters but "trim": these packs have no trimmed drafts."""


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
    assert result.hindsight is not None
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
    assert measured is not None
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


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (["--lengths", "1,x"], 2, "'x' is not a whole number"),
        (["--structured", "--place", "auto"], 2, "not allowed with"),
        (["--structured", "--lengths", "2"], 2, "--lengths does not go with --structured"),
        (["--scale", "1GB", "--adapter", "x"], 2, "--adapter does not go with --scale"),
        (["--top-p", "0.9"], 2, "--top-p needs --temp"),
        (["--temp", "-1"], 1, "temperature -1.0 is out of range"),
        (["--repetitions", "1001"], 2, "the maximum is 1000"),
        (["--lengths", "0"], 2, "'0' is too small: the minimum is 1"),
        (["--place", "auto", "--draft-on", "onnx"], 2, "--draft-on does not go with --place"),
        (["--families", "poetry"], 1, "no prompts of family poetry"),
        (["--drafters", "psychic"], 1, "no drafter 'psychic'"),
        (["--prompts", "/no/such/file"], 1, "No such file"),
        (["--per-family", "0"], 2, "'0' is too small: the minimum is 1"),
    ],
)
def test_bench_refuses_bad_input(
    words: list[str], code: int, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if code == 2:
        with pytest.raises(SystemExit, match="2"):
            main(["bench", "--quick", *words])
    else:
        assert main(["bench", "--quick", *words]) == code
    assert expected in capsys.readouterr().err


def json_line(done: subprocess.CompletedProcess[bytes]) -> dict[str, object]:
    assert done.returncode == 0, done.stderr.decode()
    value: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return value


def test_bench_quick_on_the_bundled_pack(run: Run, pack: Path) -> None:
    words = ("--families", "copy", "--repetitions", "1", "-n", "24")
    value = json_line(run("bench", "-m", str(pack), "--quick", "--fixed", *words, "--json"))
    assert isinstance(value["families"], list)
    assert {arm["drafter"] for family in value["families"] for arm in family["arms"]} == {*drafter_names()}
    assert any(arm["accepted"] > 0 for family in value["families"] for arm in family["arms"])


def test_bench_structured_counts_forced_tokens_and_right_values(run: Run, pack: Path) -> None:
    pytest.importorskip("llguidance", reason="the structured extra is not installed")
    done = run("bench", "-m", str(pack), "--structured", "--quick", "--repetitions", "1", "--json")
    value = json_line(done)
    ways = value["structured"]
    assert isinstance(ways, list)
    assert "facts of a text" in str(value["conditions"])
    assert [(way["grammar"], way["arm"]) for way in ways] == [(name, str(arm)) for name, arm in WAYS]
    plain, drafts, *_, free, _ = ways
    assert (free["grammar"], free["forced"], free["tokens_per_pass"]) == ("no grammar", 0, 1.0)
    assert plain["forced"] > 0
    assert drafts["tokens_per_pass"] >= plain["tokens_per_pass"] > 1.0
    assert plain["valid"] == plain["right"] == drafts["right"] == QUICK_EXTRACTIONS
    assert all(way["right"] <= way["same_values"] for way in ways)


def test_bench_place_keeps_the_fastest_placement(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path))
    words = ("--families", "story", "--per-family", "1", "--repetitions", "1", "--json")
    done = run("bench", "--place", "auto", "--quick", *words)
    measured = json.loads(done.stdout.splitlines()[-1])["placements"]
    places = [(row["placement"]["target"], row["placement"]["draft"] or row["placement"]["target"]) for row in measured]
    assert len(measured) == len({str(target) for target, _ in places}) ** 2
    refused = [both for row, both in zip(measured, places, strict=True) if row["refusal"]]
    # On an Intel processor there is OpenVINO too, which the bundled pack has no graphs for.
    assert all(any(place["provider"] != "cpu" for place in both) for both in refused)
    assert len(measured) - len(refused) == len({target["runtime"] for target, _ in places}) ** 2
    kept = kept_placement(Manifest.load(BUNDLED_PACK), EngineRequest())
    assert str(Place(**measured[0]["placement"]["target"])) == str(kept.target if kept else None)


def test_bench_place_tries_every_pair_of_devices_that_are_not_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = [
        Device("onnx", "cpu", "", available=True),
        Device("onnx", "qnn", "", available=True, emulated=True),
        Device("onnx", "webgpu", "", available=False),
        Device("onnx", "new:npu", "", available=True),
    ]
    monkeypatch.setattr(placements, "installed", lambda group: ["onnx"])
    monkeypatch.setattr(placements, "probe", lambda runtime: devices)
    alone = [Placement(Place("onnx")), Placement(Place("onnx", "new:npu"))]
    assert list(placements.candidates(draft=False)) == alone
    mixed = [Placement(Place("onnx"), Place("onnx", "new:npu")), Placement(Place("onnx", "new:npu"), Place("onnx"))]
    assert list(placements.candidates(draft=True)) == [*alone, *mixed]


def test_bench_measures_an_adapter(run: Run, tmp_path: Path) -> None:
    pack = tmp_path / "pack"
    shutil.copytree(BUNDLED_PACK, pack)
    list_adapter(pack, "odd", write_peft(tmp_path / "odd", seed=1, invocation=(1, 307, 201)))
    words = ["--quick", "--repetitions", "1", "-n", "12", "--per-family", "1", "--families", "story,lists", "--json"]
    value = json_line(run("bench", "-m", str(pack), "--runtime", "onnx", "--adapter", "odd:0.5", *words))
    assert isinstance(value["conditions"], dict)
    assert value["conditions"]["decoding"].startswith("greedy, adapter odd times 0.5")
    assert isinstance(value["families"], list)
    assert [family["family"] for family in value["families"]] == ["story", "lists"]
