"""Exported GGUF files, imported again: sizes, tokenizer and generated text are those of the original pack."""

import shutil
from pathlib import Path

import pytest

import edgedecode
from edgedecode import SamplingOptions, SessionOptions
from edgedecode.export.imports.gguf_import import import_gguf_pair
from edgedecode.export.imports.imported_pack import ImportRequest
from edgedecode.export.stages import Stages
from edgedecode.pack.manifest import Manifest
from edgedecode.text.tokenizer import Tokenizer
from tests.export.conftest import recipe
from tests.export.tiny import TinyModel, write_model

from .stock import stock_quantize
from .writing import GGUF_SHAPES, WIDE, export_gguf, needs_engine

pytestmark = pytest.mark.export
SIZES = ("rows", "hidden_size", "layers", "kv_heads", "head_size")


def imported(target: Path, out: Path) -> Manifest:
    return import_gguf_pair(ImportRequest(target=target, draft=None, out=out), Stages())


def generate(pack: Path, runtime: str) -> str:
    options = SessionOptions(drafter="none", sampling=SamplingOptions())
    with edgedecode.load(pack, runtime=runtime) as pair, pair.session(options) as session:
        return session.generate("the quick fox", max_tokens=24).text


@pytest.mark.parametrize("family", ["llama", "phi3", "gemma2", "gemma3", "qwen3", "granite", "smollm3"])
def test_import_of_an_exported_gguf_file_restores_the_manifest(family: str, tmp_path: Path) -> None:
    exported = export_gguf(write_model(tmp_path / "model", GGUF_SHAPES[family]), tmp_path / "pack")
    reimported = imported(tmp_path / "pack" / exported.models["target"].gguf, tmp_path / "reimported")
    assert [getattr(reimported.models["target"], size) for size in SIZES] == [
        getattr(exported.models["target"], size) for size in SIZES
    ]
    # shortened to one window if llama.cpp does not support the model's windows
    assert reimported.models["target"].context <= exported.models["target"].context
    assert set(reimported.generation.end_token_ids) >= set(exported.generation.end_token_ids)
    assert reimported.vocabulary_size == exported.vocabulary_size
    files = [tmp_path / name / "tokenizer.json" for name in ("reimported", "pack")]
    one, other = map(Tokenizer.from_file, files)
    assert one.first_difference(other) is None
    assert (tmp_path / "reimported" / "chat_template.jinja").read_text() == (
        tmp_path / "pack" / "chat_template.jinja"
    ).read_text()


@pytest.mark.parametrize("bits", [32, 8, 4])
@needs_engine
def test_import_of_an_exported_gguf_file_generates_the_same_text(bits: int, tmp_path: Path) -> None:
    """With floats both engines agree; with quantized weights the text is compared on llama.cpp only."""
    model = write_model(tmp_path / "model", TinyModel())
    exported = export_gguf(model, tmp_path / "pack", stored=recipe(bits))
    imported(tmp_path / "pack" / exported.models["target"].gguf, tmp_path / "reimported")
    reimported = generate(tmp_path / "reimported", "llama")
    assert reimported == generate(tmp_path / "pack", "llama")
    if bits == 32:
        assert reimported == generate(tmp_path / "pack", "onnx")


@needs_engine
def test_import_of_a_llama_cpp_mixture(tmp_path: Path) -> None:
    exported = export_gguf(write_model(tmp_path / "model", WIDE), tmp_path / "pack")
    stock_quantize(tmp_path / "pack" / exported.models["target"].gguf, tmp_path / "mixed.gguf", kind="Q4_K_M")
    shutil.rmtree(tmp_path / "pack")
    entry = imported(tmp_path / "mixed.gguf", tmp_path / "reimported").models["target"]
    assert (entry.bits, entry.block_size, entry.head_bits, entry.quantization) == (4, 256, 6, "Q4_K, Q6_K")
    assert generate(tmp_path / "reimported", "llama")
