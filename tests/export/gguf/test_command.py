"""`export --formats onnx,gguf` from the command line, and llama.cpp's failures."""

import subprocess
from pathlib import Path

import pytest

from edgedecode.cli import main
from edgedecode.errors import ExportError
from edgedecode.export.gguf.llama_tokens import engine_tokens
from edgedecode.pack.manifest import Manifest
from tests.export.tiny import TinyModel, write_model

from .writing import needs_engine, value_of

pytestmark = pytest.mark.export


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


@needs_engine
def test_llama_cpp_errors_are_reported(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(64))
    with pytest.raises(ExportError, match=r"llama\.cpp failed to tokenize: .*cannot read the file"):
        engine_tokens(broken, ["a"])


def test_llama_cpp_that_hangs_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timeouts: list[float] = []

    def hang(*command: object, timeout: float, **options: object) -> None:
        timeouts.append(timeout)
        raise subprocess.TimeoutExpired("llama.cpp", timeout)

    monkeypatch.setattr(subprocess, "run", hang)
    for nbytes in (0, 500 << 20):
        source = tmp_path / f"model{nbytes}"
        with source.open("wb") as file:
            file.truncate(nbytes)
        with pytest.raises(ExportError, match=r"did not tokenize within \d+ s and was stopped"):
            engine_tokens(source, ["a"])
    assert timeouts[0] >= 60
    assert timeouts[1] > timeouts[0] + 20
