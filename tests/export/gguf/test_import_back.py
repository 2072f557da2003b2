"""Our own GGUF files, imported by themselves: the same sizes, the same tokenizer, the same words as their pack's."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import edgedecode
from edgedecode import SamplingOptions, SessionOptions
from edgedecode.export.gguf.llama_calls import quantize_file
from edgedecode.export.imports.gguf_import import import_gguf_pair
from edgedecode.export.imports.imported_pack import ImportRequest
from edgedecode.export.stages import Stages
from edgedecode.pack.manifest import Manifest
from edgedecode.text.tokenizer import Tokenizer
from tests.export.conftest import recipe
from tests.export.tiny import TinyModel, write_model

from .test_command import WIDE
from .writing import SHAPES_THERE, export_gguf, needs_engine

pytestmark = pytest.mark.export
SIZES = ("rows", "hidden_size", "layers", "kv_heads", "head_size")


def imported(target: Path, out: Path) -> Manifest:
    return import_gguf_pair(ImportRequest(target=target, draft=None, out=out, noise_positions=0), Stages())


def said(pack: Path, runtime: str) -> str:
    options = SessionOptions(drafter="none", sampling=SamplingOptions())
    with edgedecode.load(pack, runtime=runtime) as pair, pair.session(options) as session:
        return session.generate("the quick fox", max_tokens=24).text


@pytest.mark.parametrize("family", ["llama", "phi3", "gemma2", "gemma3", "qwen3", "granite", "smollm3"])
def test_what_the_manifest_says(family: str, tmp_path: Path) -> None:
    whole = export_gguf(write_model(tmp_path / "model", SHAPES_THERE[family]), tmp_path / "pack")
    alone = imported(tmp_path / "pack" / whole.models["target"].gguf, tmp_path / "alone")
    assert [getattr(alone.models["target"], size) for size in SIZES] == [
        getattr(whole.models["target"], size) for size in SIZES
    ]
    assert alone.models["target"].context <= whole.models["target"].context  # without windows, one window
    assert set(alone.generation.end_token_ids) >= set(whole.generation.end_token_ids)
    assert alone.vocabulary_size == whole.vocabulary_size
    files = [tmp_path / name / "tokenizer.json" for name in ("alone", "pack")]
    one, other = map(Tokenizer.from_file, files)
    assert one.first_difference(other) is None
    assert (tmp_path / "alone" / "chat_template.jinja").read_text() == (
        tmp_path / "pack" / "chat_template.jinja"
    ).read_text()


@pytest.mark.parametrize("bits", [32, 8, 4])
@needs_engine
def test_the_same_words(bits: int, tmp_path: Path) -> None:
    """In floats what both engines say of the pack; quantized what llama.cpp does, whose sums are its own."""
    model = write_model(tmp_path / "model", TinyModel())
    whole = export_gguf(model, tmp_path / "pack", stored=recipe(bits))
    imported(tmp_path / "pack" / whole.models["target"].gguf, tmp_path / "alone")
    alone = said(tmp_path / "alone", "llama")
    assert alone == said(tmp_path / "pack", "llama")
    if bits == 32:
        assert alone == said(tmp_path / "pack", "onnx")


@needs_engine
def test_mixtures_of_llama_cpp(tmp_path: Path) -> None:
    whole = export_gguf(write_model(tmp_path / "model", WIDE), tmp_path / "pack")
    quantize_file(tmp_path / "pack" / whole.models["target"].gguf, tmp_path / "mixed.gguf", kind="Q4_K_M")
    shutil.rmtree(tmp_path / "pack")
    entry = imported(tmp_path / "mixed.gguf", tmp_path / "alone").models["target"]
    assert (entry.bits, entry.block_size, entry.head_bits, entry.quantization) == (4, 256, 6, "Q4_K, Q6_K")
    assert said(tmp_path / "alone", "llama")
