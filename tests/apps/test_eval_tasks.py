"""`eval --tasks`: answers by several arms, judged, kept in a file, and continued after an interruption."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from argparse import ArgumentTypeError
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from edgedecode import InputError
from edgedecode.apps.eval.accuracy import accuracies
from edgedecode.apps.eval.answers_file import AnswersFile, Judged
from edgedecode.apps.eval.arm_names import arm_list
from edgedecode.apps.tasks.task_files import Kind, Task
from edgedecode.cli import main
from edgedecode.pack.hub import BUNDLED_PACK
from tests.peft_folders import write_peft

from .conftest import command_line

OURS = [
    ("arithmetic", "77 + 47 =", "77 + 47 = 124."),
    ("fact", "How many days are in a week?", "A week has seven days."),
    ("fact", "What is the capital of France?", "Nobody knows."),
    ("smalltalk", "Hello, how are you?", "Hello! How can I help you today?"),
]
CODE = {
    "task_id": "Test/1",
    "prompt": "def add(y, text):\n    '''Add them.'''\n",
    "entry_point": "add",
    "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n",
}


def ours(count: int = len(OURS)) -> list[dict[str, object]]:
    return [
        {"family": family, "messages": [{"role": "user", "content": question}], "answer": answer}
        for family, question, answer in OURS[:count]
    ]


def written(path: Path, values: Sequence[object]) -> Path:
    path.write_text("".join(json.dumps(value) + "\n" for value in values), encoding="utf-8")
    return path


def evaluate(*words: object) -> int:
    return main(["eval", *map(str, words), "-n", "24", "--runtimes", "onnx"])


def figures(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return value


def untimed(value: dict[str, Any]) -> dict[str, Any]:
    """Return the results of each arm without what depends on the machine."""
    return {
        name: {key: found for key, found in arm.items() if "second" not in key} for name, arm in value["arms"].items()
    }


@pytest.fixture
def tasks(tmp_path: Path, pack: Path) -> Path:
    return written(tmp_path / "tasks.jsonl", ours())


@pytest.mark.usefixtures("tables_too")
def test_eval_judges_the_answers_of_every_arm(tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers = tmp_path / "answers.jsonl"
    arms = "target,draft,verified,switch:0.97,switch@0.3"
    words = ("--tasks", tasks, "--arms", arms, "--answers", answers, "--perplexity", "--json")
    assert evaluate(*words) == 0
    out = capsys.readouterr().out
    value = json.loads(out.splitlines()[-1])
    assert list(value["arms"]) == arms.split(",")
    target, draft, verified = (value["arms"][name] for name in ("target", "draft", "verified"))
    assert target["judged"] == 4
    assert target["families"]["fact"]["correct"] == 1, "the second reference is wrong"
    assert target["families"]["smalltalk"]["correct"] == 1
    assert (target["target_share"], draft["target_share"], verified["target_share"]) == (1, 0, 1)
    assert 0 < value["arms"]["switch@0.3"]["target_share"] < 1
    assert set(value["perplexity"]) == {"demo target", "demo draft"}
    assert all(1 < found < 100 for found in value["perplexity"].values())
    kept = [json.loads(line) for line in answers.read_text(encoding="utf-8").splitlines()[1:]]
    texts = {(line["task"], line["arm"]): line["texts"] for line in kept}
    assert len(texts) == len(kept) == 20
    for task in {line["task"] for line in kept}:
        assert texts[task, "target"] == texts[task, "verified"]
    assert "perplexity of 4 references" in out
    assert "4 tasks, at most 24 tokens, greedy; demo on onnxruntime" in out


@pytest.mark.usefixtures("tables_too")
def test_eval_of_several_forms(tmp_path: Path, pack: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [
        written(tmp_path / "code.jsonl", [CODE]),
        written(tmp_path / "turns.jsonl", [{"category": "writing", "turns": ["Tell me a story.", "Again."]}]),
        written(tmp_path / "gsm8k.jsonl", [{"question": "How many days are in a week?", "answer": "#### 7"}]),
        written(tmp_path / "long.jsonl", [{"question": "a " * 5000, "answer": "b"}]),
    ]
    words = [word for file in files for word in ("--tasks", file)]
    answers = tmp_path / "answers.jsonl"
    assert evaluate(*words, "--arms", "verified,target", "--answers", answers, "--json") == 0
    out = capsys.readouterr().out
    value = json.loads(out.splitlines()[-1])["arms"]["target"]
    assert (value["answers"], value["judged"], value["incomplete"]) == (4, 3, 1)
    assert "1 of 4 tasks have no reference: answered, not judged" in out
    assert "target: 1 of 4 conversations exceed the context" in out
    kept = {line["task"]: line for line in map(json.loads, answers.read_text(encoding="utf-8").splitlines()[1:])}
    assert [len(kept[name]["texts"]) for name in ("turns:1", "long:1", "code:1")] == [2, 0, 1]
    assert kept["turns:1"]["correct"] is None
    assert kept["long:1"]["reason"] == "the conversation exceeds the context"
    assert kept["code:1"]["correct"] is (kept["code:1"]["reason"] == "")


def test_eval_compares_packs_by_the_names_of_their_folders(
    tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Path(shutil.copytree(BUNDLED_PACK, tmp_path / "recipe"))
    words = ("--tasks", tasks, "--arms", "target", "--compare-with", other, "--compare-with", other, "--json")
    assert evaluate(*words) == 0
    value = figures(capsys)
    assert list(value["arms"]) == ["target", "recipe", "recipe-2"]
    assert value["arms"]["recipe"]["ratio"] == {"value": 1, "low": 1, "high": 1}
    assert set(value["packs"]) == {"demo", "recipe", "recipe-2"}


def test_eval_with_adapters(tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = Path(shutil.copytree(BUNDLED_PACK, tmp_path / "own"))
    adapter = write_peft(tmp_path / "odd", seed=1)
    assert main(["adapter", "add", str(own), f"odd={adapter}"]) == 0
    words = ("--tasks", tasks, "-m", own, "--json", "--answers", tmp_path / "answers.jsonl", "--limit", 2)
    assert evaluate(*words, "--arms", "target,target+odd,verified+odd,draft") == 0
    lines = (tmp_path / "answers.jsonl").read_text(encoding="utf-8").splitlines()[1:]
    texts = {(line["task"], line["arm"]): line["texts"] for line in map(json.loads, lines)}
    for task in {task for task, _ in texts}:
        assert texts[task, "target"] != texts[task, "target+odd"] == texts[task, "verified+odd"]
    capsys.readouterr()
    assert evaluate("--tasks", tasks, "-m", own, "--json", "--adapter", "odd", "--arms", "verified", "--limit", 2) == 0
    assert list(figures(capsys)["arms"]) == ["verified"]


def test_eval_plots_accuracy_against_speed(tasks: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "plot.svg"
    assert evaluate("--tasks", tasks, "--arms", "target,draft", "--limit", 2, "--plot", plot) == 0
    text = plot.read_text(encoding="utf-8")
    assert all(words in text for words in ("target", "draft", "share of correct answers", "2 tasks"))


@pytest.mark.parametrize("sampling", [(), ("--temp", "0.8", "--seed", "3")], ids=["greedy", "sampled"])
def test_eval_continues_after_any_interruption(
    sampling: tuple[str, ...], tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = tmp_path / "whole.jsonl"
    words = ("--tasks", tasks, "--arms", "target,draft", "--json", *sampling)
    assert evaluate(*words, "--answers", whole) == 0
    expected = untimed(figures(capsys))
    content = whole.read_bytes()
    ends = [place for place, byte in enumerate(content) if byte == 10]
    part = tmp_path / "part.jsonl"
    for cut in (0, 10, ends[0], ends[0] + 1, ends[2] + 40, ends[4], len(content) - 3, len(content)):
        part.write_bytes(content[:cut])
        assert evaluate(*words, "--answers", part, "--resume") == 0
        assert untimed(figures(capsys)) == expected, cut
        lines = [json.loads(line) for line in part.read_bytes().splitlines()]
        again = [json.loads(line) for line in content.splitlines()]
        assert lines[0] == again[0]
        texts = [{(line["task"], line["arm"]): line["texts"] for line in some[1:]} for some in (lines, again)]
        assert texts[0] == texts[1]


@pytest.mark.skipif(os.name != "posix", reason="kills a process by a signal")
def test_eval_that_was_killed_continues(tmp_path: Path, pack: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tasks = written(tmp_path / "tasks.jsonl", ours() * 20)
    words = ["eval", "--tasks", str(tasks), "--arms", "target", "-n", "24", "--runtimes", "onnx"]
    answers = tmp_path / "answers.jsonl"
    child = subprocess.Popen(command_line([*words, "--answers", str(answers)]), stdout=subprocess.DEVNULL)
    end = time.monotonic() + 60
    while not answers.exists() or answers.read_bytes().count(b"\n") < 4:
        assert time.monotonic() < end
        assert child.poll() is None or answers.read_bytes().count(b"\n") >= 4
        time.sleep(0.005)
    child.send_signal(signal.SIGKILL)
    child.wait()
    before = answers.read_bytes()
    assert main([*words, "--answers", str(answers), "--resume", "--json"]) == 0
    value = figures(capsys)
    assert value["arms"]["target"]["answers"] == 80
    assert answers.read_bytes().startswith(before[: before.rindex(b"\n") + 1])


# -- the file of answers ---------------------------------------------------------------------------------------------

HEADER = {"packs": {"demo": "1f"}, "arms": {"target": ""}, "tasks": "2e", "max_tokens": 8}
EXPECTED = [(f"tasks:{number}", "target") for number in range(1, 4)]


def judged(number: int, *, correct: bool | None = True) -> Judged:
    return Judged(
        f"tasks:{number}", "target", ("text\n…",), tokens=3, verified=3, taken_back=0, seconds=0.5, correct=correct
    )


def file_of(path: Path, *, header: dict[str, Any] | None = None, resume: bool = True) -> AnswersFile:
    return AnswersFile(path, header or HEADER, resume=resume, expected=EXPECTED)


def test_answers_survive_a_cut_at_every_byte(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    with file_of(path, resume=False) as kept:
        for number in (1, 2, 3):
            kept.add(judged(number))
    content = path.read_bytes()
    for cut in range(len(content) + 1):
        path.write_bytes(content[:cut])
        with file_of(path) as kept:
            assert len(kept.answers) == max(0, content[:cut].count(b"\n") - 1)
            for number in range(len(kept.answers) + 1, 4):
                kept.add(judged(number))
            assert kept.answers == [judged(number) for number in (1, 2, 3)]
        assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"packs": {"demo": "2f"}}, "has answers of other packs"),
        ({"tasks": "3e"}, "has answers to other tasks"),
        ({"arms": {}, "max_tokens": 9}, "has answers of other arms and of another length"),
    ],
)
def test_answers_of_something_else_are_refused(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    with file_of(path) as kept:
        kept.add(judged(1))
    before = path.read_bytes()
    with pytest.raises(InputError, match=words):
        file_of(path, header={**HEADER, **change})
    with pytest.raises(InputError, match="exists: give --resume"):
        file_of(path, resume=False)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"nonsense", "line 3 is damaged"),
        (b'{"task": "tasks:2", "arm": "target"}', "line 3 is damaged"),
        (json.dumps({"task": 3}).encode(), "line 3 is damaged"),
        (b"\xff\xfe", "line 3 is damaged"),
        (b"again", "line 3 is an answer of another run"),
    ],
)
def test_damaged_answers_are_refused_with_their_line(line: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    with file_of(path) as kept:
        kept.add(judged(1))
    first = path.read_bytes()
    path.write_bytes(first + (first.splitlines()[1] if line == b"again" else line) + b"\n")
    before = path.read_bytes()
    with pytest.raises(InputError, match=words):
        file_of(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"my notes", b"my notes\n", b'{"edgedecode": "other"}\n', b"[1]\n"])
def test_files_of_another_kind_are_left_alone(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match="not a file of answers"):
        file_of(path)
    assert path.read_bytes() == content


def test_answers_that_cannot_be_written_are_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path, words in ((tmp_path, "is not a file"), (tmp_path / "none" / "answers.jsonl", "cannot be written")):
        with pytest.raises(InputError, match=words):
            file_of(path)

    class Full:
        def write(self, data: bytes) -> int:
            raise OSError(28, "No space left on device")

        def close(self) -> None:
            pass

    with file_of(tmp_path / "answers.jsonl") as kept, monkeypatch.context() as patch:
        patch.setattr(kept, "_file", Full())
        with pytest.raises(InputError, match="No space left"):
            kept.add(judged(1))
        assert kept.answers == []


@pytest.mark.skipif(os.name != "posix", reason="files are not locked on this system")
def test_two_runs_cannot_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    with file_of(path) as kept:
        kept.add(judged(1))
        with pytest.raises(InputError, match="another process writes answers"):
            file_of(path)
        kept.add(judged(2))
    with file_of(path) as kept:
        assert kept.answers == [judged(1), judged(2)]


def test_results_are_summed_by_arm_and_family() -> None:
    tasks = [
        Task("tasks:1", "a", Kind.EXACT, (), ("q",), "x"),
        Task("tasks:2", "b", Kind.CODE, (), ("q",)),
        Task("tasks:3", "b", Kind.WRITTEN, (), ("q",)),
    ]
    (arm,) = accuracies([judged(1), judged(2, correct=False), judged(3, correct=None)], tasks, ["target"])
    assert arm.families == {"a": [True], "b": [False]}
    assert (arm.answers, arm.tokens, arm.tokens_per_second, arm.target_share) == (3, 9, 6.0, 1.0)
    assert arm.share is not None
    assert arm.share.value == 0.5
    assert dict(arm.reasons) == {"": 1}


# -- bad input -------------------------------------------------------------------------------------------------------


def test_arm_names() -> None:
    found = arm_list("target, verified+summaries:0.5,switch,switch:0.97,switch@0.2,draft")
    assert [arm.name for arm in found][:2] == ["target", "verified+summaries:0.5"]
    assert found[1].adapter == ("summaries", 0.5)
    switches = [arm.switch for arm in found[2:5] if arm.switch]
    assert [(each.quality, each.threshold) for each in switches] == [(None, None), (0.97, None), (None, 0.2)]


@pytest.mark.parametrize(
    "text",
    ["", "third", "target,target", "draft+x", "switch:2", "switch:x", "switch@-1", "switch@", "target+", "Target"],
)
def test_unknown_arms_are_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError):
        arm_list(text)


@pytest.mark.parametrize(
    "words",
    [
        ("--arms", "target"),
        ("--temp", "0.5", "--equality"),
        ("--tasks", "FILE", "--equality"),
        ("--tasks", "FILE", "--role", "draft"),
        ("--tasks", "FILE", "--prompts", "FILE"),
        ("--tasks", "FILE", "--no-save"),
        ("--tasks", "FILE", "--resume"),
        ("--tasks", "FILE", "--arms", "nothing"),
        ("--tasks", "FILE", "--runtimes", "onnx,llama"),
        ("--tasks", "FILE", "--limit", "0"),
        ("--tasks",),
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_with_2(words: Sequence[str], tasks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as usage:
        main(["eval", *[word.replace("FILE", str(tasks)) for word in words]])
    assert usage.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--tasks", "none.jsonl"), "none.jsonl cannot be read"),
        (("--tasks", "empty.jsonl"), "empty.jsonl is empty"),
        (("--tasks", "unknown.jsonl"), "line 1 has none of the forms of tasks (its fields: text): ours"),
        (("--tasks", "tasks.jsonl", "--tasks", "tasks.jsonl"), "named twice"),
        (("--tasks", "tasks.jsonl", "--arms", "target+nothing"), "no adapters"),
        (("--tasks", "tasks.jsonl", "--adapter", "nothing"), "no adapters"),
        (("--tasks", "tasks.jsonl", "--compare-with", "nowhere/at/all"), "nowhere"),
        (("--tasks", "tasks.jsonl", "--plot", "plot.txt"), "charts are .svg or .png"),
        (("--tasks", "tasks.jsonl", "--top-p", "7"), "top_p"),
        (("--tasks", "tasks.jsonl", "--answers", "tasks.jsonl"), "exists: give --resume"),
        (("--tasks", "tasks.jsonl", "--answers", "tasks.jsonl", "--resume"), "not a file of answers"),
        (("--tasks", "tasks.jsonl", "--answers", "none/answers.jsonl"), "cannot be written"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input_is_one_line(
    words: Sequence[str],
    message: str,
    tasks: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tasks.parent)
    Path("empty.jsonl").touch()
    written(Path("unknown.jsonl"), [{"text": "a story"}])
    before = tasks.read_bytes()
    assert evaluate(*words) == 1
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert tasks.read_bytes() == before


def test_packs_without_a_draft_have_no_arm_draft(
    tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pack = Path(shutil.copytree(BUNDLED_PACK, tmp_path / "alone"))
    manifest = json.loads((pack / "edgedecode.json").read_text(encoding="utf-8"))
    del manifest["models"]["draft"]
    manifest["switching"] = None
    (pack / "edgedecode.json").write_text(json.dumps(manifest), encoding="utf-8")
    assert evaluate("--tasks", tasks, "-m", pack, "--arms", "target,draft,switch:0.9") == 1
    assert "has no draft model: leave out the arms draft, switch:0.9" in capsys.readouterr().err
    assert evaluate("--tasks", tasks, "-m", pack, "--limit", 2, "--json") == 0
    assert list(figures(capsys)["arms"]) == ["target", "verified"]
