"""A target on a server: what the server may not do, and what it cannot tell, is refused in one line."""

import socket
import ssl
import subprocess
import threading
from pathlib import Path
from time import sleep
from typing import Any

import pytest

from tests.apps.serving import Running

# isort: split
import edgedecode
from edgedecode import CapabilityError, EdgeDecodeError, InputError, Pair, SamplingOptions, SessionOptions
from edgedecode.apps.serve.guards import Limits
from edgedecode.cli import main
from edgedecode.errors import IncompatiblePair
from tests.apps.middle import GREEDY, VERIFY, answering, forwarded, remote, text_of

SERVER = {"verifies": True}
GARBAGE = [
    (b"<html>", "no JSON object"),
    (b"[]", "no JSON object"),
    ({}, "does not answer as such a server does"),
    ({"session": "a", "model": "demo", "ids": [[5]], "gaps": []}, "does not answer as"),
    ({"session": "a", "model": "demo", "ids": [], "gaps": []}, "0 rows for 1"),
    ({"session": "a", "model": "demo", "ids": [[1 << 40]], "gaps": [[]]}, "tokens that the vocabulary lacks"),
    ({"session": "a", "model": "demo", "ids": [[-5]], "gaps": [[]]}, "tokens that the vocabulary lacks"),
    ({"session": "a", "model": "demo", "ids": [[]], "gaps": [[]]}, "does not answer as"),
    ({"session": "a", "model": "demo", "ids": [[5, 6]], "gaps": [["x"]]}, "does not answer as"),
    (b'{"session":"a","model":"demo","ids":[[5,6]],"gaps":[[NaN]]}', "does not answer as"),
]


@pytest.mark.parametrize(("reply", "said"), GARBAGE)
def test_garbage_is_told(reply: Any, said: str, server: Running) -> None:
    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        return (200, reply) if path == VERIFY else forwarded(server.port, path, body)

    with answering(answer) as url, remote(url) as device, pytest.raises(EdgeDecodeError, match=said):
        text_of(device, draft_max=1)


def test_a_slow_server_is_waited_for_as_long_as_allowed(server: Running) -> None:
    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == VERIFY:
            sleep(3.0)
        return forwarded(server.port, path, body)

    said = r"did not answer within 0\.5 s"
    with answering(answer) as url, remote(url, seconds=0.5) as device, pytest.raises(EdgeDecodeError, match=said):
        text_of(device, draft_max=1)


def test_a_slow_stream_is_not_waited_for_twice(server: Running) -> None:
    asked: list[str] = []

    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        asked.append(path)
        if body.get("write"):
            sleep(1.5)
        return forwarded(server.port, path, body)

    said = r"did not answer within 0\.5 s"
    with answering(answer) as url, remote(url, seconds=0.5) as device, pytest.raises(EdgeDecodeError, match=said):
        text_of(device, drafter="none")
    assert asked.count(VERIFY) == 1


def test_another_model_in_mid_answer_is_refused(server: Running) -> None:
    count = [0]

    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        status, reply = forwarded(server.port, path, body)
        count[0] += path == VERIFY
        return status, reply.replace(b'"demo"', b'"other"') if count[0] > 3 else reply

    with answering(answer) as url, remote(url) as device, pytest.raises(EdgeDecodeError, match="answers with 'other'"):
        text_of(device, draft_max=1)


def test_another_tokenizer_is_refused(server: Running) -> None:
    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        return (200, {"tokens": [5, 6, 7]}) if path == "/tokenize" else forwarded(server.port, path, body)

    with answering(answer) as url, pytest.raises(IncompatiblePair, match="another tokenizer than the device's"):
        remote(url)


def test_redirects_are_not_followed() -> None:
    asked: list[str] = []
    with (
        answering(lambda path, body: (asked.append(path), (200, {}))[1]) as other,
        answering(lambda path, body: (307, b""), location=other) as url,
        pytest.raises(EdgeDecodeError, match=f"redirects to {other}, which is not followed"),
    ):
        remote(url, offline=True)
    assert not asked


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://user:secret@host:8000", "a key belongs into a variable"),
        ("http://user:secret@[::1", "a key belongs into a variable"),
        ("http://host:8000/?key=secret", "a key belongs into a variable"),
        ("http://host:8000/#secret", "a key belongs into a variable"),
        *(
            (url, "is no address")
            for url in ("host:8000", "ftp://host", "http://", "http://host:99999", "http://[::1", "")
        ),
    ],
)
def test_addresses_are_checked(url: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as raised:
        remote(url)
    assert "secret" not in str(raised.value)


def test_a_key_comes_from_a_variable(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "a-key-of-the-tests"
    with Running(pair, Limits(key=key), verifies=True) as running:
        with pytest.raises(EdgeDecodeError, match="401"):
            remote(running.port)
        monkeypatch.delenv("KEY_OF_TARGET", raising=False)
        with pytest.raises(InputError, match="the environment variable KEY_OF_TARGET holds no key"):
            remote(running.port, key_variable="KEY_OF_TARGET")
        monkeypatch.setenv("KEY_OF_TARGET", key)
        with remote(running.port, key_variable="KEY_OF_TARGET") as device:
            assert text_of(device) == text_of(pair, drafter="none")


def test_a_certificate_of_nobody_is_refused(tmp_path: Path) -> None:
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    try:
        subprocess.run(
            [*words, "-keyout", "key.pem", "-out", "cert.pem"], cwd=tmp_path, check=True, capture_output=True
        )
    except FileNotFoundError:
        pytest.skip("openssl makes the certificate")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    listening = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        opened, _ = listening.accept()
        with opened, pytest.raises(ssl.SSLError):
            context.wrap_socket(opened, server_side=True)

    thread = threading.Thread(target=accept)
    thread.start()
    with pytest.raises(EdgeDecodeError, match=r"the certificate of .* is not valid: self-signed"):
        remote(f"https://127.0.0.1:{listening.getsockname()[1]}")
    thread.join()
    listening.close()


@pytest.mark.parametrize(
    ("sampling", "said"),
    [
        (SamplingOptions(temperature=0.9), "sampling without top-k of 1 to 64"),
        (SamplingOptions(temperature=0.9, top_k=65), "sampling without top-k of 1 to 64"),
        (SamplingOptions(temperature=0.9, top_k=9, top_n_sigma=1.0), "top-n-sigma"),
        (SamplingOptions(repetition_penalty=1.1), "a penalty or a bias"),
    ],
)
def test_what_needs_all_tokens_is_refused(sampling: SamplingOptions, said: str, server: Running) -> None:
    with remote(server.port) as device:
        with pytest.raises(CapabilityError, match=f"{said}.*needs the whole distribution"):
            device.session(SessionOptions(sampling=sampling))
        with device.session(SessionOptions(sampling=GREEDY)) as session:
            with pytest.raises(CapabilityError, match="a log probability needs the whole"):
                session.generate("a", top_logprobs=1)
            with pytest.raises(CapabilityError, match="a constraint needs the whole"):
                session.generate("a", constraint=edgedecode.TokenSet([5]))
            with pytest.raises(CapabilityError, match="a score needs the whole"):
                session.score("a b")


def test_an_answer_that_breaks_off_ends_its_line(server: Running, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[str] = []

    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        asked.append(path)
        return (0, b"") if asked.count(VERIFY) > 2 else forwarded(server.port, path, body)

    words = ["generate", "demo", "-p", "Hi", "-n", "24", "--temp", "0", "--draft-max", "1"]
    with answering(answer) as url:
        assert main([*words, "--target-url", url]) == 1
    out, err = capsys.readouterr()
    assert out.strip()
    assert out.endswith("\n")
    assert "cannot be reached" in err.splitlines()[-1]
    assert main([*words, "--target-url", f"http://127.0.0.1:{server.port}", "--target-kind", "sglang"]) == 1
    assert "(--target-kind is sglang)" in capsys.readouterr().err
