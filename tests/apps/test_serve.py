"""`serve`: OpenAI's own client over every endpoint, many clients at a time, and the command's options."""

import argparse
import json
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.apps.serving import CHAT, COMPLETIONS, KEY, PATHS, RESPONSES, STORY, Running, asked, body, held, lone

# isort: split
from edgedecode import Pair, Rule, SamplingOptions, SessionDetails, SessionOptions
from edgedecode.apps.serve.command import command
from edgedecode.apps.serve.guards import Limits
from edgedecode.cli import main
from edgedecode.drafters.expected import ExpectedDrafter
from edgedecode.memory.limit import Limit
from tests.apps.serving import streamed, text_of, wait_for


@streamed
def test_a_chat_is_answered_as_by_a_session(server: Running, pair: Pair, *, stream: bool) -> None:
    wanted = lone(pair, most=40)
    reply = server.client.chat.completions.create(**asked(max_tokens=40, stream=stream))
    if stream:
        parts = list(reply)
        assert "".join(part.choices[0].delta.content or "" for part in parts) == wanted
        assert parts[0].choices[0].delta.role == "assistant"
        assert [part.choices[0].finish_reason for part in parts][-1] == "length"
        assert len({part.id for part in parts}) == 1
    else:
        assert reply.choices[0].message.content == wanted
        assert reply.choices[0].finish_reason == "length"
        assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (18, 40)
        check_counts(reply)


def check_counts(reply: Any) -> int:
    """Check that both places count the same drafted tokens; return those accepted."""
    details, timings = reply.usage.completion_tokens_details, reply.timings
    assert details.accepted_prediction_tokens == timings["draft_n_accepted"]
    assert details.rejected_prediction_tokens == timings["draft_n"] - timings["draft_n_accepted"]
    return int(details.accepted_prediction_tokens)


def test_drafted_tokens_are_counted(pair: Pair) -> None:
    with Running(pair, options=SessionOptions(draft_max=3)) as running:  # the scheduler may draft nothing
        assert check_counts(running.client.chat.completions.create(**asked(max_tokens=40))) > 0


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_prediction_is_drafted_from(path: str, server: Running, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[ExpectedDrafter] = []
    monkeypatch.setattr(ExpectedDrafter, "begin", lambda drafter, context: begun.append(drafter))
    given = body(path, most=24)
    wanted = text_of(server.answer(given, path))
    for content in ("It may be this.", [{"type": "text", "text": "It may "}, {"type": "text", "text": "be this."}]):
        found = server.answer(given | {"prediction": {"type": "content", "content": content}}, path)
        assert text_of(found) == wanted
    assert [each.nbytes for each in begun] == [4 * len(pair.tokenizer.encode("It may be this."))] * 2
    for wrong in ("It may be this.", {"type": "text", "content": "a"}, {"type": "content"}):
        server.refuses(given | {"prediction": wrong}, "prediction", path)


def test_a_streams_usage_is_its_last_part(server: Running) -> None:
    parts = list(server.client.chat.completions.create(**asked(stream=True, stream_options={"include_usage": True})))
    assert parts[-1].choices == []
    assert parts[-1].usage.completion_tokens > 0
    assert parts[-2].choices[0].finish_reason == "stop"


def test_several_answers_have_their_own_seeds(server: Running, pair: Pair) -> None:
    given = asked(temperature=1.0, seed=5, n=3, max_tokens=12)
    texts = [choice.message.content for choice in server.client.chat.completions.create(**given).choices]
    assert texts == [lone(pair, seed=5 + number, temperature=1.0, most=12) for number in range(3)]
    assert len({*texts}) > 1
    found = ["", "", ""]
    for part in server.client.chat.completions.create(**given, stream=True):
        found[part.choices[0].index] += part.choices[0].delta.content or ""
    assert found == texts


def test_stop_strings_end_an_answer_before_them(server: Running, pair: Pair) -> None:
    text = lone(pair, most=60)
    choice = server.answer(asked(stop=[text[20:27]], max_tokens=60))["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == (text[: text.index(text[20:27])], "stop")


@streamed
def test_a_text_is_continued(server: Running, pair: Pair, *, stream: bool) -> None:
    with pair.session(SessionOptions(sampling=SamplingOptions(temperature=0.0))) as session:
        wanted = session.collect(session.complete("Once upon a time", max_tokens=12)).text
    reply = server.client.completions.create(**body(COMPLETIONS, "Once upon a time", 12), stream=stream)
    assert "".join(part.choices[0].text for part in (reply if stream else [reply])) == wanted


def test_a_conversation_reuses_its_key_value_cache(server: Running) -> None:
    first = text_of(server.answer(asked(top_p=0.9, max_tokens=20)))
    messages = [*asked()["messages"], {"role": "assistant", "content": first}, {"role": "user", "content": "Go on."}]
    usage = server.answer(asked(messages=messages, top_p=0.9, max_tokens=5))["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > 18


def test_models_are_the_pack_and_its_modes(server: Running) -> None:
    assert [model.id for model in server.client.models.list()] == ["demo", "demo@plain", "demo@switch"]
    assert server.client.models.retrieve("demo@switch").id == "demo@switch"
    assert text_of(server.answer(asked(model="demo@switch", max_tokens=8)))
    assert server.get("/v1/models/gpt-4o").status == 404


def test_content_parts_and_developer_messages_are_read(server: Running) -> None:
    parts = [{"type": "text", "text": STORY[:10]}, {"type": "text", "text": STORY[10:]}]
    found = [
        text_of(server.answer(asked(messages=[{"role": role, "content": "Be brief."}, user], max_tokens=10)))
        for role, user in (
            ("developer", {"role": "user", "content": parts}),
            ("system", {"role": "user", "content": STORY}),
        )
    ]
    assert found[0] == found[1]


def test_health_and_metrics_count(server: Running) -> None:
    server.answer(asked(max_tokens=2))
    assert json.loads(server.get("/health").text)["status"] == "ok"
    assert server.count('edgedecode_tokens_total{kind="written"}') > 0
    assert server.count('edgedecode_requests_total{path="/v1/chat/completions",status="200"}') > 0


def test_many_clients_get_their_lone_answers_and_leave_nothing_behind(pair: Pair) -> None:
    """More clients than answers at a time; a third leaves in the middle of a stream."""
    wanted = {seed: lone(pair, seed=seed, temperature=1.0, most=40) for seed in range(24)}
    before = held(pair)
    with Running(pair, parallel=3, waiting=100) as running, ThreadPoolExecutor(24) as pool:

        def ask(seed: int) -> bool:
            given = asked(temperature=1.0, seed=seed, max_tokens=40, stream=True)
            stream, text = running.client.chat.completions.create(**given), ""
            for part in stream:
                text += part.choices[0].delta.content or ""
                if seed % 3 == 0 and text:
                    stream.close()
                    return wanted[seed].startswith(text)
            return text == wanted[seed]

        assert all(pool.map(ask, wanted))
        wait_for(lambda: not running.service.running)
        assert running.service.places.queued == 0
    assert held(pair) == before


def test_plain_decoding_is_offered_whatever_the_rule(pair: Pair) -> None:
    with Running(pair, options=SessionOptions(details=SessionDetails(rule=Rule.RATIO))) as running:
        reply = running.answer(asked(model="demo@plain", max_tokens=5, temperature=0.8, seed=1))
        assert reply["timings"]["draft_n"] == 0


def test_options_of_the_command_hold_where_a_request_gives_none(pair: Pair) -> None:
    options = SessionOptions(sampling=SamplingOptions(temperature=1.0), seed=4)
    given = {name: value for name, value in asked(max_tokens=20).items() if name != "temperature"}
    with Running(pair, options=options) as running:
        texts = [text_of(running.answer(given | more)) for more in ({}, {}, {"temperature": 0})]
        assert texts[:2] == [lone(pair, seed=4, temperature=1.0, most=20)] * 2
        assert texts[2] != texts[0]
        assert len({text_of(running.answer(given | {"temperature": 2, "seed": -1})) for _ in "ab"}) == 2, "random"


def test_a_full_queue_is_refused(pair: Pair) -> None:
    with Running(pair, parallel=1, waiting=1) as running:
        with ThreadPoolExecutor(8) as pool:
            statuses = list(pool.map(lambda _: running.post(asked(max_tokens=200, temperature=1))[0], range(8)))
        assert {*statuses} <= {200, 503}
        assert statuses.count(200) >= 2 or 503 in statuses
        running.answer(asked(max_tokens=2))


def test_more_answers_than_the_queue_holds_are_given_if_there_are_places(pair: Pair) -> None:
    with Running(pair, parallel=4, waiting=1) as running:
        running.answer(asked(n=4, max_tokens=2))


def test_answers_wait_for_room_in_the_budget(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The budget has room for few sessions: the others wait, and all are answered."""
    with pair.session(SessionOptions(context=2048)) as one:
        one.generate("Hi", max_tokens=2)
        monkeypatch.setattr(pair.budget, "limit", Limit(pair.budget.used_nbytes + 5_000_000))
    with Running(pair, parallel=8) as running, ThreadPoolExecutor(6) as pool:
        assert [*pool.map(lambda seed: running.post(asked(max_tokens=20, seed=seed))[0], range(6))] == [200] * 6


@pytest.mark.parametrize("path", PATHS)
def test_no_limit_answers_to_the_end_of_the_context(path: str, pair: Pair) -> None:
    names = ("max_output_tokens",) if path == RESPONSES else ("max_tokens", "n_predict", "max_tokens")
    with Running(pair, options=SessionOptions(context=256)) as running:
        for name, most in zip(names, (-1, -1, 10**12), strict=False):
            reply = running.answer(body(path, most=None, ignore_eos=True, **{name: most}), path)
            assert reply["usage"]["total_tokens"] == 256
            assert reply.get("status", "incomplete") == "incomplete"
            assert "choices" not in reply or reply["choices"][0]["finish_reason"] == "length"


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--port", "99999"], "out of range"),
        (["--port", "TAKEN"], "give another --port"),
        (["--host", "0.0.0.0"], "give --api-key-file too"),
        (["--api-key-file", "nowhere"], "cannot be read"),
        (["--api-key-file", "OPEN"], "others may read it"),
        (["--host", "256.0.0.1", "--api-key-file", "KEY"], "--host 256.0.0.1"),
    ],
)
def test_bad_options_are_refused(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, mode in (("KEY", 0o600), ("OPEN", 0o644)):
        (tmp_path / name).write_text("0123456789abcdef\n", encoding="utf-8")
        (tmp_path / name).chmod(mode)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        given = {"TAKEN": str(taken.getsockname()[1]), "KEY": str(tmp_path / "KEY"), "OPEN": str(tmp_path / "OPEN")}
        assert main(["serve", *(given.get(word, word) for word in words)]) == 1
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_an_origin_is_what_a_browser_sends(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    command.configure(parser)
    given = ["https://Chat.example:443/", "http://a.b:80", "http://localhost:3000", "null", "*", "app://obsidian.md"]
    wanted = ["https://chat.example", "http://a.b", *given[2:]]
    assert parser.parse_args([f"--allow-origin={each}" for each in given]).allow_origin == wanted
    for wrong in ("chat.example", "https://chat.example/page", "https://*.chat.example", "https://", ""):
        with pytest.raises(SystemExit):
            parser.parse_args(["--allow-origin", wrong])
        assert "is no origin: give scheme and host" in capsys.readouterr().err


def test_a_strict_server_knows_its_own_models_only(pair: Pair) -> None:
    with Running(pair, Limits(key=KEY, strict_model=True)) as running:
        assert {running.post(body(CHAT, model=name))[0] for name in ("gpt-4o", "demo:latest")} == {404}
        running.answer(body(CHAT, model="demo@plain"))
