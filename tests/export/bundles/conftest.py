"""One bundle of the bundled pack for all tests of bundles, and words that make another one quickly."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from edgedecode.cli import main
from edgedecode.export.bundles.package import make_bundle
from edgedecode.export.bundles.request import TARGETS, PackageRequest, device_of
from edgedecode.export.stages import Stages
from edgedecode.library.names import BUNDLED_PACK
from tests.made_once import made_once, run_folder


def _package(out: Path) -> None:
    assert main(["package", "demo", "--target", "android-cpu", "--out", str(out)]) == 0


@pytest.fixture(scope="session")
def cpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of the bundled pack for Android's processors. Tests that change it must copy it first."""
    return made_once(run_folder(tmp_path_factory) / "android-cpu bundle", _package)


def package_graphs(out: Path, *, pack: Path = BUNDLED_PACK, prompts: Path | None = None, tokens: int = 32) -> None:
    """Make a bundle for ONNX Runtime as those for NPUs are, but of the graphs for processors alone."""
    target = replace(TARGETS["android-qnn"], provider="cpu")
    request = PackageRequest(pack, target, out, device_of(None, ""), "com.example.duck", prompts=prompts, tokens=tokens)
    make_bundle(request, Stages())


@pytest.fixture(scope="session")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of the bundled pack for ONNX Runtime. Tests that change it must copy it first."""
    return made_once(run_folder(tmp_path_factory) / "graphs bundle", package_graphs)


@pytest.fixture
def quick(tmp_path: Path) -> list[str]:
    """Words of `package` for tests that do not read the recorded answers: one prompt, two tokens."""
    prompts = tmp_path / "one.jsonl"
    prompts.write_text(json.dumps({"messages": [{"role": "user", "content": "Hi"}]}) + "\n", encoding="utf-8")
    return ["--prompts", str(prompts), "--test-tokens", "2"]
