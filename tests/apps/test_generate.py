"""`generate` on a toy pair in this process: its output streams and the JSON line."""

import io
import json
import sys
from pathlib import Path

import pytest

from edgedecode import Pair
from edgedecode.apps.terminal import show_notices
from edgedecode.cli import main
from edgedecode.drafters.expected import ExpectedDrafter
from edgedecode.memory.process_memory import memory_now
from tests.conftest import Told

PLAIN = ["generate", "-p", "hello", "-n", "24", "--temp", "0", "--ignore-eos", "--draft-max", "2"]
STATS = {
    *("mode", "rounds", "proposed", "accepted", "corrections", "bonuses", "verified_tokens", "acceptance_length"),
    *("prompt_tokens", "cached_tokens", "time_to_first_token", "prefill_tokens_per_second", "tokens_per_second"),
    *("time_seconds", "planned_nbytes", "peak_nbytes"),
}

pytestmark = pytest.mark.usefixtures("toy")


def test_generate_json_is_one_line_with_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PLAIN, "--json"]) == 0
    out, err = capsys.readouterr()
    assert out.count("\n") == 1
    assert not err
    value = json.loads(out)
    assert set(value) == {"text", "tokens", "finish_reason", "seed", "stats"}
    assert set(value["stats"]) >= STATS
    assert set(value["stats"]["time_seconds"]) == {"draft", "verify", "sample", "host"}
    assert value["finish_reason"] == "length"
    assert len(value["tokens"]) == 24 == value["stats"]["verified_tokens"]
    assert value["stats"]["accepted"] > 0


@pytest.mark.parametrize("command", [["generate", "-p", "hello", "-n", "4"], ["chat", "-n", "4"]])
@pytest.mark.parametrize("think", ["off", "none"])
def test_a_switch_that_the_template_lacks_is_told_in_one_line(
    command: list[str], think: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"hello\n")))
    show_notices()
    assert main([*command, "--think", think]) == 0
    said = f"thinking is not turned off by '{think}': this pack's chat template has no switch for thinking"
    assert capsys.readouterr().err.count(said) == 1


def test_a_switch_that_the_template_lacks_adds_nothing_to_json(capsys: pytest.CaptureFixture[str]) -> None:
    show_notices()
    assert main([*PLAIN, "--json", "--think", "off"]) == 0
    out, err = capsys.readouterr()
    assert (out.count("\n"), err) == (1, "")


def test_generate_json_with_stats_has_planned_and_peak_memory(told: Told) -> None:
    value = told(*PLAIN, "--stats")
    memory, now = value["memory"], memory_now()
    assert set(memory) == {"planned_nbytes", "peak_resident_nbytes"}
    assert memory["planned_nbytes"] == value["stats"]["planned_nbytes"]
    if now is not None:
        assert memory["peak_resident_nbytes"] > now.resident // 2
    assert "memory" not in told(*PLAIN)


def test_generate_streams_the_text_of_the_json_line(capsys: pytest.CaptureFixture[str], told: Told) -> None:
    text = told(*PLAIN)["text"]
    assert main([*PLAIN, "--color", "never"]) == 0
    assert capsys.readouterr().out == text + ("" if text.endswith("\n") else "\n")


def test_color_marks_drafts_and_changes_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    main([*PLAIN, "--color", "never"])
    plain = capsys.readouterr().out
    main([*PLAIN, "--color", "always"])
    coloured = capsys.readouterr().out
    assert "\x1b[32m" in coloured
    assert coloured.replace("\x1b[32m", "").replace("\x1b[0m", "") == plain


def test_stats_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    main([*PLAIN, "--stats", "full"])
    out, err = capsys.readouterr()
    for word in ("mode", "by position", "acceptance length", "planned", "tokens/s", "first token", "draft"):
        assert word in err
        assert word not in out


def test_stats_are_two_lines_and_take_no_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--stats", "hello", "-n", "4", "--seed", "1"]) == 0
    speed, memory = capsys.readouterr().err.splitlines()
    assert speed.startswith("4 tokens · ")
    assert "first token after" in speed
    assert memory.startswith("memory: planned ")


def test_seed_is_reported_and_reproduces_the_answer(told: Told) -> None:
    sampled = ("generate", "-p", "hello", "-n", "24", "--temp", "1.5", "--ignore-eos")
    first = told(*sampled)
    assert told(*sampled, "--seed", first["seed"])["tokens"] == first["tokens"]


def test_generate_takes_the_prompt_from_a_file_or_stdin(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    main(PLAIN)
    expected = capsys.readouterr().out
    file = tmp_path / "prompt.txt"
    file.write_bytes(b"hello\n")
    main(["generate", "--file", str(file), *PLAIN[3:]])
    assert capsys.readouterr().out == expected
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"hello\r\n")))
    main(["generate", "-p", "-", *PLAIN[3:]])
    assert capsys.readouterr().out == expected


def test_generate_takes_the_prompt_as_a_bare_word(capsys: pytest.CaptureFixture[str]) -> None:
    main(PLAIN)
    expected = capsys.readouterr().out
    for words in (["hello", *PLAIN[3:]], [*PLAIN[3:], "hello"], [*PLAIN[3:5], "hello", *PLAIN[5:]]):
        assert main(["generate", *words]) == 0
        assert capsys.readouterr().out == expected


@pytest.mark.parametrize(
    ("words", "stdin"), [(["-p", ""], b""), (["-p", " \n"], b""), (["-"], b"\n"), (["-p", "-"], b"")]
)
@pytest.mark.parametrize("raw", [[], ["--raw"]])
def test_generate_refuses_an_empty_prompt(
    words: list[str], stdin: bytes, raw: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A prompt of blanks is empty too, except with --raw."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
    accepted = bool(raw) and words == ["-p", " \n"]
    assert main(["generate", *words, *raw, "-n", "2"]) == (0 if accepted else 1)
    refusal = "edgedecode: the prompt is empty: give some text with -p TEXT, --file PATH, or -p - for standard input\n"
    assert capsys.readouterr().err == ("" if accepted else refusal)


def test_raw_and_system_change_the_prompt_tokens(told: Told) -> None:
    def prompt_tokens(*words: str) -> int:
        return int(told(*PLAIN, *words)["stats"]["prompt_tokens"])

    assert prompt_tokens("--raw") == len("hello")
    assert prompt_tokens("--system", "be brief") > prompt_tokens() > len("hello")


def test_stop_string_ends_the_text(told: Told) -> None:
    text = told(*PLAIN)["text"]
    value = told(*PLAIN, "--stop", "not in the text", "--stop", text[5:7])
    assert value["finish_reason"] == "stop"
    assert value["text"] == text[: text.index(text[5:7])]


def test_session_options_take_missing_sampling_from_the_pack(
    toy: Pair, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from argparse import ArgumentParser
    from dataclasses import replace

    from edgedecode.apps.verb_options import add_pack_options, add_session_options, session_options

    generation = replace(toy.manifest.generation, sampling={"temperature": 0.7, "top_k": 40})
    monkeypatch.setattr(toy, "manifest", replace(toy.manifest, generation=generation))
    parser = ArgumentParser()
    add_pack_options(parser)
    add_session_options(parser)
    sampling = session_options(parser.parse_args(["--temp", "0", "--min-p", "0.1"]), toy).sampling
    assert (sampling.temperature, sampling.top_k, sampling.min_p) == (0, 40, 0.1)


def test_an_expected_text_is_drafted_from(
    told: Told, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[ExpectedDrafter] = []
    monkeypatch.setattr(ExpectedDrafter, "begin", lambda drafter, context: begun.append(drafter))
    file = tmp_path / "expected.txt"
    file.write_text("what the answer may be")
    words = [*PLAIN[:5], "--temp", "0"]
    assert told(*words, "--expect", str(file))["text"] == told(*words)["text"]
    assert [each.nbytes for each in begun] == [4 * len("what the answer may be")]  # a token of the toy's is a byte
    for more in (["--draft-max", "2"], ["--drafter", "suffix"], ["--samples", "2"], ["--mode", "switch"]):
        assert main([*words, "--expect", str(file), *more]) == 1
        assert "edgedecode: --expect drafts one answer" in capsys.readouterr().err
    assert main([*words, "--expect", str(tmp_path / "none")]) == 1
    assert "none" in capsys.readouterr().err


def test_several_answers_are_those_of_their_seeds(told: Told, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["generate", "-p", "hello", "-n", "12", "--temp", "0.9", "--ignore-eos"]
    found = told(*words, "--samples", "3", "--seed", "5")["answers"]
    alone = [told(*words, "--drafter", "none", "--seed", str(seed)) for seed in (5, 6, 7)]
    assert [(each["text"], each["seed"]) for each in found] == [(each["text"], each["seed"]) for each in alone]
    assert main([*words, "--samples", "2", "--seed", "5", "--stats"]) == 0
    out, err = capsys.readouterr()
    assert out == "".join(f"--- {n + 1} of 2, seed {5 + n}\n{alone[n]['text']}\n" for n in range(2))
    assert "12 tokens" in err
    assert "greedy answers" not in err
    assert main([*words, "--samples", "2", "--temp", "0"]) == 0
    assert "greedy answers are all the same: give --temp 0.8" in capsys.readouterr().err


def test_one_of_several_answers_is_chosen(told: Told, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["generate", "-p", "hello", "-n", "12", "--temp", "0.9", "--ignore-eos", "--samples", "4", "--seed", "5"]
    texts = [each["text"] for each in told(*words)["answers"]]
    voted = ["--choose", "vote", "--answer-pattern"]
    found = told(*words, *voted, r"(?s)^.(.*)$")
    assert (found["chosen"], found["votes"]) == (0, {text[1:].strip(): 1 for text in texts})
    assert main([*words, "--choose", "mean-logprob"]) == 0
    assert capsys.readouterr().out.removesuffix("\n") in texts
    assert main([*words, *voted, "no such text"]) == 0
    out, err = capsys.readouterr()
    assert "no answer has what the vote is about: all are given" in err
    assert all(text in out for text in texts)
    assert told(*words, *voted, "no such text")["chosen"] is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--choose", "vote"], "--choose needs several answers: give --samples N, 2 or more"),
        (["--samples", "2", "--answer-pattern", "x"], "give --choose vote"),
        (["--samples", "2", "--choose", "vote", "--answer-pattern", "("], "is no regular expression"),
        (["--samples", "129"], "129 answers at once are out of range: 1 to 128"),
        (["--samples", "2", "--drafter", "model"], "leave out --drafter"),
    ],
)
def test_several_answers_are_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "-p", "hello", *words]) == 1
    assert message in capsys.readouterr().err
