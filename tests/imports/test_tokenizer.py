"""Tokenizers built from a GGUF file's vocabulary give the ids of the original tokenizer."""

import json
from dataclasses import replace
from pathlib import Path

import gguf
import pytest
import tokenizers
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers, processors

from edgedecode.errors import ExportError
from edgedecode.export.gguf.pretokenizers import KNOWN, splits_of
from edgedecode.export.gguf.specials import Specials
from edgedecode.export.gguf.tokenizer_check import PLAIN_TEXTS
from edgedecode.export.gguf.vocabulary import Kind, Vocabulary
from edgedecode.export.imports.gguf_tokenizer import build_tokenizer
from edgedecode.export.imports.gguf_vocabulary import first_difference, read_specials, read_vocabulary, used_size
from edgedecode.gguf.tokenizer_kinds import PRETOKENIZERS
from edgedecode.text.tokenizer import Tokenizer
from tests.shared_paths import SHARED
from tests.small_tokenizers import byte_fallback, byte_level

from .files import File, add_vocabulary, fields_of, finished

FOLDER = SHARED / "tokenizers"
GOLDEN = FOLDER / "golden"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


def regex(pattern: str) -> pre_tokenizers.PreTokenizer:
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), bytes_only])


def with_model_options(inner: tokenizers.Tokenizer, **model: object) -> tokenizers.Tokenizer:
    state = json.loads(inner.to_str())
    state["model"] |= model
    return tokenizers.Tokenizer.from_str(json.dumps(state))


def family(name: str) -> tokenizers.Tokenizer:
    """Return a small tokenizer of the family."""
    if name == "llama":
        return byte_fallback()
    if name == "gemma":  # spaces become "▁", none is prepended, and runs of them are separate tokens
        inner = byte_fallback()
        inner.normalizer = normalizers.Replace(" ", "▁")
        inner.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
        state = json.loads(inner.to_str())
        state["decoder"]["decoders"].pop()
        inner = tokenizers.Tokenizer.from_str(json.dumps(state))
        inner.add_tokens([AddedToken("▁▁", normalized=False), AddedToken("<br>", normalized=False)])
        return inner
    inner = with_model_options(byte_level(), ignore_merges=name == "llama-bpe")
    inner.pre_tokenizer = {
        "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
        "smollm": pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        ),
        "qwen2": regex(LLAMA3.replace("{1,3}", "")),
        "dbrx": regex(LLAMA3),
        "llama-bpe": regex(LLAMA3),
    }[name]
    if name == "qwen2":
        inner.normalizer = normalizers.NFC()
    return inner


def round_trip(path: Path, inner: tokenizers.Tokenizer, file: File = File()) -> tokenizers.Tokenizer:  # noqa: B008
    vocabulary, specials = written(path, inner, file)
    return build_tokenizer(vocabulary, specials, strips=False, name="tiny")


def written(path: Path, inner: tokenizers.Tokenizer, file: File = File()) -> tuple[Vocabulary, Specials]:  # noqa: B008
    """Write a vocabulary to a file and read it back."""
    writer = gguf.GGUFWriter(None, "llama")
    add_vocabulary(writer, inner, replace(file, rows=inner.get_vocab_size() + 20))
    metadata = fields_of(finished(writer, path))
    vocabulary = read_vocabulary(metadata, name="tiny")
    return vocabulary, read_specials(metadata, vocabulary, name="tiny")


def differing(one: tokenizers.Tokenizer, other: tokenizers.Tokenizer, texts: tuple[str, ...]) -> list[str]:
    """Return the texts that two tokenizers encode or decode differently."""

    def encoded(inner: tokenizers.Tokenizer, text: str) -> tuple[list[int], list[int], str]:
        ids = inner.encode(text).ids
        return ids, inner.encode(text, add_special_tokens=False).ids, inner.decode(ids)

    return [text for text in texts if encoded(one, text) != encoded(other, text)]


def with_added_tokens(inner: tokenizers.Tokenizer) -> tuple[str, ...]:
    """Return texts with added tokens between words."""
    added = [token.content for token in inner.get_added_tokens_decoder().values()]
    return tuple(f"a {token} b{token}c\n{token}" for token in added[:40])


@pytest.mark.parametrize("name", ["gpt-2", "smollm", "qwen2", "dbrx", "llama-bpe", "llama", "gemma"])
def test_build_tokenizer_of_small_families(name: str, tmp_path: Path) -> None:
    inner = family(name)
    built = round_trip(tmp_path / "v.gguf", inner)
    assert differing(built, inner, PLAIN_TEXTS) == []
    assert built.get_vocab_size() == inner.get_vocab_size()
    if name not in ("llama", "gemma"):
        assert differing(built, inner, with_added_tokens(inner)) == []
    if name not in ("llama", "gemma", "qwen2"):  # GGUF does not store which added tokens match normalized text
        assert Tokenizer(built).first_difference(Tokenizer(inner)) is None


@pytest.mark.parametrize("name", ["phi3", "qwen2.5", "smollm2"])
def test_build_tokenizer_of_real_tokenizers(name: str, tmp_path: Path) -> None:
    """Ids agree with and without added tokens in the text; tokens, merges and rules are the original's."""
    file = FOLDER / name / "tokenizer.json"
    if not file.is_file():
        pytest.skip("the shared tokenizers are not here")
    inner = tokenizers.Tokenizer.from_file(str(file))
    vocabulary, specials = written(tmp_path / "v.gguf", inner)
    built = build_tokenizer(vocabulary, specials, strips=name == "phi3", name=name)
    assert differing(built, inner, PLAIN_TEXTS) == []
    if name != "phi3":  # Phi-3 differs in one flag of one token
        assert Tokenizer(built).first_difference(Tokenizer(inner)) is None
        assert differing(built, inner, with_added_tokens(inner)) == []


@pytest.mark.parametrize(("golden", "strips"), [("gpt-2", False), ("phi-3", True)])
def test_build_tokenizer_of_llama_cpps_vocabularies(golden: str, strips: bool) -> None:
    """llama.cpp's vocabulary files give the ids that it ships for its test texts."""
    file = GOLDEN / f"ggml-vocab-{golden}.gguf"
    if not file.is_file():
        pytest.skip("the golden files are not here")
    metadata = fields_of(file)
    vocabulary = read_vocabulary(metadata, name=golden)
    specials = read_specials(metadata, vocabulary, name=golden)
    built = build_tokenizer(vocabulary, specials, strips=strips, name=golden)
    texts = Path(f"{file}.inp").read_text(encoding="utf-8").split("\n__ggml_vocab_test__\n")
    wanted = [[int(id) for id in line.split()] for line in Path(f"{file}.out").read_text().splitlines()]
    assert len(wanted) > 40
    assert [built.encode(text, add_special_tokens=False).ids for text in texts[: len(wanted)]] == wanted


def test_build_tokenizer_keeps_added_tokens_and_special_ids(tmp_path: Path) -> None:
    inner = byte_level()
    end = inner.token_to_id("<|end|>")
    assert end is not None
    inner.post_processor = processors.TemplateProcessing(single="<|end|> $A", special_tokens=[("<|end|>", end)])
    built = round_trip(tmp_path / "v.gguf", inner)
    assert built.encode("the fox").ids == inner.encode("the fox").ids
    assert built.encode("the fox").ids[0] == end
    assert built.encode("a", "b").ids == [end, *built.encode("a").ids[1:], end, *built.encode("b").ids[1:]]
    added = {token.content: token.special for token in built.get_added_tokens_decoder().values()}
    assert added == {"<|end|>": True, "<tool>": False, "two é words": False}


def test_read_specials_finds_end_tokens_by_their_text(tmp_path: Path) -> None:
    inner = byte_level()
    inner.add_special_tokens(["<end_of_turn>"])
    vocabulary, specials = written(tmp_path / "v.gguf", inner)
    assert specials.ends == (inner.token_to_id("<|end|>"), inner.token_to_id("<end_of_turn>"))
    assert vocabulary.kinds[used_size(vocabulary) :] == (Kind.UNUSED,) * 20


def test_splits_of_every_known_name() -> None:
    assert {splits.name for name in KNOWN if (splits := splits_of(name))} == set(KNOWN)
    assert splits_of("llama3") == replace(splits_of("llama-bpe"))  # type: ignore[type-var]
    assert all(splits_of(other) is not None for others in PRETOKENIZERS.values() for other in others)
    assert splits_of("default") is None
    assert {*PRETOKENIZERS} == {*KNOWN}


def test_splits_of_qwen35_are_those_of_transformers() -> None:
    module = pytest.importorskip("transformers.models.qwen3_5.tokenization_qwen3_5", reason="transformers is missing")
    splits = splits_of("qwen35")
    assert splits is not None
    assert splits.steps[0]["pattern"] == {"Regex": module.PRETOKENIZE_REGEX}


@pytest.mark.parametrize("pre", [*KNOWN, *(other for others in PRETOKENIZERS.values() for other in others)])
def test_build_tokenizer_splits_like_llama_cpp_for_every_name(pre: str, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    from edgedecode.export.gguf.tokenizer_check import compare_reading

    from .files import write_file

    path = write_file(tmp_path / "v.gguf", family("gpt-2"), File(pre=pre))
    metadata = fields_of(path)
    vocabulary = read_vocabulary(metadata, name="tiny")
    assert vocabulary.pre == pre
    specials = replace(read_specials(metadata, vocabulary, name="tiny"), add_beginning=False)
    built = build_tokenizer(vocabulary, specials, strips=False, name="tiny")
    reading = compare_reading(path, built, normal_form="NFC" if pre in ("qwen2", "qwen35") else "")
    assert (reading.texts, reading.differing) == (len(PLAIN_TEXTS), 0), reading.notes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pre": "no-such"}, "has the pre-tokenizer 'no-such'"),
        ({"pre": ""}, "has the pre-tokenizer 'none'"),
        ({"model": "t5"}, "of the kind 't5'"),
        ({"model": "none"}, "of the kind 'none'"),
        ({"model": "llama"}, "has no token scores"),
        ({"merges": ("zz zzz",)}, "inconsistent tokens and merges"),
    ],
)
def test_build_tokenizer_refuses_unsupported_vocabularies(change: dict[str, str], message: str, tmp_path: Path) -> None:
    vocabulary, specials = written(tmp_path / "v.gguf", byte_level())
    with pytest.raises(ExportError, match=message) as refused:
        build_tokenizer(replace(vocabulary, **change), specials, strips=False, name="tiny")  # type: ignore[arg-type]
    assert "\n" not in str(refused.value)
    assert "tokenizer.json next to it" in str(refused.value)


def test_first_difference_names_the_difference(tmp_path: Path) -> None:
    one, _ = written(tmp_path / "v.gguf", byte_level())
    assert first_difference(one, replace(one, tokens=one.tokens[:-5], kinds=one.kinds[:-5])) is None  # padding
    other = replace(one, tokens=("#other", *one.tokens[1:]))
    assert first_difference(one, other) == "id 0 is '!' in one and '#other' in the other"
    short = replace(one, tokens=one.tokens[:322], kinds=one.kinds[:322])
    assert first_difference(one, short) == "id 322 is 'two é words' in one and unused in the other"
    assert "merge 0 is" in str(first_difference(one, replace(one, merges=one.merges[1:])))
    assert "gpt-2 and the other gpt2 qwen2" in str(first_difference(one, replace(one, pre="qwen2")))


def test_first_difference_ignores_an_unused_pre_tokenizer(tmp_path: Path) -> None:
    """llama.cpp reads `tokenizer.ggml.pre` only for byte-level BPE; if it is absent, it uses "default"."""
    bytes_, _ = written(tmp_path / "v.gguf", byte_level())
    scored = replace(bytes_, model="llama")
    for one in (bytes_, scored):
        absent, default = (replace(one, pre=pre) for pre in ("", "default"))
        assert first_difference(absent, default) is first_difference(default, absent) is None
    assert first_difference(scored, replace(scored, pre="qwen2")) is None
    assert "gpt2 default" in str(first_difference(bytes_, replace(bytes_, pre="default")))


def test_read_vocabulary_refuses_duplicate_tokens_and_wrong_lengths(tmp_path: Path) -> None:
    inner = tokenizers.Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    writer = gguf.GGUFWriter(None, "llama")
    writer.add_token_list(["a", "b", "a"])
    with pytest.raises(ExportError, match="the token 'a' twice"):
        read_vocabulary(fields_of(finished(writer, tmp_path / "twice.gguf")), name="tiny")
    writer = gguf.GGUFWriter(None, "llama")
    writer.add_token_list(["a", "b"])
    writer.add_token_types([1])
    with pytest.raises(ExportError, match="1 types for 2 tokens"):
        read_vocabulary(fields_of(finished(writer, tmp_path / "short.gguf")), name="tiny")
    writer = gguf.GGUFWriter(None, "llama")
    writer.add_token_list(["a", "b"])
    writer.add_eos_token_id(7)
    metadata = fields_of(finished(writer, tmp_path / "end.gguf"))
    with pytest.raises(ExportError, match="eos_token_id 7, but 2 tokens"):
        read_specials(metadata, read_vocabulary(metadata, name="tiny"), name="tiny")
