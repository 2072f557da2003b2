"""Servers that go on with a text where the device's model is unsure, or write whole answers: by ids, or by text."""

from collections.abc import Iterator
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
        connection = connection.connection
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
            before = target.connection.requests
            assert text_of(device, prompt, most=150) == text_of(pair, prompt, most=150, drafter="none")
            assert target.connection.requests - before == 1
        wait_for(lambda: not server.service.running)
        with device.session(SessionOptions(sampling=GREEDY)) as session, pair.session(
            SessionOptions(sampling=GREEDY, drafter="none")
        ) as own:
            for words in (STORY, "And then?"):
                assert session.generate(words, max_tokens=30).text == own.generate(words, max_tokens=30).text
        warm = SamplingOptions(temperature=0.9, top_p=0.9)
        one, same, other = (text_of(device, sampling=warm, seed=seed) for seed in (1, 1, 2))
        assert one == same != other
        with pytest.raises(CapabilityError, match="verifies no drafts"):
            device.session(SessionOptions(draft_max=4))
        with pytest.raises(CapabilityError, match="typical_p: .* is not told of it"):
            device.session(SessionOptions(sampling=SamplingOptions(temperature=0.9, typical_p=0.5)))
