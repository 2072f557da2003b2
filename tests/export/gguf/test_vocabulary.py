"""GGUF vocabularies: llama.cpp tokenizes like the tokenizer; unsupported tokenizers are refused."""

import json
from pathlib import Path

import gguf
import pytest
import tokenizers
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers, processors

from edgedecode.errors import ExportError
from edgedecode.export.gguf.llama_tokens import engine_tokens
from edgedecode.export.gguf.pretokenizers import KNOWN
from edgedecode.export.gguf.specials import Specials, file_name, read_specials, write_vocabulary
from edgedecode.export.gguf.tokenizer_check import check_reading
from edgedecode.export.gguf.vocabulary import Kind, Vocabulary, read_vocabulary
from edgedecode.pack.manifest import Generation
from tests.export.tiny import TinyModel, write_model
from tests.shared_paths import SHARED
from tests.small_tokenizers import byte_fallback, byte_level

from .writing import export_gguf, needs_engine, value_of

pytestmark = pytest.mark.export

TOKENIZERS = SHARED / "tokenizers"
GOLDEN = TOKENIZERS / "golden"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")


def byte_level_with(*steps: pre_tokenizers.PreTokenizer, ignore_merges: bool = False) -> tokenizers.Tokenizer:
    """Return the byte-level tokenizer with these pre-tokenizers."""
    inner = byte_level()
    state = json.loads(inner.to_str())
    state["model"]["ignore_merges"] = ignore_merges
    inner = tokenizers.Tokenizer.from_str(json.dumps(state))
    inner.pre_tokenizer = pre_tokenizers.Sequence(list(steps)) if len(steps) > 1 else steps[0]
    return inner


def regex(pattern: str) -> tuple[pre_tokenizers.PreTokenizer, pre_tokenizers.PreTokenizer]:
    return (
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    )


SPLITS = {
    "gpt-2": byte_level_with(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "smollm": byte_level_with(pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "qwen2": byte_level_with(*regex(QWEN2)),
    "dbrx": byte_level_with(*regex(LLAMA3)),
    "llama-bpe": byte_level_with(*regex(LLAMA3), ignore_merges=True),
}


def vocabulary_file(folder: Path, inner: tokenizers.Tokenizer, *, name: str = "tiny") -> tuple[Path, Vocabulary]:
    """Write a GGUF file with a vocabulary and no tensors."""
    vocabulary = read_vocabulary(inner, rows=inner.get_vocab_size() + 20, name=name)
    specials = read_specials(inner, Generation(end_token_ids=()), name=name)
    writer = gguf.GGUFWriter(None, "llama")
    writer.add_name(file_name(name, inner))
    write_vocabulary(writer, vocabulary, specials, chat_template="{{ messages }}")
    path = folder / "vocabulary.gguf"
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    return path, vocabulary


@pytest.mark.parametrize("name", SPLITS)
@needs_engine
def test_vocabulary_pre_tokenizers_match_llama_cpp(name: str, tmp_path: Path) -> None:
    path, vocabulary = vocabulary_file(tmp_path, SPLITS[name])
    assert vocabulary.pre == name
    reading = check_reading(path, SPLITS[name], vocabulary)
    assert reading.texts > 20
    assert reading.differing == 0


@pytest.mark.parametrize(("folder", "pre"), [("phi3", "default"), ("qwen2.5", "qwen2"), ("smollm2", "smollm")])
@needs_engine
def test_vocabulary_of_real_tokenizers_matches_llama_cpp(folder: str, pre: str, tmp_path: Path) -> None:
    file = TOKENIZERS / folder / "tokenizer.json"
    if not file.is_file():
        pytest.skip("the shared tokenizers are not here")
    inner = tokenizers.Tokenizer.from_file(str(file))
    path, vocabulary = vocabulary_file(tmp_path, inner, name=folder)
    assert vocabulary.pre == pre
    assert check_reading(path, inner, vocabulary).differing == 0


@pytest.mark.parametrize(("folder", "golden"), [("phi3", "phi-3"), ("qwen2.5", "qwen2")])
@needs_engine
def test_vocabulary_gives_llama_cpps_golden_ids(folder: str, golden: str, tmp_path: Path) -> None:
    """On llama.cpp's test texts, our vocabulary gives the ids that llama.cpp ships for the original."""
    if not (GOLDEN / f"ggml-vocab-{golden}.gguf.inp").is_file():
        pytest.skip("the golden files are not here")
    texts, wanted = golden_ids(golden)
    inner = tokenizers.Tokenizer.from_file(str(TOKENIZERS / folder / "tokenizer.json"))
    path, _ = vocabulary_file(tmp_path, inner, name=folder)
    assert len(wanted) > 40
    assert engine_tokens(path, texts) == wanted


@needs_engine
def test_vocabulary_of_gpt2_gives_llama_cpps_golden_ids(tmp_path: Path) -> None:
    """GPT-2's tokenizer is built from llama.cpp's vocabulary file and written again."""
    shipped = GOLDEN / "ggml-vocab-gpt-2.gguf"
    if not shipped.is_file():
        pytest.skip("the golden files are not here")
    tokens, merges = (value_of(shipped, f"tokenizer.ggml.{key}") for key in ("tokens", "merges"))
    assert isinstance(tokens, list)
    assert isinstance(merges, list)
    pairs = [tuple(merge.split(" ")) for merge in merges]
    inner = tokenizers.Tokenizer(models.BPE({token: id for id, token in enumerate(tokens)}, pairs))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.add_special_tokens(["<|endoftext|>"])
    path, vocabulary = vocabulary_file(tmp_path, inner)
    assert vocabulary.pre == "gpt-2"
    texts, wanted = golden_ids("gpt-2")
    assert engine_tokens(path, texts) == wanted
    assert check_reading(path, inner, vocabulary).differing == 0


def golden_ids(name: str) -> tuple[list[str], list[list[int]]]:
    """Return llama.cpp's test texts and their ids."""
    texts = (GOLDEN / f"ggml-vocab-{name}.gguf.inp").read_text(encoding="utf-8").split("\n__ggml_vocab_test__\n")
    lines = (GOLDEN / f"ggml-vocab-{name}.gguf.out").read_text(encoding="utf-8").splitlines()
    return texts[: len(lines)], [[int(id) for id in line.split()] for line in lines]


def test_vocabulary_scores_match_llama_cpps_phi3_file(tmp_path: Path) -> None:
    """Tokens and merge order are those of llama.cpp's vocabulary file for Phi-3."""
    shipped = GOLDEN / "ggml-vocab-phi-3.gguf"
    if not shipped.is_file():
        pytest.skip("the golden files are not here")
    inner = tokenizers.Tokenizer.from_file(str(TOKENIZERS / "phi3" / "tokenizer.json"))
    vocabulary = read_vocabulary(inner, rows=32064, name="phi3")
    tokens = value_of(shipped, "tokenizer.ggml.tokens")
    assert isinstance(tokens, list)
    assert tokens[:32000] == list(vocabulary.tokens[:32000])
    theirs = value_of(shipped, "tokenizer.ggml.scores")
    assert isinstance(theirs, list)
    unmerged = min(vocabulary.scores)  # single characters are not the result of a merge
    merged = [id for id in range(300, 32000) if vocabulary.scores[id] > unmerged and theirs[id] > -1e9]
    assert len(merged) > 20000
    by_ours = sorted(merged, key=lambda id: -vocabulary.scores[id])
    assert [theirs[id] for id in by_ours] == sorted((theirs[id] for id in by_ours), reverse=True)


@pytest.mark.parametrize(
    ("normalizer", "splits", "prefix"),
    [
        (normalizers.Replace(" ", "▁"), pre_tokenizers.Split(" ", "merged_with_previous"), False),  # Gemma's
        (None, pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False), True),  # Mistral's
    ],
)
@needs_engine
def test_vocabulary_spaces_of_gemma_and_mistral(
    normalizer: object, splits: object, prefix: bool, tmp_path: Path
) -> None:
    inner = byte_fallback()
    state = json.loads(inner.to_str()) | {"normalizer": None}
    inner = tokenizers.Tokenizer.from_str(json.dumps(state))
    if normalizer is not None:
        inner.normalizer = normalizer
    inner.pre_tokenizer = splits
    inner.add_tokens([AddedToken("▁▁", normalized=False), AddedToken("<br>", normalized=False)])
    path, vocabulary = vocabulary_file(tmp_path, inner)
    assert vocabulary.space_prefix is prefix
    reading = check_reading(path, inner, vocabulary)
    assert bool(reading.notes) is bool(vocabulary.notes) is prefix


@needs_engine
def test_vocabulary_with_byte_fallback(tmp_path: Path) -> None:
    inner = byte_fallback()
    path, vocabulary = vocabulary_file(tmp_path, inner)
    assert vocabulary.model == "llama"
    assert vocabulary.space_prefix
    assert vocabulary.kinds[2:258] == (Kind.BYTE,) * 256
    assert vocabulary.kinds[:2] == (Kind.CONTROL,) * 2
    assert vocabulary.kinds[-1] is Kind.UNUSED
    assert check_reading(path, inner, vocabulary).differing == 0


def test_vocabulary_kinds_of_tokens() -> None:
    vocabulary = read_vocabulary(byte_level(), rows=330, name="tiny")
    named = dict(zip(vocabulary.tokens, vocabulary.kinds, strict=True))
    assert named["<|end|>"] is Kind.CONTROL
    assert named["<tool>"] is named["two é words"] is Kind.USER_DEFINED
    assert named["[PAD329]"] is Kind.UNUSED
    assert len(vocabulary.tokens) == 330


def test_read_specials_finds_the_special_ids() -> None:
    inner = byte_level()
    end, tool = inner.token_to_id("<|end|>"), inner.token_to_id("<tool>")
    assert end is not None
    assert tool is not None
    generation = Generation(end_token_ids=(tool, end), eos_token="<|end|>")
    found = read_specials(inner, generation, name="tiny", beginning=7)
    assert found == Specials(7, (end, tool), None, None, add_beginning=False, add_end=False)
    inner.post_processor = processors.TemplateProcessing(single="<tool> $A", special_tokens=[("<tool>", tool)])
    found = read_specials(inner, generation, name="tiny", beginning=7)
    assert (found.beginning, found.add_beginning, found.add_end) == (tool, True, False)
    none = read_specials(inner, Generation(end_token_ids=()), name="tiny")
    assert "has no token that ends an answer" in none.notes[0]
    many = Generation(end_token_ids=(1, 2, 3, 4), eos_token="<|end|>")
    notes = read_specials(inner, many, name="tiny").notes
    assert "3, 4 are left out" in notes[0]


@needs_engine
def test_vocabulary_adds_the_tokenizers_beginning_token(tmp_path: Path) -> None:
    inner = byte_level()
    tool = inner.token_to_id("<tool>")
    assert tool is not None
    inner.post_processor = processors.TemplateProcessing(single="<tool> $A", special_tokens=[("<tool>", tool)])
    path, _ = vocabulary_file(tmp_path, inner)
    assert engine_tokens(path, [], special=["the fox"]) == [inner.encode("the fox").ids]


def test_read_vocabulary_refuses_an_unknown_pre_tokenizer() -> None:
    inner = byte_level_with(*regex(r"\p{L}+|\s+"))
    with pytest.raises(ExportError, match=r"a pre-tokenizer that llama\.cpp lacks") as refused:
        read_vocabulary(inner, rows=400, name="tiny")
    assert all(name in str(refused.value) for name in KNOWN)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda inner: setattr(inner, "normalizer", normalizers.Lowercase()), "changes texts by Lowercase"),
        (
            lambda inner: setattr(inner, "pre_tokenizer", pre_tokenizers.ByteLevel()),
            "a pre-tokenizer that llama.cpp lacks",
        ),
        (lambda inner: setattr(inner, "model", models.WordPiece({"a": 0}, unk_token="a")), "of type WordPiece"),
    ],
)
def test_read_vocabulary_refuses_unsupported_tokenizers(change: object, message: str) -> None:
    inner = byte_level()
    change(inner)  # type: ignore[operator]
    with pytest.raises(ExportError, match=message):
        read_vocabulary(inner, rows=400, name="tiny")


@needs_engine
def test_check_reading_refuses_a_wrong_pre_tokenizer(tmp_path: Path) -> None:
    """A tokenizer without splits, under the name of one with splits."""
    path, vocabulary = vocabulary_file(tmp_path, SPLITS["gpt-2"])
    with pytest.raises(ExportError, match=r"llama.cpp tokenizes '.*the tokenizer as"):
        check_reading(path, byte_level_with(pre_tokenizers.ByteLevel(use_regex=False)), vocabulary)


def test_gguf_export_without_llama_cpp_notes_the_missing_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgedecode.export.gguf.tokenizer_check.engine_installed", lambda: False)
    entry = export_gguf(write_model(tmp_path / "model", TinyModel()), tmp_path / "pack").models["target"]
    assert "was not checked: pip install llama-cpp-python" in entry.notes[-1]
    assert "gguf_texts" not in entry.parity


def test_file_name_contains_phi3_only_for_phi3_tokenizers() -> None:
    """If llama.cpp finds Phi-3 in the name, it requires Phi-3's tokens and cannot read a file without them."""
    assert file_name("microsoft/Phi-3-mini", byte_level()) == "microsoft/Phi 3-mini"
    assert file_name("tiny", byte_level()) == "tiny"
    inner = byte_fallback()
    inner.add_special_tokens([AddedToken(token, rstrip=True) for token in ("</s>", "<|endoftext|>", "<|user|>")])
    assert file_name("mine", inner) == "mine (Phi-3)"
    assert file_name("phi3-mine", inner) == "phi3-mine"
