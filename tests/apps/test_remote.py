"""A target on a server: the device drafts, and the text is the server's own, whatever happens on the way."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from tests.apps.serving import CHAT, STORY, Running, body, wait_for
from tests.apps.serving import text_of as text_of_reply

# isort: split
import edgedecode
from edgedecode import CapabilityError, EdgeDecodeError, Pair, SamplingOptions, SessionOptions
from edgedecode.apps.bundled_prompts import bundled_prompts
from edgedecode.cli import main
from edgedecode.drafters.text_drafter import TextModel
from edgedecode.engines.target_server import TargetServer
from edgedecode.open_pack import LoadOptions
from tests.apps.middle import GREEDY, VERIFY, Others, answering, delayed, forwarded, prompt_of, remote, text_of
from tests.imports.files import File, write_file
from tests.small_tokenizers import byte_level

WARM = SamplingOptions(temperature=0.9, top_k=40, top_p=0.9)
TEXTS = [prompt.turns[-1] for prompt in bundled_prompts()[::24]]
SERVER = {"verifies": True}


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
def test_the_text_is_the_servers_own(server: Running, pair: Pair, sampling: SamplingOptions) -> None:
    with remote(server.port) as device:
        for prompt in TEXTS:
            wanted = text_of(pair, prompt, sampling=sampling, drafter="none")
            for drafting in ({"draft_max": 5}, {"drafter": "suffix", "draft_max": 16}, {"drafter": "none"}, {}):
                assert text_of(device, prompt, sampling=sampling, **drafting) == wanted


def test_a_draft_with_another_tokenizer_drafts_by_text(server: Running, pair: Pair, pack: Path, tmp_path: Path) -> None:
    """A file of the server's family tells the tokenizer; its weights are never read."""
    (tmp_path / "family").mkdir()
    shutil.copy(pack / "tokenizer.json", tmp_path / "family")
    inner = tokenizers.Tokenizer.from_file(str(pack / "tokenizer.json"))
    sizes = File(rows=inner.get_vocab_size(), layers=1, context=1024, eos="<|im_end|>")
    file = replace(sizes, template=(pack / "chat_template.jinja").read_text())
    family = write_file(tmp_path / "family/small.gguf", inner, file)
    draft = write_file(tmp_path / "draft.gguf", byte_level(), File(context=1024))
    options = LoadOptions(server=TargetServer(f"http://127.0.0.1:{server.port}"))
    with edgedecode.load(family, draft=draft, runtime="onnx", options=options) as device:
        for sampling in (GREEDY, WARM):
            wanted = text_of(pair, sampling=sampling, drafter="none")
            with device.session(SessionOptions(sampling=sampling, seed=3, drafter="model", draft_max=4)) as session:
                done = session.generate(STORY, max_tokens=32)
            assert done.text == wanted
            assert done.stats.drafters["model"].proposed > 0
        assert isinstance(device.draft, TextModel)


def test_a_round_is_one_request_of_few_bytes(server: Running) -> None:
    with remote(server.port) as device, device.session(SessionOptions(sampling=GREEDY, draft_max=8)) as session:
        connection: Any = device.target
        connection = connection.connection.counts
        session.generate(STORY, max_tokens=4)
        before = connection.requests, connection.sent, connection.received
        stats = session.generate("And then?", max_tokens=60).stats
        requests, sent, received = (
            now - then
            for now, then in zip((connection.requests, connection.sent, connection.received), before, strict=True)
        )
        assert requests == stats.rounds
        assert sent / requests <= 200
        assert received / requests <= 2048
        assert stats.accepted > stats.rounds  # the same model drafts


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
def test_without_drafts_the_server_writes_on_alone(server: Running, pair: Pair, sampling: SamplingOptions) -> None:
    with (
        remote(server.port) as device,
        device.session(SessionOptions(sampling=sampling, drafter="none", seed=5)) as own,
    ):
        target: Any = device.target
        before = target.connection.counts.requests
        done = own.generate(STORY, max_tokens=150)
        assert target.connection.counts.requests - before <= 2  # of 128 tokens at most
        with pair.session(SessionOptions(sampling=sampling, drafter="none", seed=5)) as session:
            assert done.tokens == session.generate(STORY, max_tokens=150).tokens
    wait_for(lambda: not server.service.running)


def test_where_the_servers_stream_breaks_rows_are_asked_for(server: Running, pair: Pair) -> None:
    streamed = []

    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        status, reply = forwarded(server.port, path, body)
        if body.get("write"):
            streamed.append(body)
            return (status, reply[: len(reply) // 2]) if len(streamed) % 2 else (500, {})
        return status, reply

    with answering(answer) as url, remote(url) as device:
        assert text_of(device, drafter="none", most=60) == text_of(pair, drafter="none", most=60)
    assert 1 < len(streamed) < 20


@pytest.mark.parametrize("status", [0, 500, 400])
def test_where_the_server_writes_nothing_its_session_holds_what_it_did(
    status: int, server: Running, pair: Pair
) -> None:
    """A refused request is not made again in the same answer."""
    asked: list[dict[str, Any]] = []

    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        asked.append(body)
        return (status, b"") if body.get("write") else forwarded(server.port, path, body)

    old = prompt_of(pair)
    new = [*old[:4], *(each + 1 for each in reversed(old[4:-3]))]
    with answering(answer) as url, remote(url) as device:
        state: Any = device.target.new_state(200, rows=5)
        device.target.forward(old, state, rows="last")
        state.keep(range(len(old)))
        state.crop(4)
        state.streams, state.limit = True, 9
        device.target.forward(new[4:-1], state, rows="none")
        state.keep(range(len(new) - 5))
        del asked[:]
        for given in (new[-1:], [5], [6]):
            own = pair.target.new_state(200)
            every = [*state.tokens, *given]
            wanted = pair.turn.run(lambda own=own, every=every: pair.target.forward(every, own).logits.argmax())
            assert device.target.forward(given, state).logits.argmax() == wanted
            state.keep(range(1))
            own.close()
        rows = [body for body in asked if not body.get("write")]
        assert [(body["keep"], len(body["tokens"])) for body in rows] == [
            (4, len(new) - 4),
            (len(new), 1),
            (len(new) + 1, 1),
        ]
        streamed = {body["keep"] for body in asked if body.get("write")}  # a connection that breaks repeats a request
        assert len(streamed) == (1 if status == 400 else 3)
        state.close()


def test_options_of_sampling_that_are_zero_reach_the_server(server: Running, pair: Pair) -> None:
    asked: list[dict[str, Any]] = []

    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        asked.append(body)
        return forwarded(server.port, path, body)

    sampling = replace(WARM, xtc_probability=0.5, xtc_threshold=0.0, mirostat_eta=0.0)
    with answering(answer) as url, remote(url) as device:
        wanted = text_of(pair, sampling=sampling, drafter="none")
        assert text_of(device, sampling=sampling, drafter="none") == wanted
    (written,) = (body for body in asked if body.get("write"))
    assert (written["xtc_threshold"], written["mirostat_eta"]) == (0, 0)
    assert "dry_base" not in written


def test_drafts_and_the_servers_stream_share_a_session(server: Running, pair: Pair) -> None:
    """Switching drafts off and on again makes the server read nothing twice."""
    asked: list[dict[str, Any]] = []

    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        asked.append(body)
        return forwarded(server.port, path, body)

    tokens = prompt_of(pair)
    with answering(answer) as url, remote(url) as device:
        state: Any = device.target.new_state(200, rows=5)
        state.streams, state.limit = True, 9
        own = pair.target.new_state(200, rows=5)

        def forward(given: list[int], kept: int) -> list[int]:
            """Return the likeliest token after each given one, which are the model's own."""
            rows = range(len(given)) if len(given) <= 5 else "last"
            wanted = pair.turn.run(lambda: pair.target.forward(given, own, rows=rows).logits.argmax(axis=1).tolist())
            assert device.target.forward(given, state, rows=rows).logits.argmax(axis=1).tolist() == wanted
            for each in (state, own):
                each.keep(range(kept))
            return list(wanted)

        del asked[:]
        (following,) = forward(tokens, len(tokens))
        for _ in range(3):
            (following,) = forward([following], 1)
        forward([following, 5, 6], 1)
        forward([7, 8], 2)
        (following,) = forward([9], 1)
        forward([following], 1)
        assert [(len(body["tokens"]), body.get("keep", 0), body.get("write", 0)) for body in asked] == [
            (len(tokens), 0, 9),
            (3, len(tokens) + 3, 0),
            (2, len(tokens) + 4, 0),
            (1, len(tokens) + 6, 9),
        ]
        assert len({body["session"] for body in asked[1:]}) == 1
        state.close()
        own.close()


def test_chats_go_on_and_several_sessions_alternate(server: Running, pair: Pair) -> None:
    def told(of: Pair) -> list[str]:
        options = SessionOptions(sampling=GREEDY, draft_max=4)
        with of.session(options) as one, of.session(options) as other:
            return [
                each.generate(prompt, max_tokens=16).text
                for prompt in (STORY, "And then?", "Why?")
                for each in (one, other)
            ]

    with remote(server.port) as device:
        assert told(device) == told(pair)


def test_a_session_that_the_server_lost_is_sent_again(server: Running, pair: Pair) -> None:
    wanted = text_of(pair, drafter="none")
    with remote(server.port) as device, device.session(SessionOptions(sampling=GREEDY, draft_max=2)) as session:
        text = ""
        for chunk in session.stream(STORY, max_tokens=32):
            text += chunk.text
            if (close := server.service.states.oldest()) is not None:
                close()
        assert text == wanted


def test_a_connection_that_breaks_at_any_moment_is_opened_again(server: Running, pair: Pair) -> None:
    """The request may have been read: it is repeated."""
    left, broken = [0], []

    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == VERIFY:
            left[0] -= 1
            if not left[0]:
                broken.append(body)
                if len(broken) % 2:
                    forwarded(server.port, path, body)
                return 0, b""
        return forwarded(server.port, path, body)

    wanted = text_of(pair, most=48, drafter="none")
    with answering(answer) as url, remote(url) as device:
        for moment in range(20):
            left[0] = moment + 1
            assert text_of(device, most=48, draft_max=1) == wanted
    assert len(broken) == 20


@pytest.mark.parametrize("moment", range(0, 20, 3))
@pytest.mark.parametrize(
    "fault", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", b"HTTP/1.1 200 OK\r\n\r\nno"]
)
def test_where_the_server_goes_the_device_goes_on(
    moment: int, fault: bytes, server: Running, pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[str] = []

    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == VERIFY:
            seen.append(path)
            if len(seen) > moment:
                return 0, fault
        return forwarded(server.port, path, body)

    wanted = text_of(pair, most=48, drafter="none")
    with answering(answer) as url:
        with remote(url, offline=True, seconds=2.0) as device:
            options = SessionOptions(sampling=GREEDY, draft_max=1)
            with device.session(options) as session:
                chunks = list(session.stream(STORY, max_tokens=48))
                assert "".join(chunk.text for chunk in chunks) == wanted  # it is the same model here
                events = [chunk.event for chunk in chunks if chunk.event is not None]
                assert ["goes on alone" in event.notice for event in events] == [True]
                assert 0 < session.stats.alone_tokens <= 48
                assert (session.stats.alone_tokens == 48) == (moment == 0)
        del seen[:]
        with remote(url, seconds=2.0) as device, pytest.raises(EdgeDecodeError) as raised:
            text_of(device, most=48, draft_max=1)
        assert "\n" not in str(raised.value)


def test_a_device_alone_asks_again_with_the_next_answer(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgedecode.runtimes.remote.remote_model._AGAIN_SECONDS", 0.0)
    down = [False]

    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        return (0, b"") if down[0] else forwarded(server.port, path, body)

    with (
        answering(answer) as url,
        remote(url, offline=True) as device,
        device.session(SessionOptions(sampling=GREEDY)) as session,
    ):
        alone = []
        for down[0] in (False, True, False):
            alone.append(session.generate(STORY, max_tokens=8).stats.alone_tokens)
        assert alone == [0, 8, 0]


def test_a_device_serves_what_its_target_verifies(server: Running, pair: Pair) -> None:
    down = [False]

    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        return (0, b"") if down[0] else forwarded(server.port, path, body)

    given = body(CHAT, most=24)
    with answering(answer) as url, remote(url, offline=True) as device, Running(device) as own:
        found = own.answer(given)
        assert text_of_reply(found) == text_of(pair, most=24, drafter="none")
        assert "alone_n" not in found["timings"]
        own.refuses(given | {"temperature": 0.7}, "needs the whole distribution")
        down[0] = True
        assert own.answer(given)["timings"]["alone_n"] == 24


def test_a_device_without_network_begins_alone(pair: Pair) -> None:
    with answering(lambda path, body: (0, b"")) as url, pytest.raises(EdgeDecodeError, match="cannot be reached"):
        remote(url)
    with remote(url, offline=True) as device:
        assert text_of(device) == text_of(pair, drafter="none")


@pytest.mark.parametrize("kind", ["sglang", "vllm", "llama-server"])
def test_other_servers_are_asked_in_their_way(kind: str, pair: Pair) -> None:
    others = Others(pair)
    top = SamplingOptions(temperature=0.9, top_k=20)
    with answering(others) as url, remote(url, kind=kind) as device:
        assert text_of(device) == text_of(pair, drafter="none")
        # Log probabilities are rounded, which in these 20 tokens decides no draw.
        assert text_of(device, sampling=top, most=20) == text_of(pair, drafter="none", sampling=top, most=20)
        if kind != "llama-server":
            with device.session(SessionOptions(sampling=GREEDY, draft_max=4)) as session:
                assert session.generate(STORY, max_tokens=32).stats.accepted > 16
        else:
            with pytest.raises(CapabilityError, match="draft"):
                device.session(SessionOptions(draft_max=4))
            switching = edgedecode.SessionDetails(switch=edgedecode.SwitchOptions(threshold=0.5))
            del others.paths[:]
            with device.session(SessionOptions(sampling=GREEDY, details=switching)) as session:
                stats = session.generate(STORY, max_tokens=32).stats
            assert 0 < others.paths.count("/completion") <= stats.verified_tokens < 32


def test_the_options_of_the_command_line(server: Running, pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["generate", "demo", "-p", STORY, "-n", "12", "--temp", "0"]
    assert main([*words, "--target-url", f"http://127.0.0.1:{server.port}", "--stats"]) == 0
    out, err = capsys.readouterr()
    assert out.strip() == text_of(pair, most=12, drafter="none").strip()
    assert "the text leaves this device: 127.0.0.1" in err
    for more in ("--offline draft", "--target-kind vllm", "--target-model demo", "--target-key-env KEY"):
        assert main([*words, *more.split()]) == 1
        assert "needs --target-url" in capsys.readouterr().err
    assert main([*words, "--target-url", "http://a:b@host"]) == 1
    assert main([*words, "--target-url", "http://127.0.0.1:9", "--draft-on", "llama"]) == 1


def test_a_far_server_is_known_by_its_first_requests(server: Running) -> None:
    """A short draft then tells what a long one costs."""
    with answering(delayed(server.port, 0.03)) as url, remote(url) as device:
        assert device.target.card.widths == (1, 17)
        assert 0.03 <= device.target.card.away_seconds < 0.5


def test_rows_of_many_tokens_come_compressed(server: Running, pair: Pair) -> None:
    with remote(server.port) as device, device.session(SessionOptions(sampling=WARM, seed=3, draft_max=4)) as session:
        target: Any = device.target
        before, first = target.connection.counts.received, target.connection.counts.requests
        text = session.generate(STORY, max_tokens=32).text
        received = target.connection.counts.received - before
        assert received <= 1500 * (target.connection.counts.requests - first)  # 5 rows of 40 tokens, 2,400 as text
    assert text == text_of(pair, sampling=WARM, drafter="none")
