"""The verbs as a shell sees them: every kind of bad input in one line, and progress."""

import logging
import sys
import time
from contextvars import copy_context
from pathlib import Path

import pytest

from edgedecode.apps.terminal import progress, show_notices
from edgedecode.cli import main
from edgedecode.user_notices import NOTICES, work
from tests.apps.chat_script import piped
from tests.conftest import Refusal


def test_the_bare_command_says_where_to_begin(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    out = capsys.readouterr().out
    assert all(words in out for words in ("edgedecode run", "edgedecode chat", "edgedecode --help"))


REFUSALS = {
    "--debug": (2, "the following arguments are required: VERB"),
    "generate a b": (2, "put quotes around a text of several words"),
    "generate a -p b": (2, "unrecognized arguments: a"),
    "generate --file FOLDER": (1, "Is a directory"),
    "generate --file EMPTY": (1, "the prompt is empty"),
    "generate a -m FOLDER": (1, "is not a pack"),
    "generate a -m EMPTY": (1, "is not a folder"),
    "generate a --memory 1_000MB": (1, "is not a size"),
    "generate a -t 9999": (1, "9999 threads are out of range"),
    "generate a -m ": (1, "the name of the pack is empty"),
    "generate a -n 0": (2, "'0' is too small: the minimum is 1"),
    "generate a -t 0": (2, "'0' is too small: the minimum is 1"),
    "generate a -c 0": (2, "'0' is too small: the minimum is 1"),
    "generate a --draft-max -1": (2, "'-1' is too small: the minimum is 0"),
    "generate a --top-k -3": (2, "'-3' is too small: the minimum is 0"),
    "generate a --seed -2": (2, "'-2' is too small: the minimum is 0"),
    "chat -n 0": (2, "'0' is too small: the minimum is 1"),
    "bench --per-family 0": (2, "'0' is too small: the minimum is 1"),
    "generate a --drafter=": (1, "there is no drafter ''"),
    "chat two words": (2, "edgedecode chat: unrecognized arguments: two words"),
    "show a b": (2, "edgedecode show: unrecognized arguments: a b"),
    "show LATIN": (1, "is not a folder"),
    "cache clear": (2, "say what to delete"),
    "eval": (2, "choose what to evaluate: --equality, --kv-types, or both"),
    "eval --equality --prompts FOLDER": (1, "Is a directory"),
    "eval --equality --prompts EMPTY": (1, "holds no prompts"),
    "bench --families ,": (2, "give at least one name"),
    "bench --lengths 1,,2": (2, "'' is not a whole number"),
    "bench --lengths 99": (2, "'99' is too large: the maximum is 64"),
    "bench --temp nan": (2, "'nan' is not a number"),
    "bench --prompts LATIN": (1, "is not valid UTF-8"),
    "trim FOLDER": (1, "is not a pack"),
    "trim FOLDER --remove --prompts 5": (2, "leave out --prompts"),
    "trim FOLDER --size 0": (2, "argument --size: '0' is too small: the minimum is 1"),
    "trim FOLDER --size 9 --remove": (2, "not allowed with argument"),
    "import --target FOLDER --out x": (1, "is a folder: give the GGUF file in it"),
    "import --target EMPTY --out x": (1, "is empty"),
    "export --target FOLDER": (2, "required: --out"),
    "export --target x --out y --bits 5": (2, "invalid choice"),
    "export --target x --out y --block-size 64": (2, "invalid choice"),
    "export --target x --out y --noise-positions -1": (2, "'-1' is too small: the minimum is 0"),
    "export --target x --out y --noise-positions many": (2, "'many' is not a whole number"),
    "export --target x --out y --mixed": (2, "add --bits 4"),
    "export --target x --out y --calibrated": (2, "add --bits 4"),
    "export --target x --out y --imatrix z": (2, "add --bits 4"),
    "export --target x --out y --bits 4 --no-calibrated --write-imatrix z": (2, "--write-imatrix: --no-calibrated"),
    "export --target x --out y --bits 4 --imatrix z --write-imatrix z": (2, "--imatrix: nothing is calibrated then"),
    "export --target x --out y --bits 16 --block-size 32": (2, "--block-size: float16 weights have no blocks"),
    "export --target x --out y --bits 32 --block-size 32": (2, "--block-size: float32 weights have no blocks"),
    "export --target x --out y --bits 16 --block-size 32 --head-bits 8": (1, "edgedecode: "),  # there is no model x
    "export --target x --out y --bits 16 --activations 16": (2, "--activations: float16 weights use float activations"),
    "export --target x --out y --formats gguf": (2, "give onnx,gguf"),
    "export --target x --out y --formats onnx,pickle": (2, "is not a list of onnx and gguf"),
    "export --target x --out y --trim-vocab": (2, "--trim-vocab: it trims a draft's vocabulary, give --draft"),
    "export --target x --draft d --dry-run --trim-vocab 9": (2, "--trim-vocab: --dry-run makes no pack to trim"),
    "export --target x --out y --draft d --trim-vocab many": (2, "'many' is not a whole number"),
    "export --target x --out y --draft d --trim-vocab 0": (2, "--trim-vocab: '0' is too small: the minimum is 1"),
    "compile": (2, "the following arguments are required: PACK, --device"),
    "compile FOLDER": (2, "the following arguments are required: --device"),
    "compile --remove": (2, "the following arguments are required: PACK"),
    "compile FOLDER --remove --device qnn": (2, "argument --device: not allowed with --remove"),
    "compile FOLDER --remove --widths 8": (2, "argument --widths: not allowed with --remove"),
    "compile FOLDER --device qnn --context 0": (2, "'0' is too small"),
    "lint": (2, "edgedecode lint: "),
    "generate a -m demo --adapter formal": (1, "the pack has no adapters"),
    "generate a --adapter a:b": (2, "'b' is not a number"),
    "generate a --runtime abacus": (1, "no runtime 'abacus'"),
    "generate a --drafter psychic": (1, "no drafter 'psychic'"),
    "generate a --provider quantum": (1, "provider"),
    "generate a --temp -1": (1, "temperature -1.0 is out of range"),
    "generate a --temp warm": (2, "'warm' is not a number"),
    "generate a --temperature 1": (2, "did you mean --temp?"),
    "generate a --top-p 2": (1, "top_p 2.0 is out of range"),
    "generate a --min-p 1.5": (1, "min_p 1.5 is out of range"),
    "generate a --repeat-penalty 0": (1, "repetition_penalty 0.0 is out of range"),
    "generate a --ctx-size 1": (1, "out of range"),
    "generate a --ctx-size 4": (1, "prompt is too long"),
    "generate a --ctx-size 1000000": (1, "out of range"),
    "generate a --draft-max 99": (1, "draft length 99 is out of range"),
    "generate a --memory lots": (1, "is not a size"),
    "generate a --memory 500": (1, "did you mean 500MB?"),
    "plan --memory 500": (1, "'500' has no unit, so it is in bytes: did you mean 500MB?"),
    "serve --memory 500": (1, "did you mean 500MB?"),
    "chat --memory 500": (1, "did you mean 500MB?"),
    "generate a --rule hope": (2, "invalid choice: 'hope'"),
    "generate a --rule ratio --drafter suffix": (1, "ratio rule"),
    "generate a --stop=": (1, "stop string cannot be empty"),
    "generate a --seed 1.5": (2, "'1.5' is not a whole number"),
    "generate -p x --file y": (2, "not allowed with"),
    "generate a --system s --raw": (2, "not allowed with"),
    "generate --file FOLDER/none": (1, "No such file"),
    "generate --file LATIN": (1, "is not valid UTF-8"),
    "generate a -m FOLDER/none": (1, "no folder"),
    "generate a --json-schema nofile": (1, "--json-schema nofile cannot be used: No such file or directory"),
    'generate a --json-schema {"type":': (1, "cannot be used: Expecting value: line 1 column 9"),
    "plan --memory 0": (1, "'0' is not a size"),
    "plan --memory 1e9x": (1, "'1e9x' is not a size"),
    "plan --memory 10B": (1, "no plan fits 10 bytes (--memory)"),
    "plan --memory -5MB": (2, "expected one argument"),
    "plan --drafter tree": (1, "give --draft-max N, 1 to 16 nodes"),
    "plan --drafter nobody": (1, "nobody"),
    "plan -c 9999999": (1, "out of range"),
    "plan some/where -m else/where": (2, "name one of them"),
    "plan ./nowhere": (1, "nowhere"),
    "plan --runtime nothing": (1, "nothing"),
    "plan --kv-type float16": (1, "float16"),
    "devices --runtime abacus": (1, "there is no runtime 'abacus'; installed: llama, onnx"),
    "adapter add": (2, "the following arguments are required: PACK, NAME=SOURCE"),
    "adapter add pack odd": (2, "'odd' is not of the form NAME=SOURCE"),
    "adapter add pack =x": (2, "'=x' is not of the form NAME=SOURCE"),
    "adapter remove": (2, "the following arguments are required: PACK, NAME"),
    "eval --equality --runtimes onnx": (2, "name two different runtimes"),
    "eval --equality --runtimes onnx,onnx": (2, "name two different runtimes"),
    "eval --equality --limit 0": (2, "'0' is too small: the minimum is 1"),
    "eval --equality -n x": (2, "'x' is not a whole number"),
    "eval --equality --role third": (2, "invalid choice: 'third'"),
    "eval --equality --prompts FOLDER/none": (1, "none cannot be read"),
    "eval --kv-types --runtimes onnx,onnx": (2, "name each runtime once"),
    "eval --kv-types --kv-type int4": (2, "invalid choice: 'int4'"),
    "eval --kv-types --runtimes nothing": (1, "nothing"),
    "bench --lengths 1,x": (2, "'x' is not a whole number"),
    "bench --lengths 0": (2, "'0' is too small: the minimum is 1"),
    "bench --structured --lengths 2": (2, "--lengths does not go with --structured"),
    "bench --scale 1GB --adapter x": (2, "--adapter does not go with --scale"),
    "bench --top-p 0.9": (2, "--top-p needs --temp"),
    "bench --temp -1": (1, "temperature -1.0 is out of range"),
    "bench --repetitions 1001": (2, "the maximum is 1000"),
    "bench --families poetry": (1, "no prompts of family poetry"),
    "bench --drafters psychic": (1, "no drafter 'psychic'"),
    "bench --prompts FOLDER/none": (1, "No such file"),
    "bench --against genai --lengths 2": (2, "--lengths does not go with --against"),
    "bench --against ,": (2, "give at least one name"),
    "bench --against genai,nobody": (1, "there is no peer nobody to compare with; there are: genai, llama"),
    "bench --memory-sweep 0": (2, "'0' is too small: the minimum is 2"),
    "bench --memory-sweep two": (2, "'two' is not a whole number"),
    "bench --memory-sweep --turns 0": (2, "'0' is too small: the minimum is 1"),
    "bench --memory-sweep --memory 1GB": (2, "--memory does not go with --memory-sweep"),
    "bench --memory-sweep --per-family 2": (2, "--per-family does not go with --memory-sweep"),
    "bench --memory-sweep --against genai": (2, "not allowed with"),
    "bench --memory-sweep --runtime abacus": (1, "there is no runtime 'abacus'; installed: "),
    "bench --memory-sweep -m /no/such/pack": (1, "/no/such/pack"),
    "bench --turns 4": (2, "--turns needs --memory-sweep"),
}


@pytest.mark.parametrize("line", REFUSALS)
def test_verbs_refuse_bad_arguments_in_one_line(line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A usage error prints two lines. Runs in this process: refusals leave no state behind."""
    (tmp_path / "FOLDER").mkdir()
    (tmp_path / "EMPTY").write_bytes(b"")
    (tmp_path / "LATIN").write_bytes(b"\xff\xfe")
    made = ("FOLDER", "EMPTY", "LATIN")
    words = [str(tmp_path / word) if word.startswith(made) else word for word in line.split(" ")]
    code, expected = REFUSALS[line]
    try:
        found: object = main(words)
    except SystemExit as leaving:
        found = leaving.code
    err = capsys.readouterr().err
    assert (found, err.count("\n")) == (code, code), err
    assert expected in err


@pytest.mark.parametrize(
    ("verb", "data", "said"),
    [
        ("generate", b"caf\xe9 latin", "standard input is not valid UTF-8: byte 0xe9 at offset 3"),
        ("chat", b"caf\xe9\n", "line 1 of standard input is not valid UTF-8"),
    ],
)
def test_verbs_refuse_invalid_utf8(
    verb: str, data: bytes, said: str, refusal: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    piped(monkeypatch, data)
    assert said in refusal(verb, "-")
    assert "is not valid UTF-8" in refusal(verb, "\udce9")


def test_generate_refuses_a_damaged_pack(refusal: Refusal, pack_copy: Path) -> None:
    words, manifest = ("generate", "x", "-m", pack_copy), pack_copy / "edgedecode.json"
    text = manifest.read_text()
    for old, new, expected in (
        ('"version": 1', '"version": 99', "upgrade edgedecode"),
        ('"target/base.onnx"', '"../base.onnx"', "the manifest names the file"),
        ('"tokenizer.json"', '"/etc/passwd"', "the manifest names the file"),
        ("{", "", "is not JSON"),
    ):
        manifest.write_text(text.replace(old, new))
        assert expected in refusal(*words)
    manifest.write_text(text)
    weights = pack_copy / "target" / "weights.bin"
    data = weights.read_bytes()
    weights.write_bytes(data[:-1])
    assert "weights.bin" in refusal(*words)
    weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert "weights.bin" in refusal(*words, "--verify")
    weights.unlink()
    assert "weights.bin" in refusal(*words)


def test_progress_off_a_terminal_prints_a_line_every_few_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Work that ends before the first line is due prints none. The clock is read on each `advance`."""
    seconds = iter(range(0, 1000, 2))
    monkeypatch.setattr(time, "monotonic", lambda: next(seconds))
    with progress("measuring", 40) as advance:
        for _ in range(8):
            advance()
    assert capsys.readouterr().err.splitlines() == ["edgedecode: measuring 8%, 6 s", "edgedecode: measuring 15%, 12 s"]
    with progress("short", 2) as advance:
        advance(2)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("terminal", [True, False])
def test_work_shows_a_bar_only_on_a_terminal(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    logger = logging.getLogger(NOTICES)
    for name in ("handlers", "propagate"):
        monkeypatch.setattr(logger, name, getattr(logger, name))  # restored after the test
    monkeypatch.setattr(logger, "handlers", [])

    def long() -> None:
        show_notices()
        with work("preparing weights, MB", 40) as advance:
            advance(30)

    copy_context().run(long)
    printed = capsys.readouterr().err
    assert ("preparing weights, MB" in printed) == terminal
    assert ("30/40" in printed) == terminal
