"""`serve`: embeddings, in OpenAI's and Ollama's APIs."""

import base64
import http.client
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.apps.serving import Running, asked, lone, text_of, wait_for
from tests.apps.test_serve_several import Several
from tests.imports.files import File, write_file
from tests.library.conftest import home
from tests.small_tokenizers import byte_level

# isort: split
import edgedecode
from edgedecode import CapabilityError, Pair
from edgedecode.arrays import FloatArray
from edgedecode.decoding.model import HiddenModel
from edgedecode.open_pack import LoadOptions

__all__ = ["home"]
OPENAI, OLLAMA, OLDER = "/v1/embeddings", "/api/embed", "/api/embeddings"
TEXTS = ["A cat sleeps on the sofa.", "The market fell. " * 9, "é"]
"""One of them takes several passes."""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("gguf", reason="gguf is not installed")
    path = tmp_path_factory.mktemp("files") / "tiny.gguf"
    return write_file(path, byte_level(), File(kind="F32", layers=2, seed=3, context=256))


@pytest.fixture(scope="module")
def tiny(file: Path) -> Iterator[Pair]:
    with edgedecode.load(file, runtime="onnx", options=LoadOptions(hidden=True)) as pair:
        yield pair


@pytest.fixture(scope="module")
def exported(pack: Path) -> Iterator[Pair]:
    with edgedecode.load(pack, runtime="onnx", options=LoadOptions(hidden=True)) as pair:
        yield pair


@pytest.fixture(scope="module")
def server(tiny: Pair) -> Iterator[Running]:
    with Running(tiny) as server:
        yield server


def ids_of(pair: Pair, text: str) -> list[int]:
    return pair.tokenizer.encode(text, add_special=True)


def states(pair: Pair, ids: list[int]) -> FloatArray:
    """Return the hidden states of all tokens, of one pass."""
    model = pair.target
    assert isinstance(model, HiddenModel)
    state = model.new_state(len(ids), rows=len(ids))
    try:
        return model.hidden_rows(ids, state, rows="all")
    finally:
        state.close()


def expected(pair: Pair, text: str) -> FloatArray:
    mean = states(pair, ids_of(pair, text)).mean(axis=0, dtype=np.float64)
    return np.asarray(mean / np.linalg.norm(mean), np.float32)


@pytest.mark.parametrize("kind", ["tiny", "exported"])
def test_logits_are_made_of_the_hidden_states(kind: str, request: pytest.FixtureRequest, file: Path) -> None:
    """They are a linear map of them, and those of a model that is opened without."""
    given: Pair = request.getfixturevalue(kind)
    ids = ids_of(given, TEXTS[1] * 3)[:150]
    state = given.target.new_state(len(ids), rows=len(ids))
    logits = given.target.forward(ids, state, rows="all").logits.copy()
    state.close()
    hidden = states(given, ids)
    assert hidden.shape == (len(ids), given.manifest.models["target"].hidden_size)
    matrix = np.linalg.lstsq(hidden, logits, rcond=None)[0]
    assert np.abs(hidden @ matrix - logits).max() < 1e-3 * np.abs(logits).max()
    with edgedecode.load(file if kind == "tiny" else given.root, runtime="onnx") as plain:
        assert not plain.target.card.hidden
        state = plain.target.new_state(len(ids), rows=len(ids))
        assert (plain.target.forward(ids, state, rows="all").logits == logits).all()
        assert isinstance(plain.target, HiddenModel)
        with pytest.raises(CapabilityError, match="without its hidden states"):
            plain.target.hidden_rows(ids, state)
        state.close()


def test_openais_client_gets_vectors(server: Running, tiny: Pair) -> None:
    found = server.client.embeddings.create(model="tiny", input=TEXTS)  # the client asks for base64
    assert found.usage.prompt_tokens == found.usage.total_tokens == sum(len(ids_of(tiny, text)) for text in TEXTS)
    assert [each.index for each in found.data] == [0, 1, 2]
    for each, text in zip(found.data, TEXTS, strict=True):
        assert np.allclose(each.embedding, expected(tiny, text), atol=1e-6)
        assert abs(np.linalg.norm(each.embedding) - 1) < 1e-6
    floats = server.client.embeddings.create(model="tiny", input=TEXTS[0], encoding_format="float")
    assert floats.data[0].embedding == found.data[0].embedding
    ids = ids_of(tiny, TEXTS[0])
    for given in (ids, [ids]):
        assert server.client.embeddings.create(model="tiny", input=given).data[0].embedding == found.data[0].embedding
    size = tiny.manifest.models["target"].hidden_size
    reply = server.answer({"input": TEXTS[0], "dimensions": size, "encoding_format": "base64"}, "/embeddings")
    raw = np.frombuffer(base64.b64decode(reply["data"][0]["embedding"]), "<f4")
    assert raw.tolist() == found.data[0].embedding
    assert not np.allclose(found.data[0].embedding, found.data[1].embedding, atol=0.01)


def test_ollamas_client_gets_vectors(server: Running, tiny: Pair) -> None:
    ollama = pytest.importorskip("ollama")
    with ollama.Client(f"http://127.0.0.1:{server.port}") as client:
        found = client.embed("tiny", TEXTS)
        assert np.allclose(found.embeddings, [expected(tiny, text) for text in TEXTS], atol=1e-6)
        assert found.prompt_eval_count == sum(len(ids_of(tiny, text)) for text in TEXTS)
        assert client.embed("tiny", TEXTS[0]).embeddings[0] == found.embeddings[0]
        assert client.embeddings("tiny", TEXTS[0]).embedding == found.embeddings[0]
        assert client.embed("tiny", "").embeddings == []  # only loads it
        assert len(client.embed("tiny", "x" * 1000).embeddings) == 1  # is cut
        with pytest.raises(ollama.ResponseError, match="prompt is too long"):
            client.embed("tiny", "x" * 1000, truncate=False)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"input": ""}, "input is empty"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input[1] is empty"),
        ({"input": ["a", 1]}, "input must be a text"),
        ({"input": [10**6]}, "1000000"),
        ({}, "input is missing"),
        ({"input": "a", "dimensions": 7}, "this model's embeddings have"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format must be one of"),
        ({"input": "a", "inputs": "a"}, "unknown field"),
        ({"input": "x" * 1000}, "prompt is too long"),
    ],
    ids=str,
)
def test_what_is_refused(server: Running, more: dict[str, Any], said: str) -> None:
    server.refuses({"model": "tiny", **more}, said.replace("`", ""), OPENAI)
    assert server.answer({"model": "tiny", "input": "a"}, OPENAI)["data"]


def test_nothing_is_left_behind_and_answers_stay(server: Running, tiny: Pair) -> None:
    before = tiny.budget.used_nbytes
    server.answer({"model": "tiny", "input": TEXTS}, OPENAI)
    assert tiny.budget.used_nbytes == before
    answer = lone(tiny, "Hi", most=12)
    assert text_of(server.answer(asked(messages=[{"role": "user", "content": "Hi"}], max_tokens=12))) == answer


def test_a_client_that_goes_away_frees_its_place(server: Running) -> None:
    places = server.service.places
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    given = {"model": "tiny", "input": [TEXTS[1]] * 2000}
    connection.request("POST", OPENAI, json.dumps(given), {"Content-Type": "application/json"})
    wait_for(lambda: places.running)
    connection.close()
    wait_for(lambda: not places.running)
    assert server.answer({"model": "tiny", "input": "a"}, OPENAI)["data"]


def test_a_model_without_them_says_what_to_do(
    pair: Pair, pack: Path, home: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "gives no embeddings here: start the server with --embeddings"
    with edgedecode.load(file, runtime="onnx") as plain, Running(plain) as server:
        server.refuses({"input": "a"}, f"tiny {said}", OPENAI)
    with Running(pair) as server:
        assert "embedding" not in server.answer({"model": "demo"}, "/api/show")["capabilities"]
        server.refuses({"input": "a"}, f"demo {said}", OPENAI)
        for path in (OLLAMA, OLDER):
            status, reply = server.post({"model": "demo", "input": "a", "prompt": "a"}, path)
            assert (status, said in reply["error"]) == (400, True)
    monkeypatch.setenv("EDGEDECODE_KERNELS", "engine")
    with pytest.raises(CapabilityError, match="only where our kernels run it"):
        edgedecode.load(pack, runtime="onnx", options=LoadOptions(hidden=True))
    with Several(pair, "--embeddings") as server:
        server.refuses({"model": "demo", "input": "a"}, f"demo {said}", OPENAI)
        assert server.chat("demo")


def test_several_models_embed_and_answer(
    pair: Pair, tiny: Pair, exported: Pair, file: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEDECODE_MODELS", str(file.parent))
    with Several(pair, "--embeddings") as server:
        assert "embedding" in server.answer({"model": "demo"}, "/api/show")["capabilities"]
        found = server.client.embeddings.create(model="tiny", input=TEXTS)
        assert np.allclose(found.data[1].embedding, expected(tiny, TEXTS[1]), atol=1e-6)
        assert server.chat("demo")
        assert server.held == ["tiny", "demo"]
        for name in ("demo", "tiny", "tiny@plain"):
            assert "embedding" in server.answer({"model": name}, "/api/show")["capabilities"]
        vector = server.client.embeddings.create(model="demo", input=TEXTS[1]).data[0].embedding
        assert np.allclose(vector, expected(exported, TEXTS[1]), atol=1e-6)


def test_a_file_may_say_that_the_last_token_embeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: Pair) -> None:
    from edgedecode.apps.serve.embeddings import endpoints

    asks: list[Callable[..., bool]] = []
    monkeypatch.setattr(endpoints, "by_last_token", lambda pair: asks.append(pair) or True)
    with Running(tiny) as server:
        found = np.array(server.client.embeddings.create(model="tiny", input=TEXTS).data[1].embedding)
        server.client.embeddings.create(model="tiny", input="a")
    last = states(tiny, ids_of(tiny, TEXTS[1]))[-1]
    assert np.allclose(found, last / np.linalg.norm(last), atol=1e-6)
    assert len(asks) == 1
