"""`serve`: the JavaScript clients of its APIs, each in a process of its own, against one server."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.apps.serving import KEY, STORY, Running, lone

# isort: split
import edgedecode
from edgedecode import Message
from edgedecode.apps.serve.guards import Limits
from edgedecode.apps.serve.offered import model_names
from edgedecode.open_pack import LoadOptions

SCRIPTS = Path(__file__).with_name("js_clients")
PACKAGES = Path(__file__).parents[2] / "build/js_clients/node_modules"
"""Where `make providers` puts them."""
CLIENTS = {
    "openai": "openai",
    "anthropic": "@anthropic-ai/sdk",
    "ollama": "ollama",
    **dict.fromkeys(("vercel compatible", "vercel anthropic", "vercel ollama"), "ai"),
}


@pytest.fixture(scope="module")
def server(pack: Path) -> Iterator[Running]:
    with (
        edgedecode.load(pack, runtime="onnx", options=LoadOptions(hidden=True)) as pair,
        Running(pair, Limits(key=KEY)) as running,
    ):
        yield running


def told(client: str, server: Running, folder: Path) -> dict[str, Any]:
    """Return what a client's script tells. folder: gets it, beside the packages that it imports."""
    node = shutil.which("node")
    if node is None or not (PACKAGES / CLIENTS[client]).is_dir():
        pytest.skip("node or the JavaScript clients are not installed: `make providers`")
    shutil.copytree(SCRIPTS, folder, dirs_exist_ok=True)
    (folder / "node_modules").symlink_to(PACKAGES, target_is_directory=True)
    script, _, provider = client.partition(" ")
    given = {"BASE": f"http://127.0.0.1:{server.port}", "KEY": KEY, "MODEL": "demo", "PROVIDER": provider}
    words = [node, "--no-warnings", str(folder / f"{script}.mjs")]
    done = subprocess.run(words, env=os.environ | given, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("client", CLIENTS)
def test_javascript_clients_are_served(client: str, server: Running, tmp_path: Path) -> None:
    found, pair = told(client, server, tmp_path), server.pair
    expected = lone(pair, most=8)
    assert (found["chat"], found["stream"]) == (expected, expected)
    assert found.get("response", expected) == expected
    prompt = len(pair.tokenizer.encode(pair.tokenizer.render([Message("user", STORY)])))
    assert found["usage"] == found["streamUsage"] == [prompt, 8]
    assert found["call"] == [["weather", {"city": "Athens"}]]
    assert found["object"] == {"age": 61, "job": "pilot"}
    assert "prompt is too long" in found["refusal"]
    assert found.get("models", model_names(pair)) == model_names(pair)
    assert len({*found.get("vectors", [1])}) == 1
    assert found.get("results", ["rain in Athens"]) == ["rain in Athens"]
    assert found.get("steps", 2) == 2
    assert found.get("ran", [True, 2]) == [True, 2]
    if "events" in found:
        begin, end = ["message_start", "content_block_start"], ["content_block_stop", "message_delta", "message_stop"]
        assert found["events"] == [*begin, "content_block_delta", *end]
