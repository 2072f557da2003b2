"""Damaged folders, options and requests in the native library: errors of a sentence, no crash, no large memory."""

import random
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

from tests.made_once import run_folder
from tests.native.damage import Tries
from tests.native.test_models import ENGINE, packaged

pytestmark = pytest.mark.skipif(ENGINE is None, reason="this onnxruntime has no library of its own")


def test_damage_is_an_error_of_one_sentence(
    native_build: Path, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    """A few seconds; `tests/native/damage.py` says how more is tried."""
    chance = random.Random(40)
    whole = packaged(run_folder(tmp_path_factory) / "native")
    tries = Tries(native_build / "edgedecode-check", Path(str(ENGINE)), whole, tmp_path / "folder")
    for _ in range(40):
        tries.manifest(chance)
        tries.files(chance)
    for _ in range(20):
        tries.options(chance)
    tries.requests(chance, 150)
    tries.close()
    for kind in ("native.json: open", "options: open", "session: session", "request: generate"):
        assert tries.counts[f"{kind} refused"] > 0, tries.counts
    assert sum(count for kind, count in tries.counts.items() if kind.endswith("generate passed")) > 10
    assert tries.peak < 300_000_000
