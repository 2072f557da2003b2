"""`trim` on a copy of the bundled pack with real graphs: the written head is the measured one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from edgedecode import LoadOptions, load
from edgedecode.cli import main
from edgedecode.engines.interface import ModelRequest
from edgedecode.engines.registry import find_runtime
from edgedecode.export.trim import answers as answering
from edgedecode.export.trim import head_files as heads
from edgedecode.memory.budget import Budget
from edgedecode.pack.hub import BUNDLED_PACK
from edgedecode.pack.manifest import MANIFEST_NAME, Manifest
from edgedecode.pack.token_map import read_token_ids

pytest.importorskip("onnx_ir")
pytestmark = pytest.mark.skipif(
    not (BUNDLED_PACK / MANIFEST_NAME).is_file(), reason="there is no pack: run `make pack`"
)

FEW = ("--prompts", "12", "--answers", "1", "--max-tokens", "24", "--per-category", "1", "--runtime", "onnx")


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path / "cache"))
    pack = Path(shutil.copytree(BUNDLED_PACK, tmp_path / "pack"))
    if Manifest.load(pack).models["draft"].trim is not None:
        assert main(["trim", str(pack), "--remove"]) == 0
    return pack


def test_trim_head_has_the_logits_of_the_full_head(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = Manifest.load(copy)
    assert main(["trim", str(copy), "--size", "1024", *FEW, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["size"] == 1024
    assert {"draft/heads.onnx", "draft/trim.ids"} <= set(report["files"])
    manifest = Manifest.load(copy)
    entry = manifest.located("draft")
    assert entry.trim is not None
    ids = read_token_ids(copy / entry.trim.token_ids, rows=1024, vocabulary_size=manifest.vocabulary_size).ids
    with load(copy, runtime="onnx", options=LoadOptions(verify=True)) as pair:
        runtime = find_runtime("onnx")
        trimmed = runtime.open(
            ModelRequest(
                entry,
                copy,
                name="draft",
                vocabulary_size=manifest.vocabulary_size,
                budget=Budget(),
                threads=1,
                provider="cpu",
                needs=("trim",),
            )
        )
        tokens = pair.tokenizer.encode("Tell me a story about a fox.")
        assert pair.draft is not None
        full = _logits(pair.draft, pair.draft, tokens)
        part = _logits(trimmed, heads.trimmed_head(trimmed), tokens)
        trimmed.close()
    assert part.shape == (1024,)
    np.testing.assert_allclose(part, full[ids], atol=1e-3)
    assert main(["trim", str(copy), "--remove"]) == 0
    assert Manifest.load(copy) == before


def _logits(model, head, tokens):  # type: ignore[no-untyped-def]
    state = model.new_state(64)
    try:
        return head.forward(tokens, state).logits[0].copy()
    finally:
        state.close()


def test_trim_rerun_uses_the_cached_answers(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["trim", str(copy), "--size", "1024", *FEW]) == 0

    def never(*_: object, **__: object) -> None:
        raise AssertionError("the answer is cached")

    monkeypatch.setattr(answering, "_answer", never)
    assert main(["trim", str(copy), "--size", "2048", *FEW]) == 0
    trim = Manifest.load(copy).models["draft"].trim
    assert trim is not None
    assert trim.size == 2048
