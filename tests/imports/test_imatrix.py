"""`imatrix` on files of other tools: chunks, memory, refusals."""

from pathlib import Path

import pytest
from tokenizers.processors import TemplateProcessing

from edgedecode.apps.imatrix.command import chunks_of
from edgedecode.cli import main
from edgedecode.gguf.importance import read_sums
from edgedecode.runtimes.onnx.kernels.trial import tried
from edgedecode.text.tokenizer import Tokenizer
from tests.small_tokenizers import byte_fallback, byte_level

from .files import File, write_file

pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.skipif(tried() is None, reason="no kernels for this processor")

TEXT = "the quick brown fox jumps over the lazy dog\n" * 60


def test_chunks_begin_like_texts_and_hold_no_special_token() -> None:
    """As in llama-imatrix: <s> takes the place of a chunk's first token, and the text spells no special token."""
    inner = byte_fallback()
    inner.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    text = "ab </s> <s> " * 6
    plain = Tokenizer(byte_fallback()).encode(text.replace("<s>", "<z>"))
    chunks = chunks_of(Tokenizer(inner), text, size=16)
    z, s = (byte_fallback().token_to_id(f"<0x{ord(letter):02X}>") for letter in "zs")
    expected = [1, *(s if id == z else id for id in plain)]
    assert len(chunks) == len(expected) // 16 > 1
    assert all(chunk == [1, *expected[16 * place + 1 : 16 * place + 16]] for place, chunk in enumerate(chunks))


def test_chunks_of_a_text_without_a_beginning_are_the_text() -> None:
    tokenizer = Tokenizer(byte_level())
    found, tokens = chunks_of(tokenizer, TEXT, size=64), tokenizer.encode(TEXT)
    assert len(tokens) % 64
    assert [id for chunk in found for id in chunk] == tokens[: len(tokens) // 64 * 64]


def test_sums_of_a_deep_model_need_the_memory_of_one_layer(tmp_path: Path) -> None:
    """The activations of all layers do not fit what the engine's allocator may take."""
    file = write_file(tmp_path / "deep.gguf", byte_level(), File(layers=160, kind="Q4_1"))
    (tmp_path / "text.txt").write_text(TEXT)
    words = ["-f", str(tmp_path / "text.txt"), "-o", str(tmp_path / "out.gguf"), "--memory", "4GB"]
    assert main(["imatrix", str(file), *words]) == 0
    sums, texts = read_sums(tmp_path / "out.gguf")
    assert texts == ["text.txt"]
    assert len(sums) == 160 * 7
    assert {count for _, count in sums.values()} == {len(Tokenizer(byte_level()).encode(TEXT[:-1])) // 256 * 256}


@pytest.mark.parametrize(
    ("model", "text", "out", "words", "message"),
    [
        ("a.gguf", "", "out.gguf", [], "text.txt is shorter than 256 tokens: give more, or shorter chunks (-c)"),
        ("a.gguf", "short", "out.gguf", ["-c", "8"], "text.txt is shorter than 8 tokens"),
        ("a.gguf", TEXT, "out.gguf", ["-c", "300"], "a state of 300 rows is too long: target supports 256 at most"),
        ("a.gguf", "short", "out.gguf", ["-c", "300"], "a state of 300 rows is too long"),
        ("a.gguf", TEXT, "no/out.gguf", [], "no/out.gguf cannot be written: give another --out"),
        ("a.gguf", TEXT, "a.gguf", [], "a.gguf is itself measured: give another --out"),
        ("a.gguf", TEXT, "text.txt", [], "text.txt is itself measured: give another --out"),
        ("a.gguf", TEXT, "out.gguf", ["--add", "a.gguf"], "is not an importance file: its general.type is"),
        ("a.gguf", TEXT, "out.gguf", ["--add", "no.gguf"], "the importance file no.gguf cannot be read"),
        ("a.gguf", TEXT, "out.gguf", ["-f", "no.txt"], "No such file or directory: no.txt"),
        ("other.gguf", TEXT, "out.gguf", [], "other.gguf: the architecture 'nosucharch' is none of "),
        ("demo", TEXT, "out.gguf", [], "demo is no GGUF file"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(
    model: str,
    text: str,
    out: str,
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write_file(Path("a.gguf"), byte_level())
    write_file(Path("other.gguf"), byte_level(), File(architecture="nosucharch"))
    Path("text.txt").write_text(text)
    before = {*tmp_path.rglob("*")}
    assert main(["imatrix", model, "-f", "text.txt", "-o", out, *words]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert "--runtime" not in error
    assert error.count("\n") == 1
    assert {*tmp_path.rglob("*")} == before
