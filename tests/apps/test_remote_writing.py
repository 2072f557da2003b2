"""Servers that go on with a text where the device's model is unsure, or write whole answers: by ids, or by text."""

import json
from itertools import groupby
from typing import Any

import pytest

from tests.apps.serving import STORY, Running, wait_for

# isort: split
from edgedecode import CapabilityError, EdgeDecodeError, Pair, SamplingOptions, SessionDetails, SessionOptions
from edgedecode import SwitchOptions as Switch
from edgedecode.apps.bundled_prompts import bundled_prompts
from edgedecode.sessions.chunks import TARGET_SOURCE
from tests.apps.middle import GREEDY, answering, forwarded, remote, text_of

SERVER = {"verifies": True}
WRITING = ["edgedecode", "llama-server", "openai", "ollama"]
TEXTS = [prompt.turns[-1] for prompt in bundled_prompts()[::20]]
BY_TEXT = {"openai": "/v1/completions", "ollama": "/api/generate"}


def switching(threshold: float, **options: Any) -> SessionOptions:
    return SessionOptions(seed=3, details=SessionDetails(switch=Switch(threshold=threshold)), **options)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the pack's own small draft be the device's model."""
    monkeypatch.setattr("edgedecode.engines.target_server.with_device_draft", lambda manifest: manifest)


@pytest.mark.parametrize("kind", WRITING)
@pytest.mark.parametrize("threshold", [0.2, 0.5, 1.5])
def test_switching_across_machines_is_that_on_one(
    kind: str, threshold: float, small: None, server: Running, pair: Pair
) -> None:
    """A stretch that the device hands over is one request, of `FEW` tokens at most."""
    options = switching(threshold, sampling=GREEDY)
    handed = 0
    with remote(server.port, kind=kind, model="demo") as device:
        connection: Any = device.target
        connection = connection.connection.counts
        for prompt in TEXTS:
            with pair.session(options) as own, device.session(options) as session:
                wanted = [*own.stream(prompt, max_tokens=40)]
                before = connection.requests
                found = [*session.stream(prompt, max_tokens=40)]
                tokens = [[token for chunk in chunks for token in chunk.tokens] for chunks in (found, wanted)]
                assert tokens[0] == tokens[1]
                written = [chunk.source == TARGET_SOURCE for chunk in wanted for _ in chunk.tokens]
                assert session.stats.verified_tokens == sum(written)
                stretches = [len([*each]) for by_target, each in groupby(written) if by_target]
                handed += sum(stretches)
                assert connection.requests - before == sum(-(-length // 8) for length in stretches)
    assert 40 < handed < 40 * len(TEXTS)


@pytest.mark.parametrize("kind", BY_TEXT)
def test_a_server_that_takes_text_writes_whole_answers(kind: str, server: Running, pair: Pair) -> None:
    with remote(server.port, kind=kind, model="demo") as device:
        target: Any = device.target
        for prompt in TEXTS:
            before = target.connection.counts.requests
            assert text_of(device, prompt, most=150) == text_of(pair, prompt, most=150, drafter="none")
            assert target.connection.counts.requests - before == 1
        wait_for(lambda: not server.service.running)
        with (
            device.session(SessionOptions(sampling=GREEDY)) as session,
            pair.session(SessionOptions(sampling=GREEDY, drafter="none")) as own,
        ):
            for words in (STORY, "And then?"):
                assert session.generate(words, max_tokens=30).text == own.generate(words, max_tokens=30).text
        warm = SamplingOptions(temperature=0.9, top_p=0.9)
        one, same, other = (text_of(device, sampling=warm, seed=seed) for seed in (1, 1, 2))
        assert one == same != other
        with pytest.raises(CapabilityError, match="verifies no drafts"):
            device.session(SessionOptions(draft_max=4))
        with pytest.raises(CapabilityError, match=r"typical_p: .* is not told of it"):
            device.session(SessionOptions(sampling=SamplingOptions(temperature=0.9, typical_p=0.5)))


@pytest.mark.parametrize("kind", WRITING)
@pytest.mark.parametrize(
    "fault",
    [
        (0, b""),
        (0, b"HTTP/1.1 200 OK\r\n\r\ndata: {"),
        (500, b"no"),
        (200, b"data: {}\n\n"),
        (200, b'data: {"tokens": [1.5], "choices": [{"text": "\\ud800"}], "response": "\\ud800"}\n\n'),
    ],
)
def test_where_a_writing_server_goes_every_answer_ends(
    kind: str, fault: tuple[int, bytes], small: None, server: Running
) -> None:
    asked: list[str] = []

    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        asked.append(path)
        return fault if len(asked) > most[0] and body else forwarded(server.port, path, body)

    for moment in (0, 1, 4):
        most = [1000]
        with (
            answering(answer) as url,
            remote(url, kind=kind, model="demo", offline=True, seconds=2.0) as device,
            device.session(switching(0.5, sampling=GREEDY)) as session,
        ):
            del asked[:]
            most = [moment]
            done = session.generate(STORY, max_tokens=40)
            assert len(done.tokens) == 40
            assert 0 < done.stats.alone_tokens <= 40
        most = [1000]
        with answering(answer) as url, remote(url, kind=kind, model="demo", seconds=2.0) as device:
            del asked[:]
            most = [moment]
            with pytest.raises(EdgeDecodeError) as raised:
                text_of(device, details=SessionDetails(switch=Switch(threshold=0.5)))
            assert "\n" not in str(raised.value)


def completions(reply: Any, *, models: Any = ("big",), status: int = 200) -> Any:
    """Return a server with models, whose completions are `reply`."""

    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == "/v1/models":
            return 200, {"object": "list", "data": [{"id": each} for each in models]}
        if not body.get("stream"):
            return status, reply
        return 200, reply

    return answer


LETTER = {"choices": [{"text": "b"}], "usage": {"prompt_tokens": 1}}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (completions({"error": {"message": "This is a chat model"}}, status=404), "chat model: where only chats"),
        (completions({**LETTER, "usage": {"prompt_tokens": 23}}), "puts a prompt into a chat template .23 tokens"),
        (completions(LETTER, models=("one", "two")), "has several models: name one with --target-model; it has: one"),
        (completions(LETTER, models=()), "has no model"),
        (completions({"error": {"message": "no key"}}, status=401), "refuses /v1/completions .401.: no key"),
    ],
)
def test_servers_that_cannot_go_on_are_refused(answer: Any, said: str) -> None:
    with answering(answer) as url, pytest.raises(EdgeDecodeError, match=said):
        remote(f"{url}/v1/", kind="openai")


@pytest.mark.parametrize(
    ("events", "said"),
    [
        (b"<html>", "writes nothing"),
        (b"data: {no\n\n", "no JSON object"),
        (b'data: {"choices": 5}\n\n', "does not answer as such"),
        (b'data: {"choices": [{}]}\n\n', "does not answer as such"),
        (b'data: {"choices": [{"text": 7}]}\n\n', "does not answer as such"),
        (b'data: {"error": {"message": "out of\\nmemory"}}\n\n', "ends its answer: out of memory"),
    ],
)
def test_garbage_in_a_stream_is_told(events: bytes, said: str) -> None:
    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        return (200, events) if body.get("stream") else completions(LETTER)(path, body)

    with answering(answer) as url, remote(url, kind="openai") as device, pytest.raises(EdgeDecodeError, match=said):
        text_of(device)


def test_a_stream_of_no_ids_ends(server: Running, pair: Pair) -> None:
    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if body.get("write"):
            return 200, b'{"session": "s", "model": "demo"}\n' + b'{"ids": []}\n' * 9
        return forwarded(server.port, path, body)

    with answering(answer) as url, remote(url) as device:
        state: Any = device.target.new_state(200)
        state.streams = True
        tokens = pair.tokenizer.encode(STORY)
        assert device.target.forward(tokens, state).logits.shape[0] == 1
        assert state.stream is None
        state.close()


def test_a_llama_server_without_any_probabilities_is_given_up(pair: Pair) -> None:
    asked: list[str] = []

    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == "/tokenize":
            return 200, {"tokens": pair.tokenizer.encode(body["content"])}
        asked.append(path)
        return 200, {"content": "", "tokens": [5]}

    with answering(answer) as url, remote(url, kind="llama-server") as device:
        warm = SamplingOptions(temperature=0.9, top_k=1)
        refused = pytest.raises(EdgeDecodeError, match="does not answer as such a server does")
        with device.session(SessionOptions(sampling=warm)) as session, refused:
            session.generate(STORY, max_tokens=1)
    assert asked.count("/completion") == 16


def test_characters_of_several_tokens_arrive_whole_from_llama_server(pair: Pair) -> None:
    """It leaves out the ids before a character is complete, and the probabilities beside such a token."""
    fox = pair.tokenizer.encode("🦊")
    assert len(fox) > 2
    bodies: list[dict[str, Any]] = []

    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == "/tokenize":
            return 200, {"tokens": pair.tokenizer.encode(body["content"])}
        if path != "/completion":
            return 200, {}
        bodies.append(body)
        if body.get("stream"):
            event = {"content": "🦊", "tokens": fox[-1:], "tokens_predicted": len(fox)}
            return 200, b"data: " + json.dumps(event).encode() + b"\n\n"
        if not body["logit_bias"]:
            return 200, {"content": "", "tokens": fox[:1]}
        return 200, {"completion_probabilities": [{"top_logprobs": [{"id": fox[0], "logprob": -0.5}]}]}

    with answering(answer) as url, remote(url, kind="llama-server") as device:
        assert text_of(device, most=len(fox)) == "🦊"
        assert len(bodies) == 1
        warm = SamplingOptions(temperature=0.9, top_k=1)
        with device.session(SessionOptions(sampling=warm)) as session:
            assert session.generate(STORY, max_tokens=1).tokens == (fox[0],)
        assert [body.get("logit_bias") for body in bodies] == [None, [], [[fox[0], False]]]
