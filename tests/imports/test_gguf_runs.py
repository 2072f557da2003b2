"""Imported GGUF files on llama.cpp: they say what the pack they came from says, and every verb takes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import edgedecode
from edgedecode import SamplingOptions, SessionOptions
from edgedecode.cli import main
from edgedecode.errors import CapabilityError
from edgedecode.pack.manifest import Manifest
from tests.small_tokenizers import byte_fallback, byte_level

from .files import File, write_file

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")


def said(pack: Path, prompt: str, *, draft_max: int, tokens: int = 40) -> str:
    options = SessionOptions(draft_max=draft_max, sampling=SamplingOptions())
    with edgedecode.load(pack, runtime="llama") as pair, pair.session(options) as session:
        return session.generate(prompt, max_tokens=tokens).text


def imported(out: Path, target: Path, *more: str) -> Manifest:
    assert main(["import", "--target", str(target), "--noise-positions", "40", *more, "--out", str(out)]) == 0
    return Manifest.load(out)


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q4_0"])
def test_drafts_change_nothing_and_the_file_was_asked(kind: str, tmp_path: Path) -> None:
    target = write_file(tmp_path / "a.gguf", byte_level(), File(kind=kind))
    draft = write_file(tmp_path / "b.gguf", byte_level(), File(kind=kind, layers=1, rows=384))
    entry = imported(tmp_path / "pack", target, "--draft", str(draft)).models["target"]
    assert entry.kernel_noise is not None
    assert entry.parity["noise_positions"] == 40
    assert entry.parity["gguf_texts_differing"] == 0
    assert entry.parity["gguf_texts"] > 10
    plain = said(tmp_path / "pack", "the quick fox", draft_max=0)
    assert plain
    if kind == "F32":
        assert said(tmp_path / "pack", "the quick fox", draft_max=4) == plain


def test_scored_vocabularies_run_too(tmp_path: Path) -> None:
    target = write_file(tmp_path / "a.gguf", byte_fallback(), File(eos="<s>"))
    entry = imported(tmp_path / "pack", target).models["target"]
    assert entry.parity["gguf_texts_differing"] == 0
    assert said(tmp_path / "pack", "ab é", draft_max=0)


def test_a_file_that_llama_cpp_cannot_open(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An architecture that exists only in this test: it is tried in a child process."""
    target = write_file(tmp_path / "a.gguf", byte_level(), File(architecture="nosucharch"))
    assert main(["import", "--target", str(target), "--out", str(tmp_path / "pack")]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("edgedecode: a.gguf cannot be used: llama.cpp")
    assert "nosucharch" in error
    assert not (tmp_path / "pack").exists()


def test_without_graphs_the_other_engine_says_so(tmp_path: Path) -> None:
    target = write_file(tmp_path / "a.gguf", byte_level())
    imported(tmp_path / "pack", target)
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    with pytest.raises(CapabilityError, match=r"no ONNX graphs of the model target.*--runtime llama"):
        edgedecode.load(tmp_path / "pack", runtime="onnx")


def test_verbs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two files, and then a prompt, a benchmark and a look at the pack."""
    target = write_file(tmp_path / "a.gguf", byte_level(), File(context=512))
    draft = write_file(tmp_path / "b.gguf", byte_level(), File(layers=1, context=512))
    pack = tmp_path / "pack"
    imported(pack, target, "--draft", str(draft))
    capsys.readouterr()
    words = ["-m", str(pack), "--runtime", "llama"]
    assert main(["generate", *words, "-p", "the fox", "-n", "8", "--temp", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])
    assert main(["show", str(pack), "--verify"]) == 0
    assert "OK: all 4 files" in capsys.readouterr().out


def test_a_copied_pack_opens_elsewhere(tmp_path: Path) -> None:
    target = write_file(tmp_path / "a.gguf", byte_level())
    imported(tmp_path / "pack", target, "--copy")
    plain = said(tmp_path / "pack", "the fox", draft_max=0)
    target.unlink()
    assert said((tmp_path / "pack").rename(tmp_path / "moved"), "the fox", draft_max=0) == plain
