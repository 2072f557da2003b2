"""`serve`: /v1/completions with lists, token ids, `echo` and the prompt's log probabilities, as evaluations use it."""

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.apps.serving import COMPLETIONS, Running, streamed, wait_for

# isort: split
from edgedecode import SessionOptions
from edgedecode.sessions.target_reading import TargetReading

TEXTS = ["A frog sat by the", "The capital of France is", "One, two, three,"]
GREEDY = {"model": "demo", "temperature": 0, "max_tokens": 5}


SERVER = {"parallel": 2, "waiting": 2, "options": SessionOptions(context=256)}


def complete(server: Running, **fields: Any) -> dict[str, Any]:
    return dict(server.answer(GREEDY | fields, COMPLETIONS))


def scores(server: Running, prompt: str | list[int]) -> tuple[list[int], list[float | None]]:
    """Return a prompt's tokens and their log probabilities."""
    with server.pair.session(SessionOptions(context=256)) as session:
        found = session.score(prompt)
        return [*session.tokens], [None if each is None else each.logprob for each in found]


def test_a_list_of_prompts_gives_each_its_answers_in_order(server: Running) -> None:
    lone = [complete(server, prompt=text) for text in TEXTS]
    texts = [each["choices"][0]["text"] for each in lone]
    assert len({*texts}) == len(texts)
    ids = [server.pair.tokenizer.encode(text, add_special=True) for text in TEXTS]
    for prompt in (TEXTS, ids):
        reply = complete(server, prompt=prompt)
        assert [(each["index"], each["text"]) for each in reply["choices"]] == [*enumerate(texts)]
        for kind in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert reply["usage"][kind] == sum(each["usage"][kind] for each in lone)
    assert complete(server, prompt=ids[0])["choices"][0]["text"] == texts[0]
    found = server.client.completions.create(prompt=TEXTS, stream=True, model="demo", temperature=0, max_tokens=5)
    parts = [choice for part in found for choice in part.choices]
    assert [part.index for part in parts] == sorted(part.index for part in parts)
    assert ["".join(part.text for part in parts if part.index == index) for index in range(3)] == texts


def test_several_answers_to_each_prompt_of_a_list(server: Running) -> None:
    fields = {"temperature": 1, "seed": 3, "n": 2}
    lone = [complete(server, prompt=text, **fields) for text in TEXTS]
    reply = complete(server, prompt=TEXTS, **fields)
    texts = [choice["text"] for each in lone for choice in each["choices"]]
    assert [(each["index"], each["text"]) for each in reply["choices"]] == [*enumerate(texts)]
    assert reply["usage"]["prompt_tokens"] == sum(each["usage"]["prompt_tokens"] for each in lone)


def test_a_long_list_waits_for_itself(server: Running) -> None:
    """Two answers run at a time, and two requests may wait: 40 prompts of one request are no 38 waiting requests."""
    reply = complete(server, prompt=[f"{number} ducks" for number in range(40)], max_tokens=1)
    assert len(reply["choices"]) == 40


@pytest.mark.parametrize("ids", [False, True])
@streamed
def test_echo_repeats_the_prompt_with_its_log_probabilities(server: Running, *, ids: bool, stream: bool) -> None:
    tokens, wanted = scores(server, TEXTS[0])
    plain = complete(server, prompt=TEXTS[0], logprobs=2)["choices"][0]
    prompt: Any = tokens if ids else TEXTS[0]
    fields: Any = GREEDY | {"prompt": prompt, "echo": True, "logprobs": 2}
    if stream:
        parts = [part.choices[0] for part in server.client.completions.create(**fields, stream=True)]
        text = "".join(part.text for part in parts)
        found: dict[str, list[Any]] = {name: [] for name in plain["logprobs"]}
        for part in parts:
            for name, values in (part.logprobs.to_dict() if part.logprobs else {}).items():
                found[name] += values  # type: ignore[arg-type]
    else:
        text = (choice := complete(server, **fields)["choices"][0])["text"]
        found = choice["logprobs"]
    assert text == TEXTS[0] + plain["text"]
    assert {len(values) for values in found.values()} == {len(tokens) + len(plain["logprobs"]["tokens"])}
    assert found["token_logprobs"][: len(tokens)] == wanted
    assert (found["token_logprobs"][0], found["top_logprobs"][0]) == (None, None)
    assert all(2 <= len(each) <= 3 for each in found["top_logprobs"][1:])
    assert found["token_logprobs"][len(tokens) :] == pytest.approx(plain["logprobs"]["token_logprobs"], abs=1e-4)
    placed = zip(found["text_offset"], found["tokens"], strict=True)
    assert all(text[start:].startswith(token) for start, token in placed if token != "<|im_end|>")
    assert "".join(found["tokens"]).removesuffix("<|im_end|>") == text


def test_offsets_count_the_special_tokens_that_a_prompt_writes(server: Running) -> None:
    text = "<|im_start|>user\nHow many days?<|im_end|>\n"
    found = complete(server, prompt=text, echo=True, logprobs=0, max_tokens=0)["choices"][0]
    placed = zip(found["logprobs"]["text_offset"], found["logprobs"]["tokens"], strict=True)
    assert all(text[start:].startswith(token) for start, token in placed)
    assert ("".join(found["logprobs"]["tokens"]), found["text"]) == (text, text)


def test_log_probabilities_of_a_choice_rank_it_as_sessions_do(server: Running) -> None:
    """What an evaluation of multiple-choice questions computes: the sum over a continuation, and if it is greedy."""
    context, endings = "How many days are in a week?", [" Seven.", " Purple.", " A week has seven days."]
    size = len(server.pair.tokenizer.encode(context, add_special=True))
    sums = []
    ids = [server.pair.tokenizer.encode(context + ending, add_special=True) for ending in endings]
    reply = complete(server, prompt=ids, echo=True, logprobs=1, max_tokens=1, seed=1234)
    for choice, tokens in zip(reply["choices"], ids, strict=True):
        found = choice["logprobs"]["token_logprobs"]
        assert len(found) == len(tokens) + 1
        sums.append(sum(found[size:-1]))
        assert found[:-1] == scores(server, tokens)[1]
        for logprob, top in zip(found[1:], choice["logprobs"]["top_logprobs"][1:], strict=True):
            assert max(top.values()) >= logprob
            assert logprob in top.values()
    assert max(sums) == sums[2]


def test_no_tokens_are_asked_for(server: Running) -> None:
    tokens, wanted = scores(server, TEXTS[1])
    choice = (reply := complete(server, prompt=TEXTS[1], echo=True, logprobs=0, max_tokens=0))["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == (TEXTS[1], "length")
    assert choice["logprobs"]["token_logprobs"] == wanted
    assert (reply["usage"]["prompt_tokens"], reply["usage"]["completion_tokens"]) == (len(tokens), 0)
    empty = complete(server, prompt=TEXTS[1], max_tokens=0)
    assert (empty["choices"][0]["text"], empty["choices"][0]["logprobs"]) == ("", None)
    assert empty["usage"]["prompt_tokens"] == len(tokens)
    assert complete(server, prompt=TEXTS[1], max_tokens=0, echo=True)["choices"][0]["text"] == TEXTS[1]
    streamed = server.client.completions.create(model="demo", prompt=TEXTS[1], max_tokens=0, echo=True, stream=True)
    assert "".join(part.choices[0].text for part in streamed) == TEXTS[1]


def test_echo_with_a_prompt_as_long_as_the_context(server: Running) -> None:
    ids = (server.pair.tokenizer.encode("the duck swims in the lake and " * 60, add_special=True))[:256]
    full = complete(server, prompt=ids, echo=True, logprobs=1, max_tokens=0)["choices"][0]["logprobs"]
    assert len(full["tokens"]) == 256
    assert complete(server, prompt=ids[:255], echo=True, logprobs=1)["usage"]["completion_tokens"] == 1
    for prompt, most in ((ids, 1), ([*ids, 5], 0)):
        said = f"prompt is too long: {len(prompt)} tokens > {256 - most} maximum"
        fields = {"prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": most}
        assert server.refuses(GREEDY | fields, said, COMPLETIONS)["code"] == "context_length_exceeded"


def test_a_client_that_leaves_stops_the_scoring(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = 0

    def endless(*_: object, **__: object) -> Iterator[tuple[Any, ...]]:
        nonlocal passes
        while True:
            passes += 1
            yield ()

    monkeypatch.setattr(TargetReading, "score", endless)
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("POST", COMPLETIONS, json.dumps(GREEDY | {"prompt": "a", "echo": True, "logprobs": 1}))
    wait_for(lambda: passes > 3)
    connection.close()
    wait_for(lambda: not server.service.running)
    monkeypatch.undo()
    assert complete(server, prompt="a")["usage"]["completion_tokens"] == 5


@streamed
def test_answers_to_one_prompt_are_made_in_one_state(
    server: Running, monkeypatch: pytest.MonkeyPatch, *, stream: bool
) -> None:
    """Each is that of its seed alone, to every prompt of a list; a pass has a row for each."""
    fields: Any = {"temperature": 1, "logprobs": 1, "max_tokens": 12}
    alone = [complete(server, prompt=text, seed=3 + n, **fields)["choices"][0] for text in TEXTS[:2] for n in range(5)]
    passes = list[int]()
    forward = server.pair.target.forward

    def counted(tokens: Any, *rest: Any, **named: Any) -> Any:
        passes.append(len(tokens))
        return forward(tokens, *rest, **named)

    monkeypatch.setattr(server.pair.target, "forward", counted)
    wanted = {"prompt": TEXTS[:2], "seed": 3, "n": 5}
    if stream:
        parts = [*server.client.completions.create(**GREEDY | fields | wanted, stream=True)]
        texts = ["".join(c.text for part in parts for c in part.choices if c.index == n) for n in range(10)]
    else:
        found = complete(server, **fields, **wanted)["choices"]
        texts = [choice["text"] for choice in found]
        assert [choice["logprobs"] for choice in found] == [choice["logprobs"] for choice in alone]
    assert texts == [choice["text"] for choice in alone]
    assert len(passes) <= 2 * (12 + 2)
    assert max(passes) == 5 or max(passes[2:]) > 1
