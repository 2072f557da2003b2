"""Streamed text equals `decode` for any ids split anywhere, and never ends within a character."""

import codecs
import random
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models

from edgedecode.errors import InputError
from edgedecode.library.names import BUNDLED_PACK
from edgedecode.text.token_text import Layout
from edgedecode.text.tokenizer import Tokenizer
from tests.shared_paths import SHARED, needs_shared
from tests.small_tokenizers import byte_fallback, byte_level

WORDS = {
    word: id for id, word in enumerate(["[UNK]", "hello", "##ing", ".", "do", "n't", "▁", "▁the", "a", "<pad>", ""])
}


def words(decoder: decoders.Decoder | None) -> tokenizers.Tokenizer:
    inner = tokenizers.Tokenizer(models.WordPiece(WORDS, unk_token="[UNK]"))
    if decoder is not None:
        inner.decoder = decoder
    return inner


BUILDERS: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    "byte level": byte_level,
    "byte fallback": byte_fallback,
    "word piece": lambda: words(decoders.WordPiece(cleanup=True)),
    "metaspace": lambda: words(decoders.Metaspace()),
    "metaspace, never": lambda: words(decoders.Metaspace(prepend_scheme="never")),
    "no decoder": lambda: words(None),
    "strips the anchor": lambda: words(decoders.Sequence([decoders.Fuse(), decoders.Strip("a", 2, 0)])),
    "replaces across tokens": lambda: words(decoders.Sequence([decoders.Fuse(), decoders.Replace("hello▁", "x")])),
    "ctc": lambda: words(decoders.CTC()),
    "suffix": lambda: words(decoders.BPEDecoder("o")),
}
REAL_FILES = [
    pytest.param(BUNDLED_PACK, id="bundled"),
    *(
        pytest.param(SHARED / "tokenizers" / name, marks=[needs_shared, pytest.mark.slow], id=name)
        for name in ("smollm2", "qwen2.5", "phi3")
    ),
]


@cache
def built(name: str) -> Tokenizer:
    return Tokenizer(BUILDERS[name]())


def stream(tokenizer: Tokenizer, pushes: Sequence[Sequence[int]], *, skip_special: bool) -> list[str]:
    detokenizer = tokenizer.detokenizer(skip_special=skip_special)
    return [*(detokenizer.push(ids) for ids in pushes), detokenizer.flush()]


def check(tokenizer: Tokenizer, pushes: Sequence[Sequence[int]]) -> None:
    ids = [id for push in pushes for id in push]
    for skip_special in (True, False):
        texts = stream(tokenizer, pushes, skip_special=skip_special)
        assert "".join(texts) == whole_characters(tokenizer, ids, skip_special=skip_special)


def whole_characters(tokenizer: Tokenizer, ids: Sequence[int], *, skip_special: bool) -> str:
    """Return the text of ids without a character that they leave incomplete."""
    known = [id for id in ids if tokenizer.token_text(id) is not None]
    said = [id for id in known if not (skip_special and id in tokenizer.special_ids)]
    last = b"".join(b"." if id in tokenizer.special_ids else tokenizer.token_bytes(id) for id in said[-4:])
    begun = next((size for size in (1, 2, 3) if is_begun(last[-size:])), 0)
    layout = tokenizer._pieces.layout
    if not begun or layout is Layout.WHOLE:
        return tokenizer.decode(ids, skip_special=skip_special)
    if layout is Layout.BYTES:
        return tokenizer.decode(ids, skip_special=skip_special).removesuffix("\ufffd")
    return tokenizer.decode(said[: len(said) - begun], skip_special=skip_special)


def is_begun(data: bytes) -> bool:
    """Return whether bytes are the beginning of one character, and not all of it."""
    decoder = codecs.getincrementaldecoder("utf-8")("strict")
    try:
        return decoder.decode(data) == "" and data != b""
    except UnicodeDecodeError:
        return False


@pytest.mark.parametrize("name", BUILDERS)
@settings(max_examples=25)
@given(data=st.data())
def test_stream_equals_decode(name: str, data: st.DataObject) -> None:
    tokenizer = built(name)
    ids = st.integers(0, tokenizer.size + 1)  # one past the end: a model may have ids that its tokenizer lacks
    check(tokenizer, data.draw(st.lists(st.lists(ids, max_size=4), max_size=12)))


@pytest.mark.parametrize("name", BUILDERS)
@settings(max_examples=25)
@given(data=st.data())
def test_a_preview_is_what_a_push_gives_and_changes_nothing(name: str, data: st.DataObject) -> None:
    tokenizer = built(name)
    ids = st.lists(st.integers(0, tokenizer.size - 1), max_size=6)
    first, tried, second = (data.draw(ids) for _ in range(3))
    plain, previewed = tokenizer.detokenizer(), tokenizer.detokenizer()
    assert plain.push(first) == previewed.push(first)
    seen = previewed.preview(tried)
    assert plain.push(second) + plain.flush() == previewed.push(second) + previewed.flush()
    plain.push(first)
    assert seen == plain.push(tried)


@pytest.mark.parametrize("folder", REAL_FILES)
def test_stream_equals_decode_on_hostile_ids(folder: Path) -> None:
    tokenizer, rng = Tokenizer.from_file(folder / "tokenizer.json"), random.Random(7)
    spelled = {id: tokenizer.token_text(id) or "" for id in range(tokenizer.size)}
    # Bytes, fragments of characters, spaces, punctuation and special tokens break streams most easily.
    nasty = [id for id, token in spelled.items() if len(token) <= 2 or token.startswith("<") or "\ufffd" in token]
    broken = 0
    for _ in range(80):
        ids = [rng.choice(nasty) if rng.random() < 0.8 else rng.randrange(tokenizer.size) for _ in range(12)]
        cut = rng.randrange(12)
        check(tokenizer, [[id] for id in ids[:cut]] + [ids[cut:]])
        broken += "\ufffd" in tokenizer.decode(ids)
    assert broken > 10


@pytest.mark.parametrize("name", ["byte level", "byte fallback"])
@settings(max_examples=25)
@given(text=st.text(max_size=12))
def test_stream_never_shows_half_a_character(name: str, text: str) -> None:
    tokenizer = built(name)
    text = text.replace("\ufffd", "")
    texts = stream(tokenizer, [[id] for id in tokenizer.encode(text)], skip_special=True)
    assert "".join(texts) == text
    assert texts[-1] == "" or name == "byte fallback"  # a complete byte run is certain only at the end


def test_stream_holds_a_byte_run_back_until_it_is_complete() -> None:
    tokenizer = built("byte fallback")
    pieces = ["<0xC3>", "<0xA9>", "<0xFF>", "a", "<0xC3>", "<0xA9>", "b"]
    ids = [tokenizer.token_to_id(piece) for piece in pieces]
    texts = stream(tokenizer, [[id] for id in ids if id is not None], skip_special=True)
    assert texts == ["", "", "", "\ufffd\ufffd\ufffda", "", "", "éb", ""]


def test_token_text_layout_is_that_of_the_decoder() -> None:
    layouts = {name: built(name)._pieces.layout for name in BUILDERS}
    assert layouts["byte level"] is Layout.BYTES
    assert layouts["byte fallback"] is Layout.FALLBACK
    streamed = {"word piece", "metaspace", "metaspace, never", "no decoder"}
    assert {name for name, layout in layouts.items() if layout is Layout.TEXTS} == streamed
    assert list(layouts.values()).count(Layout.WHOLE) == 4


@pytest.mark.parametrize("name", ["byte level", "byte fallback"])
@pytest.mark.parametrize("id", [-1, 2**40, "a"])
def test_push_refuses_invalid_ids(name: str, id: int) -> None:
    with pytest.raises(InputError, match="not a token id"):
        built(name).detokenizer().push([id])


@pytest.mark.parametrize("name", ["byte level", "byte fallback", "metaspace, never"])
def test_token_bytes_join_to_the_text_after_other_tokens(name: str) -> None:
    tokenizer = built(name)
    text = "hello the naïve 你好 🦙" if name.startswith("byte") else "hello▁the"
    ids = tokenizer.encode(f"a {text}") if name.startswith("byte") else [WORDS["a"], WORDS["hello"], WORDS["▁the"]]
    joined = b"".join(map(tokenizer.token_bytes, ids)).decode()
    assert joined.lstrip() == tokenizer.decode(ids)
    assert all(tokenizer.token_bytes(id) == b"" for id in [*tokenizer.special_ids, tokenizer.size + 5])
