"""Imported GGUF files on llama.cpp: drafts change nothing, and the verbs accept the pack."""

import json
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter

import edgedecode
from edgedecode import SamplingOptions, SessionOptions
from edgedecode.cli import main
from edgedecode.export.bundles.bundle import Bundle
from edgedecode.pack.manifest import Manifest
from edgedecode.text.tokenizer import Tokenizer
from tests.small_tokenizers import byte_fallback, byte_fallback_merges, byte_level

from .files import File, write_file

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")


def generate(pack: Path, prompt: str, *, draft_max: int, tokens: int = 40, runtime: str = "llama") -> str:
    options = SessionOptions(draft_max=draft_max, sampling=SamplingOptions())
    with edgedecode.load(pack, runtime=runtime) as pair, pair.session(options) as session:
        return session.generate(prompt, max_tokens=tokens).text


def imported(out: Path, target: Path, *more: str) -> Manifest:
    assert main(["import", "--target", str(target), *more, "--out", str(out)]) == 0
    return Manifest.load(out)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0"])
def test_imported_gguf_is_checked_and_drafts_change_nothing(kind: str, tmp_path: Path) -> None:
    target = write_file(tmp_path / "a.gguf", byte_level(), File(kind=kind))
    draft = write_file(tmp_path / "b.gguf", byte_level(), File(kind=kind, layers=1, rows=384))
    entry = imported(tmp_path / "pack", target, "--draft", str(draft)).models["target"]
    assert entry.parity["gguf_texts_differing"] == 0
    assert entry.parity["gguf_texts"] > 10
    plain = generate(tmp_path / "pack", "the quick fox", draft_max=0)
    assert plain
    if kind == "F32":
        assert generate(tmp_path / "pack", "the quick fox", draft_max=4) == plain


def test_a_file_that_stays_outside_the_pack_is_packaged(tmp_path: Path) -> None:
    target = write_file(tmp_path / "a.gguf", byte_level(), File(kind="Q8_0", context=512))
    assert main(["import", "--target", str(target), "--out", str(tmp_path / "pack")]) == 0
    words = ["--target", "android-llamacpp", "--out", str(tmp_path / "bundle"), "--test-tokens", "4"]
    assert main(["package", str(tmp_path / "pack"), *words]) == 0
    bundle = Bundle.load(tmp_path / "bundle")
    assert (tmp_path / "bundle" / bundle.models["target"].gguf).read_bytes() == target.read_bytes()
    assert bundle.plan.tolerance["llama"] >= 0.4


def test_the_part_that_only_llama_cpp_runs_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EDGEDECODE_RUNTIME", raising=False)
    scale = {"blk.0.attn_q.scale": np.ones(1, np.float32)}
    file = write_file(tmp_path / "a.gguf", byte_level(), File(replaced=scale))
    assert main(["generate", "-m", str(file), "-p", "hi", "-n", "2"]) == 0
    assert "decoding on llama (a.gguf: it has the tensor blk.0.attn_q.scale, which" in capsys.readouterr().err


@pytest.mark.parametrize("has_llama", [True, False])
def test_import_says_what_our_kernels_do_not_run(
    has_llama: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scale = {"blk.0.attn_q.scale": np.ones(1, np.float32)}
    file = write_file(tmp_path / "a.gguf", byte_level(), File(replaced=scale))
    if not has_llama:
        monkeypatch.setattr("edgedecode.runtimes.llama.llama_runtime.engine_version", lambda: None)
    imported(tmp_path / "pack", file)
    printed = " ".join(capsys.readouterr().out.split())
    who = "only llama" if has_llama else "no engine here"
    assert f"target: {who} runs it: onnx: a.gguf: it has the tensor blk.0.attn_q.scale" in printed
    imported(tmp_path / "other", write_file(tmp_path / "b.gguf", byte_level()))
    assert "runs it" not in capsys.readouterr().out


def test_imported_gguf_with_token_scores_runs(tmp_path: Path) -> None:
    target = write_file(tmp_path / "a.gguf", byte_fallback(), File(eos="<s>"))
    entry = imported(tmp_path / "pack", target).models["target"]
    assert entry.parity["gguf_texts_differing"] == 0
    assert generate(tmp_path / "pack", "ab é", draft_max=0)


def test_imported_gguf_with_gemma_4s_vocabulary_is_read_as_llama_cpp_does(tmp_path: Path) -> None:
    inner = byte_fallback_merges()
    merges = json.loads(inner.to_str())["model"]["merges"]

    def more(writer: GGUFWriter) -> None:
        writer.add_token_merges([" ".join(merge) for merge in merges])

    target = write_file(tmp_path / "a.gguf", inner, File(eos="<turn|>", model="gemma4", more=more))
    manifest = imported(tmp_path / "pack", target)
    assert manifest.models["target"].parity["gguf_texts_differing"] == 0
    found = Tokenizer.from_file(tmp_path / "pack" / "tokenizer.json")
    for text in ("abc  abé\n\n\nab ", "c\n<turn|>"):
        assert found.encode(text, add_special=True) == inner.encode(text).ids
    assert manifest.generation.end_token_ids == (inner.token_to_id("<turn|>"),)


def test_import_refuses_a_file_that_llama_cpp_cannot_open(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The architecture is made up; the import tries the file in a child process."""
    target = write_file(tmp_path / "a.gguf", byte_level(), File(architecture="nosucharch"))
    assert main(["import", "--target", str(target), "--out", str(tmp_path / "pack")]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("edgedecode: a.gguf cannot be used: llama.cpp")
    assert "nosucharch" in error
    assert not (tmp_path / "pack").exists()


def test_a_file_that_llama_cpp_does_not_know_is_refused_with_advice_for_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_file(tmp_path / "a.gguf", byte_level(), File(architecture="nosucharch"))
    assert main(["generate", "-m", str(file), "-p", "hi", "--runtime", "llama"]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert "nosucharch" in error
    assert "import the pack" not in error
    assert error.endswith("or upgrade llama-cpp-python")


def test_imported_floats_give_the_same_text_on_both_engines(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    imported(tmp_path / "pack", write_file(tmp_path / "a.gguf", byte_level()))
    texts = [generate(tmp_path / "pack", "the fox", draft_max=0, runtime=runtime) for runtime in ("onnx", "llama")]
    assert texts[0] == texts[1] != ""


def test_generate_and_show_accept_an_imported_pair(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Import two files, generate, and show the pack."""
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


def test_imported_copy_can_be_moved(tmp_path: Path) -> None:
    target = write_file(tmp_path / "a.gguf", byte_level())
    imported(tmp_path / "pack", target, "--copy")
    plain = generate(tmp_path / "pack", "the fox", draft_max=0)
    target.unlink()
    assert generate((tmp_path / "pack").rename(tmp_path / "moved"), "the fox", draft_max=0) == plain
