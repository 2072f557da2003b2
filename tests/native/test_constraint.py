"""Structured answers of the native library: llguidance's C interface plugged in, and Python's own constraint."""

import ctypes
import json
from collections.abc import Iterator
from ctypes import CFUNCTYPE, POINTER, Structure, c_bool, c_char_p, c_int32, c_size_t, c_uint8, c_uint32, c_void_p
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import edgedecode
from edgedecode.pair import Pair
from edgedecode.structured.grammar import Grammar
from edgedecode.structured.guidance import GrammarTokens
from tests.native.interface import FAILED, Constraint, Library, NativePack
from tests.native.test_models import ENGINE
from tests.native.test_session import COUNTS, folder, options_of

llguidance = pytest.importorskip("llguidance", reason="the extra structured is not installed")
pytestmark = pytest.mark.skipif(ENGINE is None, reason="this onnxruntime has no library of its own")
__all__ = ["folder"]
PIECES = [{"const": "a stretch of words that leaves no choice"}, {"enum": ["yes", "no"]}]
SCHEMAS: list[dict[str, Any]] = [
    {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name"]},
    {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 3, "maxItems": 5},
    {"type": "array", "prefixItems": PIECES, "minItems": 2, "maxItems": 2},  # forces more at once than a draft has
]
PROMPT, MOST = "Describe a duck in JSON.", 60


@pytest.fixture(scope="module")
def pair() -> Pair:
    return edgedecode.load()


@pytest.fixture(scope="module")
def pack(native_build: Path, folder: Path) -> Iterator[NativePack]:
    opened = Library(native_build / "libedgedecode.so").open(folder, engine=str(ENGINE), context=1024)
    yield opened
    opened.close()


class PythonConstraint:
    """The callbacks of `edgedecode_constraint` over `GuidanceConstraint`, which Python's loop uses."""

    def __init__(self, pair: Pair, grammar: Grammar) -> None:
        rows = pair.target.card.rows
        tokens = GrammarTokens(pair.tokenizer, rows=rows, ends=pair.shared.manifest.end_ids)
        self.inner = tokens.constraint(grammar)
        self.calls = (
            CFUNCTYPE(c_int32, c_void_p, POINTER(c_uint32), c_size_t)(self.mask),
            CFUNCTYPE(c_int32, c_void_p, c_uint32)(self.commit),
            CFUNCTYPE(c_int32, c_void_p, POINTER(c_uint32), c_size_t)(self.allows),
            CFUNCTYPE(c_int32, c_void_p, POINTER(c_uint32), c_size_t)(self.forced),
        )
        self.given = Constraint(None, *(ctypes.cast(each, c_void_p) for each in self.calls))

    def mask(self, user: int, bits: Any, nbytes: int) -> int:
        for token in self.inner.allowed():
            bits[token // 32] |= 1 << int(token % 32)
        return 0

    def commit(self, user: int, token: int) -> int:
        self.inner.extend([token])
        return 0

    def allows(self, user: int, ids: Any, count: int) -> int:
        return int(self.inner.allows(ids[:count]))

    def forced(self, user: int, ids: Any, most: int) -> int:
        found = self.inner.forced()[:most]
        for place, token in enumerate(found):
            ids[place] = token
        return len(found)


@pytest.mark.parametrize("drafts", [{}, {"drafter": "none"}, {"drafter": "trim", "draft_max": 4}], ids=str)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_answers_of_a_schema_are_pythons(
    pack: NativePack, pair: Pair, drafts: dict[str, Any], temperature: float
) -> None:
    longest = 0
    for schema in SCHEMAS:
        grammar = Grammar.of_schema(schema)
        given = {**drafts, "temperature": temperature, "seed": 3}
        options = options_of(given, pair)
        with pair.session(replace(options, grammar=grammar)) as own:
            reply = own.generate(PROMPT, max_tokens=MOST)
        constraint, session = PythonConstraint(pair, grammar), pack.session(**given)
        assert session.constrain(constraint.given) == 0
        assert session.generate(message=PROMPT, max_tokens=MOST) == len(reply.tokens), session.library.error
        assert session.tokens() == [*reply.tokens]
        if drafts:
            expected, found = json.loads(reply.stats.to_json()), session.stats()["stats"]
            assert {name: found[name] for name in COUNTS} == {name: expected[name] for name in COUNTS}
            longest = max(longest, len(found["reached"]))
        session.close()
    assert not drafts or longest > 4  # drafts have 4 tokens at most, what is forced more


class TokenizerInit(Structure):
    """`LlgTokenizerInit` of llguidance.h."""

    _fields_ = (
        ("vocab_size", c_uint32),
        ("tok_eos", c_uint32),
        ("token_lens", POINTER(c_uint32)),
        ("token_bytes", c_char_p),
        ("tokenizer_json", c_char_p),
        ("tokenize_assumes_string", c_bool),
        ("tokenize_fn", c_void_p),
        ("use_approximate_greedy_tokenize_fn", c_bool),
        ("tokenize_user_data", c_void_p),
        ("slices", c_void_p),
    )


class ConstraintInit(Structure):
    """`LlgConstraintInit` of llguidance.h, with its `LlgParserLimits`; defaults are written by the library."""

    _fields_ = (("bytes", c_uint8 * 512),)


@pytest.fixture(scope="module")
def guidance() -> ctypes.CDLL:
    """llguidance's C interface: its wheel exports it too."""
    found = next(Path(llguidance.__file__).parent.glob("_lib*.so"), None)
    if found is None:
        pytest.skip("this llguidance has no library")
    library = ctypes.CDLL(str(found))
    if not hasattr(library, "llg_new_matcher"):
        pytest.skip("this llguidance exports no C interface")
    library.llg_new_tokenizer.restype = library.llg_new_matcher.restype = c_void_p
    library.llg_matcher_get_error.restype = c_char_p
    return library


def test_llguidance_plugs_in(pack: NativePack, guidance: ctypes.CDLL) -> None:
    """Its four functions as they are, over the vocabulary and the tokenizer that the library gives it."""
    facts = pack.info()
    texts = [pack.token_bytes(token) for token in range(facts["vocabulary"])]
    init, error = TokenizerInit(), ctypes.create_string_buffer(1000)
    init.vocab_size, init.tok_eos = len(texts), facts["ends"][0]
    init.token_lens = (c_uint32 * len(texts))(*map(len, texts))
    init.token_bytes, init.tokenize_user_data = b"".join(texts), pack.handle
    init.tokenize_assumes_string = True
    init.tokenize_fn = ctypes.cast(pack.library.c.edgedecode_tokenize, c_void_p)
    tokenizer = guidance.llg_new_tokenizer(ctypes.byref(init), error, len(error))
    assert tokenizer, error.value
    started = ConstraintInit()
    guidance.llg_constraint_init_set_defaults(ctypes.byref(started), c_void_p(tokenizer))
    named = {"name": {"enum": ["Ann", "Bo"]}, "old": {"type": "boolean"}}  # short, so that no answer is cut off
    whole = {"type": "object", "properties": named, "required": ["name", "old"], "additionalProperties": False}
    for schema in (whole, SCHEMAS[1]):
        text = json.dumps(schema).encode()
        matcher = guidance.llg_new_matcher(ctypes.byref(started), b"json", text)
        assert not guidance.llg_matcher_is_error(c_void_p(matcher)), guidance.llg_matcher_get_error(c_void_p(matcher))
        names = ("compute_mask_into", "consume_token", "validate_tokens", "compute_ff_tokens")
        calls = (ctypes.cast(getattr(guidance, f"llg_matcher_{name}"), c_void_p) for name in names)
        session = pack.session(temperature=1.0, seed=2)
        assert session.constrain(Constraint(matcher, *calls)) == 0
        for _ in range(2):
            assert session.generate(message=PROMPT, max_tokens=400) > 0, session.library.error
            value = json.loads("".join(session.pieces))
            assert "name" in value if isinstance(value, dict) else {*value} <= {"red", "green", "blue"}
            assert session.stats()["stats"]["drafters"]["forced"]["proposed"] > 0
            guidance.llg_matcher_reset(c_void_p(matcher))
        session.close()


def test_what_a_constraint_does_wrong(pack: NativePack) -> None:
    mask = CFUNCTYPE(c_int32, c_void_p, POINTER(c_uint32), c_size_t)(lambda user, bits, nbytes: 0)  # nothing is allowed
    commit = CFUNCTYPE(c_int32, c_void_p, c_uint32)(lambda user, token: 0)
    session = pack.session()
    assert session.constrain(Constraint(None, None, ctypes.cast(commit, c_void_p), None, None)) < 0
    assert "a constraint needs `mask` and `commit`" in session.library.error
    session.constrain(Constraint(None, ctypes.cast(mask, c_void_p), ctypes.cast(commit, c_void_p), None, None))
    assert session.generate(message=PROMPT, max_tokens=4) == FAILED
    assert "allows no further token" in session.library.error
    failing = CFUNCTYPE(c_int32, c_void_p, POINTER(c_uint32), c_size_t)(lambda user, bits, nbytes: -7)
    session.constrain(Constraint(None, ctypes.cast(failing, c_void_p), ctypes.cast(commit, c_void_p), None, None))
    assert session.generate(message=PROMPT, max_tokens=4) == FAILED
    assert session.library.error == "the constraint's `mask` failed: it returned -7"
    session.constrain(None)
    assert session.generate(message=PROMPT, max_tokens=4) > 0
    session.close()
