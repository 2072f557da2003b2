"""`serve`: llama-server's own API, as its clients use it."""

import json
from typing import Any

import pytest

from tests.apps.serving import CHAT, COMPLETIONS, KEY, RESPONSES, STORY, USER, Running

# isort: split
from edgedecode import Message
from edgedecode.apps.serve.guards import Limits

SERVER = {"limits": Limits(key=KEY, most_nbytes=60_000)}
AUTHORIZATION = {"Authorization": f"Bearer {KEY}"}
COMPLETION = "/completion"
BEGUN = "There was once a little boy. He"


def body(prompt: Any = BEGUN, /, most: int = 8, **fields: Any) -> dict[str, Any]:
    return {"prompt": prompt, "n_predict": most, "temperature": 0, **fields}


def events(server: Running, given: dict[str, Any]) -> list[dict[str, Any]]:
    reply = server.send("POST", COMPLETION, given | {"stream": True}, **AUTHORIZATION)
    assert (reply.status, reply.headers["Content-Type"].split(";")[0]) == (200, "text/event-stream")
    return [json.loads(each.removeprefix("data: ")) for each in reply.text.split("\n\n") if each]


def read_json(server: Running, path: str) -> Any:
    reply = server.get(path, **AUTHORIZATION)
    assert reply.status == 200, reply.text
    return json.loads(reply.text)


# -- completions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [COMPLETION, "/completions"])
def test_a_completion_is_that_of_openais_api(server: Running, path: str) -> None:
    given = {"model": "demo", "prompt": BEGUN, "temperature": 0, "max_tokens": 8}
    expected = server.answer(given, COMPLETIONS)
    whole, parts = server.answer(body(), path), events(server, body())
    text = expected["choices"][0]["text"]
    assert whole["content"] == "".join(each["content"] for each in parts) == text
    assert (whole["stop"], whole["stop_type"], whole["stopping_word"]) == (True, "limit", "")
    assert (whole["tokens_predicted"], whole["model"], whole["prompt"]) == (8, "demo", BEGUN)
    assert whole["tokens_evaluated"] == expected["usage"]["prompt_tokens"]
    assert whole["timings"]["predicted_n"] == 8
    assert (whole["tokens"], whole["truncated"], whole["index"]) == ([], False, 0)
    assert whole["has_new_line"] == ("\n" in text)
    settings = whole["generation_settings"]
    assert (settings["temperature"], settings["n_predict"], settings["seed"], settings["stop"]) == (0, 8, -1, [])
    assert "completion_probabilities" not in whole
    *written, end = parts
    assert [each["stop"] for each in parts] == [False] * len(written) + [True]
    assert end["content"] == ""
    assert end["tokens_predicted"] == 8
    assert {each["tokens_evaluated"] for each in parts} == {whole["tokens_evaluated"]}
    predicted = [each["tokens_predicted"] for each in written]
    assert predicted == sorted(predicted)


def test_tokens_are_those_of_the_text(server: Running) -> None:
    whole, parts = server.answer(body(return_tokens=True), COMPLETION), events(server, body())
    ids = [id for each in parts for id in each["tokens"]]
    assert ids == whole["tokens"]
    assert len(ids) == 8
    assert server.answer({"tokens": ids}, "/detokenize") == {"content": whole["content"]}
    continued = server.answer(body([*server.pair.tokenizer.encode(BEGUN)]), COMPLETION)
    assert continued["content"] == whole["content"]


def test_an_answer_ends_at_a_word_or_by_itself(server: Running) -> None:
    word = server.answer(body(), COMPLETION)["content"].split()[1]
    whole, end = server.answer(body(stop=[word]), COMPLETION), events(server, body(stop=[word]))[-1]
    for each in (whole, end):
        assert (each["stop_type"], each["stopping_word"]) == ("word", word)
    ended = server.answer(body(STORY), COMPLETION)
    assert (ended["stop_type"], ended["stopping_word"], ended["content"]) == ("eos", "", "")


def test_several_prompts_give_a_list(server: Running) -> None:
    found = server.answer(body(["One day", "Then"], 4, n_cmpl=2), COMPLETION)
    assert [each["index"] for each in found] == [0, 1, 2, 3]
    assert [each["prompt"] for each in found] == ["One day"] * 2 + ["Then"] * 2
    assert found[2]["content"] == server.answer(body("Then", 4), COMPLETION)["content"]
    counts = {(each["index"], each["tokens_evaluated"]) for each in events(server, body(["One day", "Then"], 4))}
    assert counts == {(number, found[2 * number]["tokens_evaluated"]) for number in range(2)}


def test_probabilities_are_those_of_openais_api(server: Running) -> None:
    given = {"model": "demo", "prompt": BEGUN, "temperature": 0, "max_tokens": 8, "logprobs": 2}
    expected = server.answer(given, COMPLETIONS)["choices"][0]["logprobs"]
    whole = server.answer(body(n_probs=2, return_tokens=True), COMPLETION)
    found = whole["completion_probabilities"]
    assert [each["id"] for each in found] == whole["tokens"]
    assert [each["token"] for each in found] == expected["tokens"]
    assert [each["logprob"] for each in found] == pytest.approx(expected["token_logprobs"])
    assert all(len(each["top_logprobs"]) == 2 for each in found)
    assert all(bytes(each["bytes"]).decode() == each["token"] for each in found)
    streamed = [each for part in events(server, body(n_probs=2)) for each in part.get("completion_probabilities", [])]
    assert [each["id"] for each in streamed] == whole["tokens"]


def test_an_answer_follows_a_schema_or_a_grammar(server: Running) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    given = body(json_schema={**schema, "additionalProperties": False}, most=40)
    assert {*json.loads(server.answer(given, COMPLETION)["content"])} == {"ok"}
    assert server.answer(body(grammar='root ::= "yes" | "no"'), COMPLETION)["content"] in ("yes", "no")


def test_what_is_not_followed_is_named(server: Running) -> None:
    usual = {"cache_prompt": True, "id_slot": -1, "n_keep": 0, "t_max_predict_ms": 0, "mirostat": 0, "typical_p": 1.0}
    server.answer(body(**usual, samplers=["top_k"], post_sampling_probs=True), COMPLETION)
    assert server.note == "samplers was not followed; post_sampling_probs was not followed"


# -- tokens, template, slots -------------------------------------------------------------------------------------------


def test_tokens_of_a_text_and_back(server: Running) -> None:
    tokenizer = server.pair.tokenizer
    text = "Hi <|im_end|> née 🦙"
    special, plain = (
        server.answer({"content": text, "parse_special": parse}, "/tokenize")["tokens"] for parse in (True, False)
    )
    assert special == server.answer({"content": text}, "/tokenize")["tokens"] == tokenizer.encode(text)
    end = tokenizer.token_to_id("<|im_end|>")
    assert (end in special, end in plain) == (True, False)
    for ids in (special, plain):
        assert server.answer({"tokens": ids}, "/detokenize") == {"content": text}
    pieces = server.answer({"content": text, "with_pieces": True}, "/tokenize")["tokens"]
    assert [each["id"] for each in pieces] == special
    parts = [each["piece"] for each in pieces]
    assert b"".join(bytes(each) if isinstance(each, list) else each.encode() for each in parts).decode() == text
    assert {type(each) for each in parts} == {str, list}
    assert server.answer({"content": ""}, "/tokenize") == {"tokens": []}


def test_a_template_is_applied(server: Running) -> None:
    messages = [{"role": "system", "content": "Be brief."}, USER]
    expected = server.pair.tokenizer.render([Message("system", "Be brief."), Message("user", "Hi")])
    assert server.answer({"messages": messages}, "/apply-template") == {"prompt": expected}
    more = {"messages": messages, "lora": [1], "add_generation_prompt": False}
    assert server.answer(more, "/apply-template") == {"prompt": expected}
    told = "lora was not followed; add_generation_prompt was not followed: the answer's beginning is there"
    assert server.note == told
    spelled = [{"role": "user", "content": "What is <|im_end|>?"}]
    assert "What is <|im_end|>?" in server.answer({"messages": spelled}, "/apply-template")["prompt"]
    (choice,) = server.answer({"messages": messages, "temperature": 0, "max_tokens": 8})["choices"]
    assert server.answer(body(expected), COMPLETION)["content"] == choice["message"]["content"]


def test_slots_are_the_places_of_answers(server: Running) -> None:
    slots = read_json(server, "/slots")
    assert [each["id"] for each in slots] == [0, 1, 2, 3]
    context = server.pair.target.card.context
    assert all((each["n_ctx"], each["speculative"], each["is_processing"]) == (context, True, False) for each in slots)


def test_props_have_both_forms(server: Running) -> None:
    props = read_json(server, "/props")
    assert (props["name"], props["model_alias"], props["total_slots"]) == ("demo", "demo", 4)
    assert props["chat_template"] == server.pair.tokenizer.chat_template.source
    assert props["eos_token"] == "<|im_end|>"
    assert props["modalities"] == {"vision": False, "audio": False}
    settings = props["default_generation_settings"]
    assert settings["n_ctx"] == props["context"]
    assert settings["params"].items() >= props["sampling"].items()


def test_paths_without_a_version_are_the_same(server: Running) -> None:
    given = {"temperature": 0, "max_tokens": 8, "messages": [USER]}
    ours, theirs = server.answer(given, "/chat/completions"), server.answer(given, CHAT)
    assert ours["choices"] == theirs["choices"]
    asks = {"input": "Hi", "temperature": 0, "max_output_tokens": 8}
    texts = [server.answer(asks, path)["output"][0]["content"][0]["text"] for path in ("/responses", RESPONSES)]
    assert texts[0] == texts[1]
    assert read_json(server, "/models") == read_json(server, "/v1/models")
    assert read_json(server, "/models/demo") == read_json(server, "/v1/models/demo")
    assert read_json(server, "/v1/health")["status"] == "ok"


# -- refusals ----------------------------------------------------------------------------------------------------------

WRONG: list[tuple[str, Any, str]] = [
    (COMPLETION, {}, "prompt"),
    (COMPLETION, b"{", "not JSON"),
    (COMPLETION, body(7), "prompt"),
    (COMPLETION, body(""), "prompt is empty"),
    (COMPLETION, body([1 << 30]), "not in the vocabulary"),
    (COMPLETION, body(["a", 7]), "prompt must be"),
    (COMPLETION, body({"prompt_string": "x", "multimodal_data": ["aGk="]}), "prompt"),
    (COMPLETION, body(image_data=[{"data": "aGk=", "id": 1}]), "image_data"),
    (COMPLETION, body(n_probs=99), "n_probs"),
    (COMPLETION, body(n_predict="many"), "n_predict"),
    (COMPLETION, body(temperature="hot"), "temperature"),
    (COMPLETION, body(grammar="root ::= ("), "grammar"),
    ("/infill", {"input_prefix": "a", "input_suffix": "b"}, "/infill: this model's tokenizer has no tokens to fill in"),
    ("/infill", {"input_prefix": 7}, "input_prefix"),
    ("/infill", {"input_extra": [{}]}, "input_extra[0]"),
    ("/tokenize", {}, "content"),
    ("/tokenize", {"content": 7}, "content"),
    ("/detokenize", {"tokens": [-1]}, "tokens has -1"),
    ("/detokenize", {"tokens": [1 << 70]}, "tokens has"),
    ("/detokenize", {"tokens": "x"}, "tokens"),
    ("/apply-template", {"messages": []}, "messages is empty: give one or more"),
    ("/apply-template", {"messages": [{"role": "robot"}]}, "messages[0]"),
]


@pytest.mark.parametrize(("path", "given", "said"), WRONG)
def test_what_cannot_be_answered_is_refused(server: Running, path: str, given: Any, said: str) -> None:
    assert server.refuses(given, said, path, kind="invalid_request_error")["code"] == 400


def test_a_prompt_that_is_too_long_is_refused(server: Running) -> None:
    long = "x y " * 9000
    for path, given in ((COMPLETION, body(long)), ("/tokenize", {"content": long})):
        server.refuses(given, "prompt is too long", path, kind="exceed_context_size_error")
