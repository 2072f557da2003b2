"""/v1/verify: rows of a model for the drafts of another device, and the states between its requests."""

import http.client
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.apps.serving import STORY, Running, body, wait_for

# isort: split
from edgedecode import Pair, SessionOptions
from edgedecode.apps.serve.guards import Limits
from edgedecode.apps.serve.verify.states import _MOST, MOST_ROWS
from tests.apps.middle import forwarded, prompt_of

PATH = "/v1/verify"
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def server(pair: Pair) -> Iterator[Running]:
    with Running(pair, verifies=True, options=SessionOptions(context=600)) as running:
        yield running


def wanted(pair: Pair, tokens: list[int], rows: int) -> np.ndarray[Any, Any]:
    """Return the model's rows after the last tokens, computed here."""
    state = pair.target.new_state(600, rows=rows)
    found = pair.turn.run(lambda: pair.target.forward(tokens, state, rows=range(len(tokens) - rows, len(tokens))))
    copy = found.logits.copy()
    state.close()
    return copy


def test_rows_are_the_models_own(server: Running, pair: Pair) -> None:
    tokens = pair.tokenizer.encode(STORY)
    rows = wanted(pair, tokens, 5)
    for top in (1, 7, 64):
        found = server.answer({"tokens": tokens, "rows": 5, "top": top}, PATH)
        for row, ids, gaps, logprob in zip(rows, found["ids"], found["gaps"], found["logprobs"], strict=True):
            assert ids == np.argsort(-row, kind="stable")[:top].tolist()
            exact = row[ids[0]] - row[ids[1:]]
            assert np.array(gaps, np.float32).tobytes() == exact.tobytes()  # so a draw with them is the same
            assert logprob == pytest.approx(row[ids[0]] - np.log(np.exp(row.astype(np.float64)).sum()), abs=1e-4)


def test_a_session_goes_on_after_any_of_its_positions_and_a_repeated_request_is_the_same(
    server: Running, pair: Pair
) -> None:
    tokens = pair.tokenizer.encode(STORY)
    first = server.answer({"tokens": tokens[:-3], "rows": 0}, PATH)
    assert (first["ids"], first["model"]) == ([], "demo")
    given = {"session": first["session"], "keep": len(tokens) - 4, "tokens": [*tokens[-4:], 9, 10], "rows": 3}
    once, again = server.answer(given, PATH), server.answer(given, PATH)
    assert once == again
    assert once["session"] == first["session"]
    rows = wanted(pair, [*tokens, 9, 10], 3)
    assert [ids[0] for ids in once["ids"]] == rows.argmax(axis=1).tolist()
    back = server.answer(given | {"tokens": tokens[-4:], "rows": 1}, PATH)
    assert back["ids"][0] == [int(wanted(pair, tokens, 1)[0].argmax())]


def lines(server: Running, body: dict[str, Any]) -> list[Any]:
    status, reply = forwarded(server.port, PATH, body)
    assert status == 200, reply
    return [json.loads(line) for line in reply.splitlines()]


@pytest.mark.parametrize("drawn", [{}, {"temperature": 0.9, "top_k": 40, "seed": 7}])
def test_it_writes_in_a_session_what_an_answer_would_be(server: Running, pair: Pair, drawn: dict[str, Any]) -> None:
    tokens = prompt_of(pair)
    whole = {"prompt": tokens, "n_predict": 12, "return_tokens": True, "temperature": 0, **drawn}
    wanted = server.answer(whole, "/completion")["tokens"]
    first, *rest = lines(server, {"tokens": tokens[:4], "write": 3})
    assert [len(each["ids"]) for each in rest] == [1, 1, 1]
    begun, *written = lines(
        server, {"session": first["session"], "keep": 4, "tokens": tokens[4:], "write": 12, **drawn}
    )
    assert begun == {"session": first["session"], "model": "demo"}
    assert [id for each in written for id in each["ids"]] == wanted
    assert len(wanted) == 12
    known = [*tokens, *wanted]
    kept = len(known) - 3
    given = {"session": first["session"], "keep": kept, "tokens": known[kept:], "rows": 3}
    assert [ids[0] for ids in server.answer(given, PATH)["ids"]] == wanted_ids(pair, known, 3)


def wanted_ids(pair: Pair, tokens: list[int], rows: int) -> list[int]:
    return [int(each) for each in wanted(pair, tokens, rows).argmax(axis=1)]


def test_a_request_ends_what_its_session_is_writing(pair: Pair) -> None:
    """Also where it takes the only place, and where the client has left."""
    with Running(pair, parallel=1, verifies=True, options=SessionOptions(context=600)) as running:
        tokens = prompt_of(pair)
        for leaves in (False, True):
            connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=60)
            connection.request("POST", PATH, json.dumps({"tokens": tokens, "write": 500}), JSON)
            reply = connection.getresponse()
            session = json.loads(reply.readline())["session"]
            (id,) = json.loads(reply.readline())["ids"]
            if leaves:
                connection.close()
            given = {"session": session, "keep": len(tokens), "tokens": [id]}
            assert running.answer(given, PATH)["ids"] == [wanted_ids(pair, [*tokens, id], 1)]
            if not leaves:
                assert len(reply.read().splitlines()) < 500
            connection.close()
        wait_for(lambda: not running.service.places.running)


def test_what_is_written_has_the_time_of_answers_when_the_server_closes(pair: Pair) -> None:
    with Running(pair, verifies=True, options=SessionOptions(context=600)) as running:
        for most, halts in ((60, False), (500, True)):
            connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=60)
            connection.request("POST", PATH, json.dumps({"tokens": prompt_of(pair), "write": most}), JSON)
            reply = connection.getresponse()
            assert [*json.loads(reply.readline())] == ["session", "model"]
            assert len(json.loads(reply.readline())["ids"]) == 1
            running.service.places.closing = True
            if halts:
                running.service.halt()
            rest = [json.loads(line) for line in reply.read().splitlines()]
            connection.close()
            if halts:
                assert rest[-1] == {"error": "the server is closing"}
            else:
                assert len(rest) == most - 1
                assert all(each["ids"] for each in rest)
            running.service.places.closing = False
        wait_for(lambda: not running.service.places.running)


def test_unknown_sessions_are_lost(server: Running, pair: Pair) -> None:
    found = server.answer({"tokens": [5, 6, 7]}, PATH)
    server.refuses(
        {"session": "none", "keep": 1, "tokens": [5]}, "there is no session 'none' any more", PATH, status=409
    )
    late = {"session": found["session"], "keep": 4, "tokens": [5]}
    assert server.refuses(late, "cannot go on after 4 positions", PATH, status=409)["code"] == "session_lost"
    every = [server.answer({"tokens": [number + 5]}, PATH)["session"] for number in range(_MOST + 1)]
    server.refuses({"session": every[0], "keep": 1, "tokens": [5]}, "no session", PATH, status=409)
    assert server.answer({"session": every[-1], "keep": 1, "tokens": [5]}, PATH)["session"] == every[-1]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"tokens": []}, "tokens is empty"),
        ({"tokens": [1 << 30]}, "tokens has 1073741824, which is no token's id"),
        ({"tokens": [-1]}, "tokens has -1"),
        ({"tokens": [5], "rows": 2}, "rows is 2 of 1 tokens"),
        ({"tokens": [5], "write": -1}, "write"),
        ({"tokens": [5], "write": 1, "temperature": 3}, "temperature"),
        ({"tokens": [5], "temperature": 1}, "temperature has no effect without write"),
        ({"tokens": [5], "seed": 0}, "seed has no effect without write"),
        ({"tokens": [5] * 99, "rows": MOST_ROWS + 1}, "rows"),
        ({"tokens": [5], "top": 65}, "top"),
        ({"tokens": [5], "keep": 3}, "keep is 3, and a new session has no tokens"),
        ({"tokens": [5] * 601}, "maximum context length is 600 tokens"),
        ({"tokens": [5], "drafts": 1}, "unknown field 'drafts'"),
        ({"tokens": [5], "model": "demo@plain"}, "model has an adapter or a mode"),
        ({}, "tokens is missing"),
    ],
)
def test_what_is_wrong_is_told(server: Running, wrong: dict[str, Any], said: str) -> None:
    server.refuses(wrong, said, PATH)


def test_other_keys_do_not_reach_a_session(pair: Pair) -> None:
    keys = "a-key-of-the-tests", "another-key-of-the-tests"
    with Running(pair, Limits(key=keys[0], asking=keys[1:]), verifies=True) as running:
        found = running.answer({"tokens": [5, 6]}, PATH)
        given = {"session": found["session"], "keep": 1, "tokens": [5]}
        assert running.post(given, PATH, Authorization=f"Bearer {keys[1]}")[0] == 409
        assert running.post(given, PATH)[0] == 200


def test_it_is_offered_where_it_is_asked_for(pair: Pair) -> None:
    with Running(pair) as running:
        running.refuses({"tokens": [5]}, f"there is no {PATH}", PATH, status=404)


def test_answers_and_drafts_share_the_places(pair: Pair) -> None:
    with Running(pair, parallel=1, verifies=True) as running:
        text = running.answer(body("/v1/chat/completions"))
        session = running.answer({"tokens": [5, 6]}, PATH)["session"]
        assert running.service.places.running == 0
        assert running.answer(body("/v1/chat/completions"))["choices"] == text["choices"]
        assert running.answer({"session": session, "keep": 2, "tokens": [7]}, PATH)["session"] == session
        assert running.service.states.oldest() is not None
