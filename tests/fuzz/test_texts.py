"""Hostile tokenizer files and chat templates with valid digests; both are small programs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.small_tokenizers import byte_level

from .hostile import SCALARS, TEXTS, Edit, Repeated, Splice, edited, edits
from .packs import answer_words, base_manifest, write_pack
from .running import BUDGET_NBYTES, Fuzz, fuzzed

Json = Mapping[str, Any]
HELLO = Repeated("hello world", 1)
PROMPTS = st.builds(
    Repeated, st.sampled_from(["hello world", "a", "a!", "~é", "\n", "🦙", " "]), st.sampled_from([1, 40, 3000])
)


def _replace(pattern: Any, content: str) -> Json:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _sequence(kind: str, steps: list[Json]) -> Json:
    return {"type": "Sequence", kind: steps}


def _split(pattern: str) -> Json:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


PATTERNS = ["(a+)+$", "(", "a{1000}{1000}", "(?=", "", ".*.*.*x", r"\p{L}+|\p{N}{1,3}", r"(\w+\s*)+!"]
UNTYPED: list[Json] = [
    {"pattern": {"String": "l"}, "content": "l" * 16},
    {"type": "Other", "pattern": {"String": "l"}, "content": "l" * 16},
    {"normalizers": [{"pattern": {"String": "l"}, "content": "l" * 16}] * 5},
]
"""Steps whose type the library infers from the other fields."""
NORMALIZERS = st.one_of(
    st.none(),
    st.sampled_from(
        [
            {"type": "Precompiled", "precompiled_charsmap": ""},
            {"type": "Precompiled", "precompiled_charsmap": "AAAA"},
            {"type": "Precompiled", "precompiled_charsmap": "/////wAAAAAAAA=="},
            {"type": "Prepend", "prepend": "x" * 100_000},
            {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None},
            {"type": "Lowercase"},
            {"type": "NFKD"},
            {"type": "Unknown"},
            _replace({"String": ""}, "x"),
            _replace({"String": "l"}, "l" * 16),
            _sequence("normalizers", [_replace({"String": "l"}, "l" * 16)] * 4),
            _sequence("normalizers", [_replace({"String": "l"}, "l" * 16)] * 6),
            _sequence("normalizers", []),
            *UNTYPED,
            _sequence("normalizers", UNTYPED * 5),
            [UNTYPED],
            "NFC",
        ]
    ),
    st.sampled_from(PATTERNS).map(lambda pattern: _replace({"Regex": pattern}, "y")),
)
PRE_TOKENIZERS = st.one_of(
    st.none(),
    st.sampled_from(
        [
            {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": False},
            {"type": "Metaspace", "replacement": "▁▁", "prepend_scheme": "always"},
            {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
            {"type": "FixedLength", "length": 0},
            {"type": "Digits", "individual_digits": True},
            {"type": "Whitespace"},
            {"replacement": "▁", "prepend_scheme": "always", "split": True},
            _sequence("pretokenizers", []),
        ]
    ),
    st.sampled_from(PATTERNS).map(_split),
)
DECODERS = st.sampled_from(
    [
        None,
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        {"type": "Strip", "content": " ", "start": 10**6, "stop": 10**6},
        {"type": "WordPiece", "prefix": "", "cleanup": True},
        {"type": "CTC", "pad_token": "", "word_delimiter_token": "", "cleanup": True},
        {"type": "BPEDecoder", "suffix": ""},
        _sequence("decoders", UNTYPED[:1] * 5),
        _sequence("decoders", [{"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " "}]),
        _replace({"String": ""}, "x" * 1000),
        _replace({"Regex": "(a+)+$"}, ""),
    ]
)
POST_PROCESSORS = st.sampled_from(
    [
        None,
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        {"type": "BertProcessing", "sep": ["[SEP]", 10**9], "cls": ["[CLS]", 0]},
        {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}] * 3,
            "pair": [],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [2**31, 5], "tokens": ["a", "b"]}},
        },
    ]
)
WORDS = {"hello": 0, " world": 1, "[UNK]": 2, "a": 3, "h": 4, "e": 5}
MODELS = st.one_of(
    st.none(),
    st.sampled_from(
        [
            {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "missing"},
            {"type": "WordLevel", "vocab": WORDS, "unk_token": "[UNK]"},
            {"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "[UNK]", "max_input_chars_per_word": 0},
            {"type": "WordPiece", "vocab": WORDS, "unk_token": "[UNK]", "continuing_subword_prefix": "##"},
            {"type": "Unigram", "vocab": [["<unk>", 0.0], ["a", -1.0]], "unk_id": 0, "byte_fallback": True},
            {"type": "Unigram", "vocab": [["a", 1e308], ["aa", -1e308]], "unk_id": None},
            {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 7},
            {"type": "Unigram", "vocab": []},
            {"type": "BPE", "vocab": WORDS, "merges": ["h e"], "unk_token": "nobody"},
            {"type": "BPE", "vocab": WORDS, "merges": [], "dropout": 1.0, "byte_fallback": True},
            {"type": "BPE", "vocab": {}, "merges": []},
            {"type": "BPE", "vocab": {"a": 2**31, "b": 4}, "merges": []},
            {"type": "BPE", "vocab": {"a" * 100_000: 0, "a": 1}, "merges": []},
        ]
    ),
)
ADDED = st.lists(
    st.builds(
        lambda id, content, flags: (
            {"id": id, "content": content, "special": flags & 1 > 0}
            | {
                name: flags >> bit & 1 > 0
                for bit, name in enumerate(("single_word", "lstrip", "rstrip", "normalized"), 1)
            }
        ),
        st.one_of(st.integers(0, 400), st.sampled_from([8191, 8192, 2**31, 2**32 - 1])),
        st.one_of(TEXTS, st.sampled_from([" ", "(a+)+$", "hello", "l", "\n" * 100])),
        st.integers(0, 31),
    ),
    max_size=2,
)


@dataclass(frozen=True)
class TokenizerCase:
    """The small byte-level tokenizer with some parts replaced, or edited at random."""

    parts: Json = field(default_factory=dict)
    changes: tuple[Edit | Splice, ...] = ()
    prompt: Repeated = HELLO


@cache
def base_tokenizer() -> Any:
    return json.loads(byte_level().to_str())


PARTS = st.fixed_dictionaries(
    {},
    optional={
        "normalizer": NORMALIZERS,
        "pre_tokenizer": PRE_TOKENIZERS,
        "decoder": DECODERS,
        "post_processor": POST_PROCESSORS,
        "model": MODELS.filter(bool),
        "added_tokens": ADDED,
    },
)
TOKENIZERS = st.one_of(
    st.builds(TokenizerCase, parts=PARTS, prompt=PROMPTS),
    st.builds(TokenizerCase, parts=PARTS, prompt=PROMPTS),
    st.builds(TokenizerCase, changes=edits(base_tokenizer())),
)


def _size(tokenizer: Any) -> int:
    """Return the number of ids from the usual places of the file, for the manifest."""
    try:
        vocabulary = tokenizer["model"]["vocab"]
        ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else list(range(len(vocabulary)))
        found = max([*ids, *(token["id"] for token in tokenizer["added_tokens"])]) + 1
        return found if isinstance(found, int) and 0 < found < 2**63 else 1
    except (TypeError, KeyError, ValueError, AttributeError):
        return 1


@fuzzed("tokenizers")
@given(case=TOKENIZERS)
def test_generate_with_a_hostile_tokenizer_ends_in_one_line_or_an_answer(fuzz: Fuzz, case: TokenizerCase) -> None:
    tokenizer = {**base_tokenizer(), **case.parts}
    data = edited(tokenizer, case.changes)
    manifest = base_manifest() | {"vocabulary_size": _size(tokenizer)}
    manifest["generation"] = manifest["generation"] | {"end_token_ids": []}
    pack = write_pack(fuzz.fresh() / "pack", manifest=manifest, changed={"tokenizer.json": data})
    fuzz.check(*answer_words(pack, prompt=case.prompt.text), limit=BUDGET_NBYTES)


ATOMS = st.one_of(
    st.sampled_from(
        [
            *("messages", "messages[0]", "messages[0]['content']", "bos_token", "add_generation_prompt", "'a'"),
            *("'ab' * 900000000", "[0] * 900000000", "10 ** 100000000", "2 ** 2 ** 2 ** 2 ** 8", "range(99999999)"),
            *("range(99999) | list", "'%0999999999d' % 1", "'{:>999999999}'.format(1)", "'a' | center(999999999)"),
            *("'a' | indent(999999999)", "('a' * 90000) | replace('a', 'a' * 90000)"),
            *("'a'.join(range(9999) | map('string'))", "'a'.ljust(999999999)", "''.zfill(999999999)"),
            *("'\\t'.expandtabs(999999999)", "''.__class__.__mro__", "self._TemplateReference__context.environment"),
            *("messages.__init__.__globals__", "cycler.__init__.__globals__.os", "raise_exception('no')"),
            *("raise_exception('\\x1b]0;x\\x07')", "namespace(a=1)", "lipsum(n=99999)", "joiner"),
            *("strftime_now('%Y')", "messages | tojson(indent=999999999)", "messages | batch(999999999, 'x') | list"),
            *("messages | slice(999999999) | list", "nothing.at.all"),
        ]
    ),
    st.integers(-3, 10**9).map(str),
    TEXTS.map(repr),
    SCALARS.map(str),
)
OPERATORS = st.sampled_from(["+", "~", "*", "**", "%", "/", "//", "-", "and", "==", "in", "is", "|", "."])
EXPRESSIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, OPERATORS, inner).map(lambda parts: f"({parts[0]}) {parts[1]} ({parts[2]})"),
        inner.map(lambda one: f"({one})[0]"),
        inner.map(lambda one: f"({one}) | length"),
    ),
    max_leaves=4,
)
PIECES = st.recursive(
    st.one_of(
        EXPRESSIONS.map(lambda one: "{{ " + one + " }}"),
        EXPRESSIONS.map(lambda one: "{% set x = " + one + " %}"),
        st.sampled_from(["{% include 'x' %}", "{% extends 'x' %}", "{% import 'os' as os %}", "{{", "{% endfor %}"]),
        TEXTS,
    ),
    lambda inner: st.one_of(
        st.tuples(EXPRESSIONS, inner).map(lambda two: f"{{% for i in {two[0]} %}}{two[1]}{{% endfor %}}"),
        inner.map(
            lambda body: "{% for i in range(99999) %}{% for j in range(99999) %}" + body + "{% endfor %}{% endfor %}"
        ),
        inner.map(lambda body: "{% macro m() %}" + body + "{{ m() }}{% endmacro %}{{ m() }}"),
        inner.map(lambda body: "{% set ns = namespace(s='a') %}" + _DOUBLING + body),
        st.tuples(EXPRESSIONS, inner).map(lambda two: f"{{% if {two[0]} %}}{two[1]}{{% endif %}}"),
    ),
    max_leaves=3,
)
_DOUBLING = "{% for i in range(40) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}"


@fuzzed("templates")
@given(pieces=st.lists(PIECES, min_size=1, max_size=3))
def test_generate_with_a_hostile_template_ends_in_one_line_or_an_answer(fuzz: Fuzz, pieces: Sequence[str]) -> None:
    text = "".join(pieces).encode("utf-8", "surrogatepass")
    pack = write_pack(fuzz.fresh() / "pack", changed={"chat_template.jinja": text})
    fuzz.check(*answer_words(pack), limit=BUDGET_NBYTES)
