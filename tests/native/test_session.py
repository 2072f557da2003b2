"""Conversations in the native library against Python's sessions on the bundled pack: the same ids, texts and counts."""

import json
import os
import signal
import subprocess
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import edgedecode
from edgedecode.options import SessionDetails, SessionOptions
from edgedecode.pair import Pair
from edgedecode.sampling.weights import SamplingOptions
from edgedecode.text.messages import Message
from tests.made_once import run_folder
from tests.native.interface import BAD_INPUT, CANCELLED, FAILED, Library, NativeError, NativePack
from tests.native.test_models import ENGINE, packaged

pytestmark = pytest.mark.skipif(ENGINE is None, reason="this onnxruntime has no library of its own")
PROMPTS = [
    "Write a list of five fruits.",
    "Repeat this text three times: the quick brown fox jumps over the lazy dog.",
    "How do I sort a list in Python?",
    "Tell me a story about a robot that learns to cook, with émile and 東京 in it 🙂.",
]
SETTINGS: list[dict[str, Any]] = [
    {},
    {"drafter": "none"},
    {"temperature": 0.9, "seed": 7},
    {
        "temperature": 0.7,
        "top_p": 0.9,
        "min_p": 0.02,
        "repetition_penalty": 1.1,
        "seed": 2**53 - 1,
        "drafter": "suffix",
    },
    {"temperature": 1.0, "dry_multiplier": 0.8, "mirostat": 2, "seed": 3, "drafter": "trim"},
    {"temperature": 0.6, "seed": 11, "drafter": "recycle", "draft_max": 5, "ignore_eos": True},
    {"drafter": "trim", "draft_max": 4, "system": "You answer in one word."},
    {"drafter": "trim", "draft_max": 8, "temperature": 0.5, "seed": 5},
]
MOST = 48
COUNTS = (
    *("prompt_tokens", "cached_tokens", "rounds", "proposed", "accepted", "corrections", "bonuses", "ended"),
    *("verified_tokens", "survival", "reached", "drafters", "plain_rounds", "acceptance_length", "stop_string"),
    *("seed", "mode", "context_full", "dropped_turns"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = packaged(run_folder(tmp_path_factory) / "native")
    if "turns" not in json.loads((found / "native.json").read_text()):
        pytest.skip("the packaged folder has no tables of texts")
    return found


@pytest.fixture(scope="module")
def pair() -> Pair:
    return edgedecode.load()


def options_of(given: dict[str, Any], pair: Pair) -> SessionOptions:
    named = {name: given[name] for name in ("seed", "drafter", "draft_max") if name in given}
    rest = {name: value for name, value in given.items() if name not in {*named, "system", "ignore_eos"}}
    sampling = SamplingOptions(**{**dict(pair.shared.manifest.generation.sampling), **rest})
    return SessionOptions(sampling=sampling, details=SessionDetails(ignore_eos=given.get("ignore_eos", False)), **named)


def test_the_same_ids(native_build: Path, folder: Path, pair: Pair, tmp_path: Path) -> None:
    records = []
    for setting in SETTINGS:
        given = {"seed": 1, **setting}
        messages = [Message("system", given["system"])] if "system" in given else []
        for prompt in PROMPTS:
            with pair.session(options_of(given, pair), messages=messages) as session:
                reply = session.generate(prompt, max_tokens=MOST)
            request = {"message": prompt, "max_tokens": MOST}
            record = {"session": given, "request": request, "expected": [*reply.tokens]}
            if given.get("drafter") == "none" or "draft_max" in given:  # else the clock decides about drafts
                counts = json.loads(reply.stats.to_json())
                record["stats"] = {name: counts[name] for name in ("rounds", "proposed", "accepted", "plain_rounds")}
            records.append(record)
    file = tmp_path / "records.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    command = [str(native_build / "edgedecode-run"), str(folder), "--replay", str(file), "--engine", str(ENGINE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"answers": len(records), "equal": len(records)}
    assert len({tuple(record["expected"]) for record in records}) > len(records) // 2


@pytest.fixture(scope="module")
def pack(native_build: Path, folder: Path) -> Iterator[NativePack]:
    opened = Library(native_build / "libedgedecode.so").open(folder, engine=str(ENGINE), context=1024)
    yield opened
    opened.close()


def test_a_conversation(pack: NativePack, pair: Pair) -> None:
    """Ids, texts and counts of three turns, the last with a stop string, and one asked again."""
    options = {"seed": 4, "temperature": 0.8, "drafter": "suffix", "draft_max": 4}
    native = pack.session(**options, system="You are brief.")
    with pair.session(options_of(options, pair), messages=[Message("system", "You are brief.")]) as own:
        for prompt, stop in ((PROMPTS[0], []), (PROMPTS[1], []), (PROMPTS[2], ["e", "you"])):
            reply = own.generate(prompt, max_tokens=MOST, stop=stop)
            assert native.generate(message=prompt, max_tokens=MOST, stop=stop) == len(reply.tokens)
            found = native.stats()
            assert "".join(native.pieces) == reply.text
            assert (found["tokens"], found["finish_reason"]) == ([*reply.tokens], reply.finish_reason)
            expected = json.loads(reply.stats.to_json())
            assert {name: found["stats"][name] for name in COUNTS} == {name: expected[name] for name in COUNTS}
        assert found["stats"]["stop_string"]
        last = own.messages[:3]
    assert native.rewind(1) == 0
    with pair.session(options_of({**options, "seed": 9}, pair), messages=last) as other:
        reply = other.generate("Go on.", max_tokens=MOST)
    assert native.generate(message="Go on.", max_tokens=MOST, seed=9) == len(reply.tokens)
    assert "".join(native.pieces) == reply.text
    native.close()
    said = [{"role": each.role, "content": each.content} for each in last[1:]]  # as an app keeps them
    again = pack.session(**options, messages=said, system="You are brief.")
    assert again.generate(message="Go on.", max_tokens=MOST, seed=9) == len(reply.tokens)
    assert again.stats()["tokens"] == [*reply.tokens]
    again.close()


def test_a_full_context_loses_its_oldest_turns(pack: NativePack, pair: Pair) -> None:
    options = {"seed": 4, "temperature": 1.2, "drafter": "none", "ignore_eos": True}
    native, dropped = pack.session(**options), 0
    with pair.session(replace(options_of(options, pair), context=1024)) as own:
        for number in range(6):
            reply = own.generate(f"{PROMPTS[3]} Part {number}.", max_tokens=240)
            assert native.generate(message=f"{PROMPTS[3]} Part {number}.", max_tokens=240) == len(reply.tokens)
            found = native.stats()
            assert found["tokens"] == [*reply.tokens]
            assert found["stats"]["dropped_turns"] == reply.stats.dropped_turns
            assert found["stats"]["reread_tokens"] == reply.stats.reread_tokens
            dropped += reply.stats.dropped_turns
    assert dropped > 0
    native.close()


def test_memory_given_back_changes_no_text(pack: NativePack) -> None:
    session = pack.session(seed=5, temperature=0.7)
    session.generate(message=PROMPTS[0], max_tokens=MOST, seed=5)
    first = session.tokens()
    named = pack.session(seed=5, temperature=0.7, drafter="trim")
    assert pack.trim(0) == 0
    assert session.rewind(0) == 0
    gone: list[int] = []
    session.generate(lambda text: gone.append(pack.trim(2)), message=PROMPTS[0], max_tokens=MOST, seed=5)
    assert session.tokens() == first
    assert pack.trim(2) > 0
    assert session.rewind(0) == 0
    session.generate(message=PROMPTS[0], max_tokens=MOST, seed=5)
    assert session.tokens() == first
    assert gone[0] > 0
    named.generate(message=PROMPTS[0], max_tokens=MOST, seed=5)
    assert named.tokens() == first
    with pytest.raises(NativeError, match="drafts were given back by edgedecode_trim_memory"):
        pack.session(drafter="trim")
    session.close()
    named.close()


def test_cancelled_answers(pack: NativePack) -> None:
    session = pack.session(seed=1, drafter="none", ignore_eos=True)
    session.cancel()
    assert session.generate(message=PROMPTS[0]) == CANCELLED
    assert session.tokens() == []
    assert session.generate(lambda text: session.cancel(), message=PROMPTS[0], max_tokens=MOST) == CANCELLED
    assert 0 < len(session.tokens()) < MOST
    assert session.stats()["finish_reason"] == "cancelled"
    assert 0 < session.generate(lambda text: 1, message=PROMPTS[0], max_tokens=MOST) < MOST
    assert session.generate(message=PROMPTS[0], max_tokens=MOST) == MOST
    session.close()


def test_a_cancel_that_comes_too_late_is_forgotten(pack: NativePack) -> None:
    session = pack.session(seed=1, drafter="none", ignore_eos=True)
    request: dict[str, Any] = {"message": PROMPTS[0], "max_tokens": MOST, "seed": 1}
    session.generate(**request)
    stops = ["".join(session.pieces)[-2:] + " never"]  # for which the last piece waits until the end
    session.rewind(0)
    session.generate(**request, stop=stops)
    count = len(session.pieces)
    session.rewind(0)

    def late(text: str) -> None:
        if len(session.pieces) == count:
            session.cancel()

    assert session.generate(late, **request, stop=stops) == MOST
    assert session.generate(**request) == MOST
    session.cancel()
    assert session.generate(message=3) == BAD_INPUT  # no answer began
    assert session.generate(**request) == CANCELLED
    session.close()


def test_sessions_that_cannot_be_opened_leave_a_running_answer_alone(pack: NativePack) -> None:
    session = pack.session(seed=2, temperature=0.9, drafter="none", ignore_eos=True)
    request: dict[str, Any] = {"message": PROMPTS[3], "max_tokens": 150, "seed": 2}
    session.generate(**request)
    alone = session.tokens()
    session.rewind(0)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(session.generate, **request)
        while not running.done():
            with pytest.raises(NativeError, match=r"this pack has no drafting head|drafts were given back"):
                pack.session(drafter="head", draft_max=64)
    assert session.tokens() == alone
    session.close()


def test_memory_given_back_while_sessions_open(native_build: Path, folder: Path) -> None:
    library = Library(native_build / "libedgedecode.so")
    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            pack = library.open(folder, engine=str(ENGINE), context=512)
            opened = [pool.submit(pack.session, ignore_eos=True) for _ in range(3)]
            assert pool.submit(pack.trim, 1).result() >= 0
            assert pack.info()["models"] == ["target"]
            assert pack.info()["drafters"] == ["suffix", "recycle"]
            sessions = [each.result() for each in opened]
            asked = [pool.submit(each.generate, message=PROMPTS[0], max_tokens=8) for each in sessions]
            assert [each.result() for each in asked] == [8, 8, 8]
            for session in sessions:
                session.close()
            pack.close()


def test_sessions_in_threads_and_closed_packs(native_build: Path, folder: Path) -> None:
    pack = Library(native_build / "libedgedecode.so").open(folder, engine=str(ENGINE), context=512)
    asked = [{"message": prompt, "max_tokens": 100, "seed": 3} for prompt in PROMPTS]
    alone = []
    for request in asked:
        session = pack.session(temperature=0.9)
        session.generate(**request)
        alone.append(session.tokens())
        session.close()
    sessions = [pack.session(temperature=0.9) for _ in asked]
    with ThreadPoolExecutor(4) as pool:
        done = [pool.submit(session.generate, **request) for session, request in zip(sessions, asked, strict=True)]
        assert [each.result() for each in done] == [len(tokens) for tokens in alone]
        assert [session.tokens() for session in sessions] == alone
        last = pack.session(ignore_eos=True)
        began = threading.Event()
        running = pool.submit(last.generate, lambda text: began.set(), message=PROMPTS[0], max_tokens=400)
        assert began.wait(30)
        pack.close()
        assert running.result() == CANCELLED
    assert last.generate(message=PROMPTS[0]) == FAILED
    assert "closed" in last.library.error
    for session in (*sessions, last):
        session.close()


def test_a_fork_is_refused_and_closes_nothing(pack: NativePack) -> None:
    """The fork happens while another thread is in a pass and holds the library's locks."""
    session, library = pack.session(seed=1, ignore_eos=True), pack.library
    began = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(session.generate, lambda text: began.set(), message=PROMPTS[0], max_tokens=200)
        assert began.wait(30)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
            child = os.fork()
        if child == 0:
            signal.alarm(30)  # a lock that nobody gives back
            refused = session.generate(message="a") == FAILED and "forked" in library.error and pack.trim(2) == FAILED
            refused = refused and library.c.edgedecode_token_bytes(pack.handle, 5, None, 0) == FAILED
            refused = refused and pack.tokenize("a") == []
            session.close()
            pack.close()
            os._exit(0 if refused else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert running.result() == 200
    session.close()


def test_closed_from_its_own_callback(pack: NativePack) -> None:
    session = pack.session(ignore_eos=True)
    closed: list[bool] = []

    def close(text: str) -> None:
        if not closed:
            closed.append(True)
            session.close()

    assert session.generate(close, message=PROMPTS[0], max_tokens=MOST) == CANCELLED


def described_as(described: dict[str, Any], folder: Path, out: Path) -> Path:
    """Return a folder with the files of another, and this description."""
    for path in folder.iterdir():
        (out / path.name).symlink_to(path)
    (out / "native.json").unlink()
    (out / "native.json").write_text(json.dumps(described))
    return out


def test_answers_without_an_end_by_default(pack: NativePack, folder: Path, tmp_path: Path) -> None:
    described = json.loads((folder / "native.json").read_text())
    described["generation"]["max_tokens"] = 2**31 - 1
    opened = pack.library.open(described_as(described, folder, tmp_path), engine=str(ENGINE), context=512)
    session = opened.session(ignore_eos=True)
    assert session.generate(message=PROMPTS[0]) > 100
    assert session.stats()["stats"]["context_full"]
    session.close()
    opened.close()


def test_what_was_learnt_is_kept(native_build: Path, folder: Path, tmp_path: Path) -> None:
    library, file = Library(native_build / "libedgedecode.so"), tmp_path / "experience.json"
    assert library.c.edgedecode_version().decode() == edgedecode.__version__
    opened = library.open(folder, engine=str(ENGINE), experience=str(file))
    assert json.loads(file.read_text())["tables"] == {}
    session = opened.session()
    session.generate(message=PROMPTS[0], max_tokens=MOST)
    file.unlink()
    file.mkdir()
    opened.close()
    assert library.error.endswith("cannot be written: give a file in a folder of the app")
    file.rmdir()
    session.close()
    opened = library.open(folder, engine=str(ENGINE), experience=str(file))
    session = opened.session()
    session.generate(message=PROMPTS[0], max_tokens=MOST)
    opened.close()
    assert library.error == ""
    assert json.loads(file.read_text())["tables"]["0"]["plain"] > 0
