"""Packs and prompts as words, names known from other programs, files that are read once, and JSON alone."""

import io
import json
import os
import subprocess
import threading
from argparse import ArgumentParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from edgedecode.cli import main
from edgedecode.command_words import sort_words
from edgedecode.engines.registry import COMMANDS, installed
from edgedecode.errors import ManifestError
from edgedecode.library import find, hub_files
from edgedecode.library.names import BUNDLED_PACK
from edgedecode.library.offers import Offer
from edgedecode.text.printable import piped_bytes
from edgedecode.verb_help import RARE
from tests.apps.conftest import Run, command_line
from tests.conftest import Refusal, Told


def parsers() -> dict[str, ArgumentParser]:
    """Return every installed verb with its options."""
    found: dict[str, ArgumentParser] = {}
    for name, entry in installed(COMMANDS).items():
        found[name] = ArgumentParser(prog=name)
        entry.load().configure(found[name])
    return found


def with_json() -> set[str]:
    return {name for name, parser in parsers().items() if _has_json(parser)}


def _has_json(parser: ArgumentParser) -> bool:
    inner = [each for action in parser._actions if isinstance(action.choices, dict) for each in action.choices.values()]
    own = any("--json" in action.option_strings for action in parser._actions)
    return own or any(isinstance(each, ArgumentParser) and _has_json(each) for each in inner)


JSON_RUNS: dict[str, list[str]] = {
    "adapter": ["list", "demo"],
    "head": ["list", "demo"],
    "bench": ["--quick", "--families", "story", "--per-family", "1", "--repetitions", "1", "-n", "4"],
    "cache": ["show"],
    "devices": [],
    "demo": ["-n", "2"],
    "eval": ["demo", "--kv-types", "--limit", "2", "-n", "4"],
    "generate": ["demo", "How many days are in a week?", "-n", "8"],
    "list": [],
    "plan": ["demo"],
    "show": ["demo"],
}
"""Words of a short run, of each verb whose run needs no other files."""
ELSEWHERE = {
    "calibrate",
    "compile",
    "distil",
    "export",
    "imatrix",
    "import",
    "lint",
    "package",
    "pull",
    "rm",
    "selftest",
    "trim",
}
"""Verbs whose JSON other tests read: they write packs, need a compiler, or change the library."""


def test_every_verb_with_json_is_known_here() -> None:
    assert with_json() == set(JSON_RUNS) | (ELSEWHERE & with_json())


@pytest.mark.parametrize("verb", JSON_RUNS)
def test_json_is_all_that_is_printed(
    verb: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nor do engines print anything, which write to the descriptor."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")  # `demo` would download its model: the bundled one serves
    assert main([verb, *JSON_RUNS[verb], "--json"]) == 0
    out = capfd.readouterr().out
    assert out.count("\n") == 1
    assert isinstance(json.loads(out), dict)


def test_json_alone_of_an_error_is_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "no/such/pack/here", "--json"]) == 1
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)


def words(pack: str | None, text: str | None, *loose: str, **given: Any) -> tuple[str, Any]:
    namespace = SimpleNamespace(pack=pack, prompt_text=text, **{"model": None, "prompt": None, "file": None, **given})
    wrong = sort_words(namespace, loose)  # type: ignore[arg-type]
    return wrong, namespace


PACKS = [
    "demo",
    "owner/name",
    "/tmp/pack",
    "./pack",
    "no/such/pack",
    "folder/",
    "llama3.2:1b",
    "gemma:latest",
    "Qwen3-0.6B-Instruct",
]
TEXTS = ["hello", "hello there", "/help", "and/or?", "either / or / both", "2+2=?", "covid-19", "at:5"]


@pytest.mark.parametrize(
    ("given", "model", "prompt"),
    [
        *(((pack, None), pack, None) for pack in PACKS),
        *(((text, None), None, text) for text in TEXTS),
        (("demo", "hello"), "demo", "hello"),
        (("owner/name", "hello"), "owner/name", "hello"),
        (("./pack", "hello"), "./pack", "hello"),
        ((None, None), None, None),
    ],
)
def test_a_word_is_a_pack_or_a_prompt(given: tuple[str, str | None], model: str | None, prompt: str | None) -> None:
    wrong, found = words(*given)
    assert (wrong, found.model, found.prompt_text) == ("", model, prompt)


def test_words_beside_options() -> None:
    assert words("hello", None, model="demo")[1].prompt_text == "hello"
    wrong, found = words("demo", None, prompt="hello")
    assert (wrong, found.model, found.prompt_text) == ("", "demo", None)
    assert words("demo", "hi", model="demo")[0] == ""
    assert "two packs are named" in words("demo", "hi", model="other")[0]
    assert "put quotes around a text of several words" in words("tell", "me", "a", "story")[0]
    assert "unrecognized arguments: hello" in words("hello", None, prompt="hi")[0]


def test_a_folder_of_a_pack_is_the_pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, file in (("mine", "edgedecode.json"), ("theirs", "config.json")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text("{}")
        assert words(name, None)[1].model == name
    assert words("other", None)[1].prompt_text == "other"


@pytest.mark.parametrize("line", ["generate", "generate demo -", "run demo", "chat -"])
def test_a_prompt_comes_from_standard_input(line: str, run: Run) -> None:
    """Each verb and each form once; `test_a_word_is_a_pack_or_a_prompt` has the forms by themselves."""
    done = run(*line.split(), "--temp", "0", stdin=b"What is the capital of France?\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout == b"The capital of France is Paris.\n"


@pytest.mark.parametrize("given", ["-", "/dev/stdin", "--file=/dev/fd/0"])
def test_standard_input_is_either_the_prompt_or_the_schema(
    given: str, monkeypatch: pytest.MonkeyPatch, refusal: Refusal
) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"{}"), isatty=lambda: False))
    words = ["-p", "-"] if given == "/dev/stdin" else [given]
    assert "standard input holds the schema" in refusal("generate", *words, "--json-schema", "/dev/stdin")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize(
    "line", [["run", "demo"], ["run", "demo", "--port", "0"], ["serve", "--port=0", str(BUNDLED_PACK)]]
)
def test_run_and_serve_open_the_page_if_nobody_asks(line: list[str]) -> None:
    """An empty pipe asks nothing, and with a port an open one is not read."""
    pytest.importorskip("uvicorn")
    environment = os.environ | {"BROWSER": "true"}  # none is opened on a desktop
    pipe = subprocess.PIPE
    with subprocess.Popen(command_line(line), stdin=pipe, stdout=pipe, env=environment) as child:
        assert child.stdin is not None
        if len(line) == 2:
            child.stdin.close()
        assert child.stdout.readline().startswith(b"chat with demo in the browser: http://127.0.0.1:")
        child.terminate()


def test_demo_is_a_pack_of_the_verbs_that_change_one(
    pack_copy: Path, monkeypatch: pytest.MonkeyPatch, told: Told, refusal: Refusal
) -> None:
    monkeypatch.setattr(find, "BUNDLED_PACK", pack_copy)
    removed = told("trim", "demo", "--remove")["removed"]
    assert removed
    assert not any((pack_copy / name).exists() for name in removed)
    for verb in ("lint", "selftest"):  # they take bundles, which are made of packs
        assert "demo is not a bundle: it has no bundle.json (make one with" in refusal(verb, "demo")


SUGGESTED: list[tuple[str, str]] = [
    ("ls", "edgedecode list"),
    ("download x", "edgedecode pull"),
    ("uninstall x", "edgedecode rm"),
    ("genrate hi", "did you mean `edgedecode generate`?"),
    ("help", "edgedecode --help"),
    ("generate hi --temperature 1", "did you mean --temp?"),
    ("generate hi --n-predict 4", "did you mean --max-tokens?"),
    ("generate hi --top_p 1", "did you mean --top-p?"),
    ("generate hi --max_new_tokens 4", "did you mean --max-tokens?"),
    ("generate hi -s 4", "did you mean --seed?"),
    ("generate -f x", "did you mean --file?"),
    ("generate hi --ngl 9", "did you mean --provider?"),
    ("generate hi -ctk q8_0", "did you mean --kv-type?"),
    ("generate hi --memry 1GB", "did you mean --memory?"),
    ("serve --prot 9", "did you mean --port?"),
    ("generate hi --temprature 1", "did you mean --temp?"),
    ("export --targt x", "unrecognized arguments: --targt: did you mean --target?"),
    ("cache clear --cost", "did you mean --costs?"),
    ("cache claer", "did you mean clear?"),
    ("adapter lst demo", "did you mean list?"),
    ("generate hi --rule Mtch", "did you mean match?"),
    ("GENERATE hi", "did you mean `edgedecode generate`?"),
    ("benchmark", "did you mean `edgedecode bench`?"),
    ("generate hi --model-draft x", "did you mean --draft?"),
    ("-m owner/name", "did you mean `edgedecode run owner/name`?"),
    ("owner/name", "did you mean `edgedecode run owner/name`?"),
    ("--verison", "did you mean --version?"),
    ("-v", "did you mean --version?"),
    ("--debug", "the following arguments are required: VERB"),
    ("cache clear --no-such", "unrecognized arguments: --no-such"),
    ("cache show --all", "unrecognized arguments: --all: it is an option of another action"),
    ("gen hi", "did you mean `edgedecode generate`?"),
    ("generate demo hi -m ./other", "two packs are named"),
    ("chat demo hi -m ./other", "two packs are named"),
    ("run demo hi -m ./other", "two packs are named"),
    ("plan demo -m ./other", "two packs are named"),
    ("--json list", "options follow the command: write `edgedecode VERB --json`"),
    ("--memory 500MB generate hi", "options follow the command: write `edgedecode VERB --memory`"),
    ("-m demo generate hi", "options follow the command: write `edgedecode VERB -m`"),
    ("--debug generate hi", "options follow the command: write `edgedecode VERB --debug`"),
    ("bench --out x", "edgedecode bench: unrecognized arguments: --out\n"),
    ("generate hi -nx", "edgedecode generate: unrecognized arguments: -nx\n"),
]


@pytest.mark.parametrize(("line", "said"), SUGGESTED)
def test_what_was_probably_meant_is_said(line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(line.split())
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("line", ["help generate", "--help generate", "-h generate", "generate --help"])
def test_help_of_a_command(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(line.split())
    assert capsys.readouterr().out.startswith("usage: edgedecode generate ")


@pytest.mark.parametrize("verb", ["run", "chat", "serve", "generate"])
def test_a_hub_id_alone_is_the_pack(verb: str, monkeypatch: pytest.MonkeyPatch, refusal: Refusal) -> None:
    def missing(name: str) -> Offer:
        raise ManifestError(f"{name} was asked of the hub")

    monkeypatch.setattr(hub_files, "hub_offer", missing)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"hello"), isatty=lambda: False))
    assert "owner/name was asked of the hub" in refusal(verb, "owner/name")


@pytest.mark.parametrize("name", ["./nofile.gguf", "nofile.gguf", "./folder/name", "~/no-such-pack"])
def test_a_path_is_never_asked_of_the_hub(name: str, monkeypatch: pytest.MonkeyPatch, refusal: Refusal) -> None:
    monkeypatch.setattr(hub_files, "hub_offer", Mock(side_effect=AssertionError("the hub was asked")))
    assert "there is no" in refusal("show", name)


def test_files_that_are_no_packs_are_told_what_makes_one(tmp_path: Path, refusal: Refusal) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    (folder := tmp_path / "hf").mkdir()
    (folder / "config.json").write_text("{}")
    assert "truncated or damaged" in refusal("generate", "hi", "-m", tmp_path / "model.gguf")
    assert "edgedecode export" in refusal("generate", "hi", "-m", folder)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("given", ["-", "/dev/stdin", "named pipe", "text"])
def test_a_schema_is_text_or_comes_from_a_pipe_that_is_read_once(given: str, run: Run, tmp_path: Path) -> None:
    schema = '{"$id": "https://example.org/a", "type": "object", "properties": {"age": {"type": "integer"}}}'
    if given == "text":
        given = schema
    elif given == "named pipe":
        os.mkfifo(pipe := tmp_path / "schema")
        threading.Thread(target=pipe.write_text, args=(schema,)).start()
        given = str(pipe)
    words = ("generate", "demo", "Extract age as JSON.\nUma is 61.", "--json-schema", given, "--temp", "0", "--json")
    assert json.loads(json.loads(run(*words, stdin=schema.encode()).stdout)["text"]) == {"age": 61}


def test_a_word_that_is_taken_for_the_model_is_named_where_the_prompt_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], refusal: Refusal
) -> None:
    taken = "(no/such/pack is taken for the model)"
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b""), isatty=lambda: False))
    assert f"the prompt is empty {taken}" in refusal("generate", "no/such/pack")
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    with pytest.raises(SystemExit, match="2"):
        main(["generate", "no/such/pack"])
    assert f"give a prompt {taken}" in capsys.readouterr().err


def test_standard_input_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"abc"), isatty=lambda: False))
    piped_bytes.cache_clear()
    from edgedecode.text.printable import file_bytes

    names = ("-", "/dev/stdin", "-", "/dev/fd/0", "/proc/self/fd/0")
    assert [file_bytes(Path(name)) for name in names] == [b"abc"] * 5
    piped_bytes.cache_clear()


def test_help_begins_with_common_options_and_names_the_way_to_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    texts = {}
    for flag in ("--help", "--help-all"):
        with pytest.raises(SystemExit) as leaving:
            main(["generate", flag])
        assert leaving.value.code == 0
        texts[flag] = capsys.readouterr().out
    assert len(texts["--help"].splitlines()) <= 45
    assert "--temp" in texts["--help"]
    assert "--switch-threshold" not in texts["--help"]
    assert "--switch-threshold" in texts["--help-all"]
    assert texts["--help"].splitlines()[-1].endswith("more options: edgedecode generate --help-all")


def test_rare_options_and_grouped_commands_exist(capsys: pytest.CaptureFixture[str]) -> None:
    known = {flag for parser in parsers().values() for action in parser._actions for flag in action.option_strings}
    assert {*RARE} - known == {"--debug"}, "every command has --debug"
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    assert "added by other packages" not in shown
    assert {line.split()[0] for line in shown.splitlines() if line.startswith("  ")} == installed(COMMANDS).keys()
