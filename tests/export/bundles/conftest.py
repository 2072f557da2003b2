"""One bundle of the bundled pack for all tests of bundles, and words that make another one quickly."""

import json
from pathlib import Path

import pytest

from edgedecode.cli import main
from tests.made_once import made_once, run_folder


def _package(out: Path) -> None:
    assert main(["package", "demo", "--target", "android-cpu", "--out", str(out)]) == 0


@pytest.fixture(scope="session")
def cpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of the bundled pack for Android's processors. Tests that change it must copy it first."""
    return made_once(run_folder(tmp_path_factory) / "android-cpu bundle", _package)


@pytest.fixture
def quick(tmp_path: Path) -> list[str]:
    """Words of `package` for tests that do not read the recorded answers: one prompt, two tokens."""
    prompts = tmp_path / "one.jsonl"
    prompts.write_text(json.dumps({"messages": [{"role": "user", "content": "Hi"}]}) + "\n", encoding="utf-8")
    return ["--prompts", str(prompts), "--test-tokens", "2"]
