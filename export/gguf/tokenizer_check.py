"""Checks that llama.cpp gives the same ids as the tokenizer, on texts of many kinds."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from edgedecode.errors import ExportError

from .llama_tokens import engine_installed, engine_tokens
from .vocabulary import Kind, Vocabulary

if TYPE_CHECKING:
    import tokenizers

PLAIN_TEXTS: tuple[str, ...] = (
    "",
    " ",
    "   leading, and trailing   ",
    "The quick brown fox jumps over the lazy dog.",
    "I'm sure they'll say WE'VE WON, it's what you'd expect; don't you?",
    "In 1984, 12345678 people paid $3.50 (or 1,234,567.89 €) for 0x1F and 6.02e23.",
    "def add(a, b):\n\tif a:\n        return a + b  # sum\n\n\n    return {'x': [1, 2], \"y\": None}\n",
    '<div class="box">&nbsp;&lt;b&gt;</div>\r\n<!-- a\r\n\r\nb -->',
    "https://example.org/a_b-c?q=1&r=%20#top user@example.org C:\\temp\\file.txt ~/.bashrc",
    "naïve café über Straße señor coöperate Øre œuvre łódź İstanbul",
    "Ελληνικά русский язык Հայերեն עברית العربية فارسی ქართული",
    "हिन्दी বাংলা தமிழ் ไทย ລາວ မြန်မာ ភាសាខ្មែរ አማርኛ",
    "你好，世界！今天天气怎么样？ 日本語のテキスト、カタカナ。 한국어 문장입니다.",
    "🦙 🦙🦙 👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 1️⃣ ☃️ 𝒳 𓂀 🇨🇭",
    "tabs\tand\t\ttabs,\n\nlines\n\n\n\nmore   \n   spaces \u00a0 \u2003 \u3000 end",
    "control \x01\x02\x1b[0m \x7f \u0085 zero\u200bwidth \u2060 \ufeff mark \ufffd",
    "a\u0301 e\u0302 n\u0303 combined; \ufb01 ligature ½ ² Ⅷ ① ｆｕｌｌ",
    "!!!??? ... --- ___ *** ### @@@ ((([[[{{{ }}}]]])) <<>> == != => -> :: ;; // /* */ \\n",
    "word" * 40 + " " * 40 + "1" * 40 + "." * 40,
)
_ADDED_TESTED = 12
"""Approximate number of added tokens that are tested inside texts."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The number of texts compared, and how many of them differ."""

    texts: int = 0
    differing: int = 0
    notes: tuple[str, ...] = ()

    @property
    def measured(self) -> dict[str, float]:
        return {"gguf_texts": float(self.texts), "gguf_texts_differing": float(self.differing)} if self.texts else {}


def check_reading(file: Path, inner: "tokenizers.Tokenizer", vocabulary: Vocabulary, *, whole: bool = False) -> Reading:
    """Compare llama.cpp's ids of many texts with the tokenizer's; `whole` as in `engine_tokens`.

    Raises ExportError if a text without special tokens differs. Without llama-cpp-python, returns only a note.
    """
    if not engine_installed():
        return Reading(notes=("llama.cpp's tokenization was not checked: pip install llama-cpp-python",))
    plain = [_normalized(text, vocabulary.normal_form) for text in PLAIN_TEXTS]
    if vocabulary.spares_spaces:
        plain = [text for text in plain if not text.startswith(" ")]
    marked = _marked_texts(vocabulary)
    ids, count = engine_tokens(file, [*plain, *marked], special=plain, whole=whole), len(plain)
    found = _differing(inner, plain, ids[:count], special=True)
    found += _differing(inner, plain, ids[count : 2 * count], special=False)
    if found:
        raise ExportError(f"{found[0]}: its {vocabulary.pre} differs from this tokenizer, leave gguf out of --formats")
    found = _differing(inner, marked, ids[2 * count :], special=False)
    note = f"llama.cpp tokenizes {len(found)} of {len(marked)} texts with special tokens differently; "
    return Reading(2 * len(plain) + len(marked), len(found), (note + found[0],) if found else ())


def compare_reading(file: Path, inner: "tokenizers.Tokenizer", *, normal_form: str) -> Reading:
    """Load a file with llama.cpp and compare its ids of plain texts with a tokenizer's; differences become a note.

    Raises ExportError if llama.cpp cannot load the file or crashes. Needs llama-cpp-python.
    """
    texts = [_normalized(text, normal_form) for text in PLAIN_TEXTS]
    found = _differing(inner, texts, engine_tokens(file, [], special=texts, whole=True), special=True)
    note = f"llama.cpp tokenizes {len(found)} of {len(texts)} texts differently from the tokenizer: "
    return Reading(len(texts), len(found), (note + found[0],) if found else ())


def _differing(
    inner: "tokenizers.Tokenizer", texts: Sequence[str], ids: Sequence[Sequence[int]], *, special: bool
) -> list[str]:
    """Describe each text that the two tokenize differently, with the first ids of both."""
    found = []
    for text, theirs in zip(texts, ids, strict=True):
        ours = inner.encode(text, add_special_tokens=special).ids
        if ours != list(theirs):
            found.append(f"llama.cpp tokenizes {text[:40]!r} as {list(theirs[:8])}…, the tokenizer as {ours[:8]}…")
    return found


def _normalized(text: str, form: str) -> str:
    return unicodedata.normalize(cast(Literal["NFC"], form), text) if form else text


def _marked_texts(vocabulary: Vocabulary) -> list[str]:
    """Return texts with added tokens between words, with and without spaces around them."""
    pairs = zip(vocabulary.tokens, vocabulary.kinds, strict=True)
    added = [token for token, kind in pairs if kind in (Kind.CONTROL, Kind.USER_DEFINED)]
    few = added[:: max(1, len(added) // _ADDED_TESTED)]
    return [text for token in few for text in (f"one{token}two", f"one {token} two\n")]
