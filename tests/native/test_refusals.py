"""What the native library and its program refuse: requests, options, a model's own defaults."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.native.interface import BAD_INPUT, NativeError, NativePack
from tests.native.test_models import ENGINE
from tests.native.test_session import PROMPTS, described_as, folder, pack

pytestmark = pytest.mark.skipif(ENGINE is None, reason="this onnxruntime has no library of its own")
__all__ = ["folder", "pack"]


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({}, "one of message, prompt and tokens"),
        ({"message": 3}, "message is 3: expected a string"),
        ({"message": "a", "max_tokens": "5"}, 'max_tokens is "5": expected a whole number'),
        ({"message": "a", "top_k": 1.5}, "top_k is 1.5: expected a whole number"),
        ({"message": "a", "prompt": "b"}, "has 2"),
        ({"message": "a", "max_tokens": 0}, "max_tokens 0 is out of range: 1 or more"),
        ({"message": "a", "stop": "b"}, "stop"),
        ({"message": "a", "stop": [""]}, "a stop string cannot be empty"),
        ({"message": "a", "temperature": -1}, "temperature -1 is out of range: 0 (greedy), or 0.000001 to 100"),
        (
            {"message": "a", "warmth": 1},
            "unknown field warmth: message, prompt, tokens, max_tokens, stop, adapter, seed, ",
        ),
        ({"tokens": [10**6]}, "token id 1000000 is not in the vocabulary"),
        ({"prompt": "word " * 3000}, "prompt is too long"),
        ({"message": "a", "logit_bias": {"99999999": 1}}, "logit_bias has the id 99999999"),
        ({"message": "a", "seed": -1}, "seed"),
    ],
)
def test_bad_requests(pack: NativePack, request_: dict[str, Any], words: str) -> None:
    session = pack.session()
    assert session.generate(**request_) == BAD_INPUT
    assert words in session.library.error
    assert session.generate(message=PROMPTS[0], max_tokens=3) > 0
    session.close()


def test_bad_options(pack: NativePack, folder: Path, tmp_path: Path) -> None:
    library = pack.library
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"drafter": "oracle"}, "unknown drafter oracle"),
        ({"adapter": "a"}, "the pack has no adapters"),
        ({"enable_thinking": False}, "has no such switch"),
        ({"draft_max": 65}, "draft_max 65 is out of range: 0 to 64"),
        ({"drafter": "tree", "draft_max": 8}, "unknown drafter tree: none, suffix, recycle, model, trim or head"),
        ({"a" + "é" * 40: 1}, "unknown option aé{29}: system"),  # cut between characters
        ({"messages": [{"role": "user", "content": "a"}]}, "messages end with the user's: leave it out"),
        ({"messages": [{"role": "user"}]}, "messages has no content"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "unknown role of a message tool: user, assistant;"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, "message 1 is the assistant's: after a system"),
        ({"messages": [{"role": "user", "content": "a", "name": "b"}]}, "unknown member of a message name: role"),
        ({"warmth": 1}, "unknown option warmth: system, messages, enable_thinking, adapter, drafter, draft_max, "),
    ]
    for options, words in wrong:
        with pytest.raises(NativeError, match=words):
            pack.session(**options)
    for name, value in (("verify", "yes"), ("experience", 3), ("memory", 1.5), ("drafts", 1), ("threads", "two")):
        for call in (library.plan, library.open):
            with pytest.raises(NativeError, match=f"^{name} is {json.dumps(value)}: expected "):
                call(folder, **{name: value})
    with pytest.raises(NativeError, match="threads 1000 is out of range: 0 to 256"):
        library.plan(folder, threads=1000)
    with pytest.raises(NativeError, match=r"experience: .*/nowhere/file cannot be written"):
        library.open(folder, engine=str(ENGINE), experience=str(tmp_path / "nowhere" / "file"))
    with pytest.raises(NativeError, match="budget"):
        library.open(folder, engine=str(ENGINE), memory=1000)
    with pytest.raises(NativeError, match="unknown option window"):
        library.plan(folder, window=3)
    for experience in (folder, folder / "native.json", folder / "target" / "tiles.bin"):  # it would be replaced
        with pytest.raises(NativeError, match="holds something else: give the path of a file of its own"):
            library.open(folder, engine=str(ENGINE), experience=str(experience))
    with pytest.raises(NativeError, match=r"^x{400} \.\.\. .{200}$"):
        library.plan(Path("x" * 100_000))
    with pytest.raises(NativeError, match="is no packaged folder"):
        library.plan(folder / "nowhere")
    plan = library.plan(folder, context=512)
    assert plan["total"] == sum(plan["holders"].values())
    assert plan["context"] == 512


@pytest.mark.parametrize(
    ("sampling", "words"),
    [
        ({"warmth": 1}, r"native.json: generation: unknown sampling option warmth: temperature, top_k"),
        ({"top_p": 2}, r"native.json: generation: top_p 2 is out of range"),
        ({"top_p": "much"}, r'native.json: generation: top_p is "much": expected a number'),
    ],
)
def test_bad_defaults_of_a_model(
    pack: NativePack, folder: Path, tmp_path: Path, sampling: dict[str, Any], words: str
) -> None:
    described = json.loads((folder / "native.json").read_text())
    described["generation"]["sampling"] = sampling
    with pytest.raises(NativeError, match=words):
        pack.library.open(described_as(described, folder, tmp_path), engine=str(ENGINE))


@pytest.mark.parametrize("words", [("--plan", "--seed", "1"), ("--json", "--info"), ("--info", "why"), ("--seed",)])
def test_the_program_refuses_what_it_would_ignore(native_build: Path, folder: Path, words: Sequence[str]) -> None:
    command = [str(native_build / "edgedecode-run"), str(folder), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: edgedecode-run")


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [(("--raw", "maybe"), 2, 'raw is "maybe": expected'), (("--adapter", "7"), 1, "the pack has no adapters")],
)
def test_values_of_the_program(native_build: Path, folder: Path, words: Sequence[str], code: int, error: str) -> None:
    command = [str(native_build / "edgedecode-run"), str(folder), "Hi.", "--engine", str(ENGINE), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, "")
    assert error in done.stderr
