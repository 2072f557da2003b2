"""`serve` with several models: they are loaded when a request names them, within one budget."""

import json
import shutil
import threading
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.apps.packs import sign
from tests.apps.serving import CHAT, LONG, STORY, Running, asked, body, lone, serving, text_of, wait_for

# isort: split
import openai

from edgedecode import Pair, SessionOptions
from edgedecode.apps.serve.command import command
from edgedecode.apps.serve.models.places import Places
from edgedecode.apps.serve.models.several import SeveralModels
from edgedecode.apps.serve.models.shelf import ModelShelf
from edgedecode.cli import main
from edgedecode.library.names import BUNDLED_PACK
from edgedecode.memory.budget import SharedBudget
from edgedecode.memory.limit import Limit
from tests.library.conftest import VARIABLES

NAMES = ["one", "two", "three"]
PS, TAGS, GENERATE = "/api/ps", "/api/tags", "/api/generate"
Opened = tuple[Pair, SessionOptions]


def arguments(*words: str) -> Namespace:
    parser = ArgumentParser()
    command.configure(parser)
    return parser.parse_args(["--runtime", "onnx", *words])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of three packs, of which the third's template says more."""
    root = tmp_path_factory.mktemp("models")
    for name in NAMES:
        shutil.copytree(BUNDLED_PACK, root / name)
    template = root / "three" / "chat_template.jinja"
    template.write_text("<|im_start|>system\nBe kind.<|im_end|>\n" + template.read_text())
    sign(root / "three", template)
    return root


@pytest.fixture(autouse=True)
def library(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let the library hold the folder's models alone."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("EDGEDECODE_MODELS", str(folder))


class Several(Running):
    """A server of several models. slow: while it is set, models wait to be opened."""

    def __init__(self, pair: Pair, *words: str, names: list[str] | None = None, **more: Any) -> None:
        super().__init__(pair, several=self._made, **more)
        self.shared, self.shelf = SharedBudget(None), ModelShelf(arguments(*words), names or [])
        self.slow, self.opened = threading.Event(), list[str]()

    def _made(self, places: Places) -> SeveralModels:
        open_one = self.shelf.open

        def slowly(name: str, budget: SharedBudget) -> Opened:
            self.opened.append(name)
            while self.slow.is_set():
                threading.Event().wait(0.02)
            return open_one(name, budget)

        self.shelf.open = slowly  # type: ignore[method-assign]
        self.models = SeveralModels(self.shelf, self.shared, places)
        return self.models

    def limit_to(self, models: float) -> None:
        """Limit the budget to the memory of this many models with their sessions. One model must be loaded and idle."""
        (model,) = self.models.loaded
        one = model.service.pair.budget.used_nbytes
        self.shared.whole = Limit(self.shared.used_nbytes + int(one * (models - 1)))

    @property
    def held(self) -> list[str]:
        return [each["name"] for each in json.loads(self.get(PS).text)["models"]]

    def chat(self, model: str, **more: object) -> str:
        return text_of(self.answer(body(CHAT, model=model, **more)))


@pytest.fixture
def server(pair: Pair) -> Iterator[Several]:
    with Several(pair) as server:
        yield server


def test_models_are_listed_before_they_are_loaded(server: Several) -> None:
    listed = json.loads(server.get("/v1/models").text)["data"]
    every = {*NAMES, "demo"}
    names = every | {f"{name}@{mode}" for name in every for mode in ("plain", "switch")}
    assert {each["id"] for each in listed} == names
    assert all(each["context_length"] == 2048 and each["created"] > 1e9 for each in listed)
    tags = json.loads(server.get(TAGS).text)["models"]
    assert {each["name"] for each in tags} == names
    assert len({each["digest"] for each in tags}) == 12
    assert {each["details"]["family"] for each in tags} == {"llama"}
    assert server.held == []
    assert server.get("/v1/models/one").status == 200
    props = json.loads(server.get("/props").text)
    assert (props["name"] in every, props["modes"], props["library"]) == (True, ["plain", "switch"], True)
    assert props["default_generation_settings"]["n_ctx"] == 2048
    assert server.answer({"model": "two"}, "/api/show")["model_info"]["general.parameter_count"] > 1e6
    assert server.opened == []


def test_a_request_loads_its_model(server: Several, pair: Pair) -> None:
    answer = lone(pair, most=6)
    assert [server.chat(name) for name in ("one", "TWO", "one:latest")] == [answer] * 3
    assert server.held == ["one", "two"]
    assert server.opened == ["one", "two"]
    usage = [server.client.chat.completions.create(**asked(model=name, max_tokens=3)).usage for name in NAMES]
    assert [each and each.prompt_tokens for each in usage] != [usage[0] and usage[0].prompt_tokens] * 3
    listed = [each.id for each in server.client.models.list().data]
    assert {"one@plain", "two@plain"} <= {*listed}
    assert server.chat("two@plain") == answer
    assert text_of(server.answer({"messages": asked()["messages"]})) != ""  # the model that was used last
    memory = json.loads(server.get("/memory").text)
    assert memory["leased_nbytes"] == server.shared.used_nbytes
    assert server.count("edgedecode_memory_leased_bytes") == server.shared.used_nbytes


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ones", "there is no model 'ones': did you mean one?"),
        ("thre", "did you mean three?"),
        ("llama3.2:1b", "there is no model 'llama3.2:1b'; this server has: "),
        ("one:formal", "has no such adapter or mode; there is: one, "),
        ("one@fast", "has no such adapter or mode"),
    ],
)
def test_an_unknown_name_is_told_the_nearest(server: Several, name: str, said: str) -> None:
    assert server.refuses(body(CHAT, model=name), said, status=404)["code"] == "model_not_found"
    assert server.client.models.list().data
    with pytest.raises(openai.NotFoundError, match=r"there is no model|no such adapter"):
        server.client.chat.completions.create(**asked(model=name))
    for path in ("/api/chat", "/api/show"):
        status, reply = server.post({"model": name, "messages": []}, path)
        if "adapter" not in said or path == "/api/chat":
            assert (status, {*reply}) == (404, {"error"})
            assert said in reply["error"]


def test_what_is_wrong_with_a_body_loads_nothing(server: Several) -> None:
    server.refuses(body(CHAT, model="one", temperature=-1), "temperature")
    server.refuses(body(CHAT, model="nope", temperature=-1), "temperature")
    server.refuses(b"{", "not JSON")
    server.refuses({"model": 7, "messages": []}, "model")
    assert server.opened == []


def test_the_model_idle_for_longest_leaves(server: Several, pair: Pair) -> None:
    answer = lone(pair, most=6)
    assert server.chat("one") == answer
    server.limit_to(2.3)
    assert server.chat("two") == server.chat("one") == answer
    assert server.chat("demo") == answer
    assert server.held == ["one", "demo"]  # two was idle for longer
    assert server.shared.used_nbytes <= server.shared.whole.nbytes  # type: ignore[union-attr]
    assert server.chat("two") == answer
    assert server.held == ["demo", "two"]


def test_a_busy_model_ends_its_answers_before_it_leaves(server: Several, pair: Pair) -> None:
    """One model fits. Requests for both, and answers that take long: each is whole, and is the lone one's."""
    answer = lone(pair, STORY, most=40)
    server.chat("one")
    server.limit_to(1.2)
    with ThreadPoolExecutor(12) as pool:
        texts = pool.map(
            lambda number: text_of(server.answer(body(CHAT, STORY, 40, model=["one", "two"][number % 2]))), range(12)
        )
    assert [*texts] == [answer] * 12
    assert len(server.held) == 1
    assert server.shared.used_nbytes <= server.shared.whole.nbytes  # type: ignore[union-attr]


def test_a_long_answer_keeps_its_model(pair: Pair) -> None:
    with Several(pair) as server:
        server.chat("one")
        server.models.places.patience = 0.01
        stream = server.client.chat.completions.create(**asked(model="one", response_format=LONG, stream=True))
        with stream:
            first = next(iter(stream))
            assert first.model == "one"
            server.shared.whole = Limit(server.shared.used_nbytes + 1_000_000)
            error = server.refuses(body(CHAT, model="two"), "the memory budget has no room for two", status=503)
            assert error["code"] == "busy"
            assert server.held == ["one"]
            assert next(iter(stream)).choices
        wait_for(lambda: not server.models.places.running)
        assert server.chat("two")
        assert server.held == ["two"]


def test_a_model_that_never_fits_is_refused_with_the_figure_and_others_stay(server: Several) -> None:
    server.chat("one")
    server.shared.whole = Limit(server.shared.used_nbytes)
    original, big = server.shelf.open, 10**12

    def too_large(name: str, budget: SharedBudget) -> Opened:
        budget.part().reserve("weights:target", big)
        return original(name, budget)

    server.shelf.open = too_large  # type: ignore[method-assign]
    error = server.refuses(body(CHAT, model="two"), "MB are needed for the target's weights", status=507)
    assert error["code"] == "memory"
    assert "raise --memory to" in error["message"]
    assert server.held == ["one"]


def test_loading_keeps_no_other_model_waiting(server: Several, pair: Pair) -> None:
    server.chat("one")
    server.slow.set()
    with ThreadPoolExecutor(8) as pool:
        waits = [pool.submit(server.chat, "two") for _ in range(7)]  # more than there are places
        wait_for(lambda: "two" in server.opened)
        answer = lone(pair, most=6)
        assert [server.chat("one") for _ in range(3)] == [answer] * 3
        assert json.loads(server.get(TAGS).text)["models"]
        assert not any(each.done() for each in waits)
        server.slow.clear()
        assert [each.result() for each in waits] == [answer] * 7
    assert server.opened == ["one", "two"]


def test_a_model_that_cannot_be_opened_is_told_to_all_that_wait_for_it(server: Several, folder: Path) -> None:
    spoiled = folder / "spoiled"
    shutil.copytree(folder / "one", spoiled)
    try:
        assert server.get("/v1/models/spoiled").status == 200
        (spoiled / "tokenizer.json").write_text("{")
        for _ in range(2):
            assert "tokenizer.json" in server.refuses(body(CHAT, model="spoiled"))["message"]
    finally:
        shutil.rmtree(spoiled)
    assert server.chat("one")


def test_models_stay_as_long_as_ollamas_clients_ask(server: Several) -> None:
    def ask(keep: object, prompt: str = "Hi") -> Any:
        given = {"model": "one", "prompt": prompt, "stream": False, "keep_alive": keep, "options": {"num_predict": 2}}
        return server.answer(given, GENERATE)

    assert ask(0, "")["done_reason"] == "unload"
    assert server.opened == []  # it was not loaded for that
    first, then = ask(-1), ask(-1)
    assert first["total_duration"] > first["load_duration"] > then["load_duration"] == 0
    assert json.loads(server.get(PS).text)["models"][0]["expires_at"].startswith("9999")
    assert ask("10m")["done"]
    assert json.loads(server.get(PS).text)["models"][0]["expires_at"].startswith("20")
    assert ask("100ms")["done"]
    wait_for(lambda: not server.held)
    assert ask(None, "")["done_reason"] == "load"
    assert server.held == ["one"]
    assert ask(0, "")["done_reason"] == "unload"
    wait_for(lambda: not server.held)
    wait_for(lambda: not [part for part in server.shared.parts if part is not server.shared.own and part.used_nbytes])
    memory = json.loads(server.get("/memory").text)
    assert memory["leased_nbytes"] == server.shared.own.used_nbytes
    for wrong in ("soon", "5 m", "m5", "1d", [1], True):
        status, reply = server.post({"model": "one", "prompt": "Hi", "keep_alive": wrong}, GENERATE)
        assert (status, "keep_alive" in reply["error"]) == (400, True), reply


def test_ollamas_client_uses_several(server: Several) -> None:
    ollama = pytest.importorskip("ollama")
    with ollama.Client(f"http://127.0.0.1:{server.port}") as client:
        assert {each.model for each in client.list().models} >= {*NAMES, "demo"}
        for name in ("one", "two"):
            reply = client.chat(name, [{"role": "user", "content": "Hi"}], keep_alive="5m", options={"num_predict": 3})
            assert (reply.model, reply.message.content != "") == (name, True)
        assert [each.model for each in client.ps().models] == ["one", "two"]
        with pytest.raises(ollama.ResponseError, match="did you mean three"):
            client.generate("thre", "Hi")


def test_a_server_that_closes_while_a_model_is_loaded_releases_it(pair: Pair) -> None:
    server = Several(pair)
    with ThreadPoolExecutor(1) as pool:
        with server:
            server.slow.set()
            waits = pool.submit(server.post, body(CHAT, model="one"))
            wait_for(lambda: server.opened)
            threading.Timer(0.3, server.slow.clear).start()
        assert waits.exception(120) is not None or waits.result()[0] in (200, 503)
    assert not [part for part in server.shared.parts if part is not server.shared.own and part.used_nbytes]


def test_the_command_serves_the_models_that_are_named() -> None:
    with (
        serving(models=("three", "demo")) as (_, address),
        openai.OpenAI(base_url=f"{address}/v1", api_key="none") as client,
    ):
        assert [each.id for each in client.models.list().data] == [
            *("three", "three@plain", "three@switch", "demo", "demo@plain", "demo@switch")
        ]
        reply = client.chat.completions.create(**asked(model="demo", max_tokens=4))
        assert reply.choices[0].message.content
        with pytest.raises(openai.NotFoundError, match="this server has: three, demo"):
            client.chat.completions.create(**asked(model="one"))


@pytest.mark.parametrize("words", [("--draft", "one"), ("one", "two", "--adapter", "formal"), ("one", "nope")])
def test_options_of_one_model_need_its_name(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--port", "0", *words]) == 1
    said = capsys.readouterr().err
    assert ("is an option of one model: name it" in said) or "no model 'nope'" in said
