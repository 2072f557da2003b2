"""`export --formats onnx,gguf` from the command line, and K-quants by llama.cpp's quantizer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgedecode.cli import main
from edgedecode.errors import ExportError
from edgedecode.export.gguf.llama_calls import engine_tokens, quantize_file
from edgedecode.pack.manifest import Manifest
from tests.export.conftest import recipe
from tests.export.test_architectures import random_tokens
from tests.export.tiny import TinyModel, write_model

from .stock import stock_logits
from .writing import export_gguf, needs_engine, numbers, tensors_in, value_of

pytestmark = pytest.mark.export

WIDE = TinyModel(hidden=256, mlp=512, heads=4, head_size=64)
"""A model for K-quants, whose blocks span 256 columns."""


def arguments(model: Path, out: Path, *more: str) -> list[str]:
    return ["export", "--target", str(model), "--out", str(out), "--noise-positions", "0", *more]


def test_formats_gguf_of_a_pair_writes_two_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = write_model(tmp_path / "target", TinyModel())
    draft = write_model(tmp_path / "draft", TinyModel(layers=1, seed=1))
    pack = tmp_path / "pack"
    assert main([*arguments(target, pack, "--formats", "onnx,gguf", "--bits", "4"), "--draft", str(draft)]) == 0
    manifest = Manifest.load(pack)
    for role in ("target", "draft"):
        path = pack / manifest.models[role].gguf
        assert value_of(path, "general.architecture") == "llama"
        assert value_of(path, "general.name") == role
        template = value_of(path, "tokenizer.chat_template")
        assert isinstance(template, str)
        assert template.startswith("{% for m in messages %}")
        assert value_of(path, "tokenizer.ggml.eos_token_id") == 320
        assert value_of(path, "tokenizer.ggml.eot_token_id") == 3
    capsys.readouterr()


def test_export_without_formats_writes_no_gguf_file(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", TinyModel())
    assert main(arguments(model, tmp_path / "pack")) == 0
    assert Manifest.load(tmp_path / "pack").models["target"].gguf == ""


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--formats", "gguf"), "give onnx,gguf"),
        (("--formats", "onnx,pickle"), "is not a list of onnx and gguf"),
        (("--gguf-type", "Q4_K_M"), "add --formats onnx,gguf"),
    ],
)
def test_gguf_options_refuse_bad_arguments(
    more: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(arguments(tmp_path, tmp_path / "pack", *more))
    assert message in " ".join(capsys.readouterr().err.split())


def test_gguf_type_needs_llama_cpp(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgedecode.export.gguf.llama_calls.engine_installed", lambda: False)
    model = write_model(tmp_path / "model", TinyModel())
    assert main(arguments(model, tmp_path / "pack", "--formats", "onnx,gguf", "--gguf-type", "Q6_K")) == 1
    assert "pip install llama-cpp-python" in capsys.readouterr().err


@pytest.mark.parametrize(("kind", "wanted"), [("Q4_K_M", "Q4_K"), ("Q5_K_M", "Q5_K"), ("Q6_K", "Q6_K")])
@needs_engine
def test_gguf_type_quantizes_with_k_quants(kind: str, wanted: str, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", WIDE)
    manifest = export_gguf(model, tmp_path / "pack", stored=recipe(4), kind=kind)
    path = tmp_path / "pack" / manifest.models["target"].gguf
    kinds = {tensor.tensor_type.name for tensor in tensors_in(path).values()}
    assert wanted in kinds
    assert kinds <= {wanted, "Q6_K", "F32"}
    assert sorted(file.name for file in path.parent.glob("*.gguf")) == ["model.gguf"]
    exact = tensors_in(tmp_path / "exact" / export_gguf(model, tmp_path / "exact").models["target"].gguf)
    for title, tensor in tensors_in(path).items():
        error = numbers(tensor) - numbers(exact[title])
        assert np.sqrt((error**2).mean()) < 0.1 * np.sqrt((numbers(exact[title]) ** 2).mean()), title
    assert np.isfinite(stock_logits(path, random_tokens(24))).all()


@needs_engine
def test_llama_cpp_errors_are_reported(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(64))
    with pytest.raises(ExportError, match=r"llama\.cpp failed to tokenize: .*cannot read the file"):
        engine_tokens(broken, ["a"])
    with pytest.raises(ExportError, match=r"llama\.cpp failed to quantize"):
        quantize_file(broken, tmp_path / "out.gguf", kind="Q6_K")
