"""Published widths, vocabularies and special ids at 4 bits: both engines agree. Opt-in: takes minutes."""

import os
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

import edgedecode
from edgedecode import SamplingOptions, SessionDetails, SessionOptions
from edgedecode.engines.kernel_noise import rescore
from edgedecode.pack.manifest import Manifest

from .conftest import export, recipe
from .published import PUBLISHED, write_published

ENGINES = ("onnx", "llama")
PROMPT = "The quick brown fox says: 1 + 1 = 2, naïve café."
NEW = 24

pytestmark = [
    pytest.mark.export,
    pytest.mark.slow,
    pytest.mark.skipif("EDGEDECODE_PUBLISHED" not in os.environ, reason="EDGEDECODE_PUBLISHED=1 takes minutes and GB"),
]


@pytest.mark.parametrize("name", PUBLISHED)
def test_export_of_a_published_shape_agrees_on_both_engines(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    published = PUBLISHED[name]
    folder = write_published(tmp_path / name, published)
    start = time.perf_counter()
    manifest = export(folder, tmp_path / "pack", stored=recipe(4))
    seconds = time.perf_counter() - start
    check_entry(manifest, name)
    pytest.importorskip("llama_cpp")
    texts = {engine: greedy(tmp_path / "pack", engine) for engine in ENGINES}
    gaps = {engine: gap_in(texts, engine, pack=tmp_path / "pack") for engine in ENGINES}
    noise = manifest.models["target"].parity["kernel_max_error"]
    with capsys.disabled():
        same = len(set(texts.values())) == 1
        print(f"\n{name}: {seconds:.0f} s; {'same text' if same else 'texts differ'}; gaps {gaps}, noise {noise:.3f}")
    for text in texts.values():
        assert len(text) > NEW
        assert len(set(text[-NEW:])) > 2, "the text repeats itself: the layers do not affect the logits"
    assert all(gap <= noise for gap in gaps.values())


def check_entry(manifest: Manifest, name: str) -> None:
    """Check that the manifest agrees with the published configuration, and that parity is exact."""
    published, entry = PUBLISHED[name], manifest.models["target"]
    config, ends = published.config, published.ends
    assert entry.rows == config["vocab_size"]
    assert manifest.vocabulary_size == published.tokens
    assert set(manifest.generation.end_token_ids) >= ({ends} if isinstance(ends, int) else set(ends))
    assert entry.window == (512 if name.startswith("gemma") else 0)
    assert entry.parity["max_error"] < 5e-5 * max(1.0, entry.parity["deviation"])


def greedy(pack: Path, engine: str) -> tuple[int, ...]:
    """Return the tokens of the prompt and the answer."""
    options = SessionOptions(
        sampling=SamplingOptions(), drafter="none", context=256, details=SessionDetails(ignore_eos=True)
    )
    with edgedecode.load(pack, runtime=engine) as pair, pair.session(options) as session:
        session.generate(PROMPT, max_tokens=NEW)
        return tuple(session.tokens)


def gap_in(texts: Mapping[str, tuple[int, ...]], engine: str, *, pack: Path) -> float:
    """Return the largest gap, in logits, between this engine's own choice and a token of the other engine's text."""
    others = [text for other, text in texts.items() if other != engine and text != texts[engine]]
    if not others:
        return 0.0
    with edgedecode.load(pack, runtime=engine) as pair:
        return max(rescore(pair.target, text, prompt_tokens=len(text) - NEW).largest_gap for text in others)
