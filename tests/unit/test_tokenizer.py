"""The tokenizer: golden encodings, refusals, and a digest that depends on tokenization only."""

import base64
import json
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedecode.errors import InputError, ManifestError
from edgedecode.library.names import BUNDLED_PACK
from edgedecode.memory.process_memory import peak_nbytes
from edgedecode.text.chat_template import PLAIN_TEMPLATE, ChatTemplate
from edgedecode.text.tokenizer import Tokenizer
from edgedecode.text.tokenizer_checks import check_file
from tests.shared_paths import SHARED, needs_shared
from tests.small_tokenizers import byte_fallback, byte_level

BUILDERS = {"byte level": byte_level, "byte fallback": byte_fallback}


@cache
def opened(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(folder / "tokenizer.json")


def altered(folder: Path, change: Callable[[dict[str, Any]], None], *, name: str = "byte level") -> Tokenizer:
    """Return a tokenizer whose file differs from the built one by `change`."""
    spec = json.loads(BUILDERS[name]().to_str())
    change(spec)
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(spec, indent=3), encoding="utf-8")
    return Tokenizer.from_file(path)


@pytest.mark.slow
@needs_shared
@pytest.mark.parametrize(("golden", "folder"), [("qwen2", "qwen2.5"), ("phi-3", "phi3")])
def test_encode_gives_golden_encodings(golden: str, folder: str) -> None:
    stem = SHARED / "tokenizers" / "golden" / f"ggml-vocab-{golden}.gguf"
    texts = Path(f"{stem}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    wanted = [[int(id) for id in line.split()] for line in Path(f"{stem}.out").read_text().splitlines()]
    wanted.append([])  # the separator ends the file: its last, empty text has no line of ids
    assert len(texts) == len(wanted) == 47
    tokenizer = opened(SHARED / "tokenizers" / folder)
    wrong = [
        (text, ids, got) for text, ids in zip(texts, wanted, strict=True) if (got := tokenizer.encode(text)) != ids
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("folder", "size", "specials"),
    [
        pytest.param(SHARED / "tokenizers/smollm2", 49152, 17, marks=needs_shared, id="smollm2"),
        pytest.param(SHARED / "tokenizers/qwen2.5", 151665, 14, marks=[needs_shared, pytest.mark.slow], id="qwen2.5"),
        pytest.param(BUNDLED_PACK, 8192, 3, id="bundled"),
    ],
)
def test_tokenizer_sizes_and_special_tokens_of_real_files(folder: Path, size: int, specials: int) -> None:
    tokenizer = opened(folder)
    assert (tokenizer.size, len(tokenizer.special_ids)) == (size, specials)


@pytest.mark.parametrize("build", BUILDERS.values())
@settings(max_examples=60)
@given(text=st.text(max_size=30))
def test_encode_and_decode_round_trip(build: Callable[[], Any], text: str) -> None:
    tokenizer = _once(build)
    assert tokenizer.decode(tokenizer.encode(text)) == text


@cache
def _once(build: Callable[[], Any]) -> Tokenizer:
    return Tokenizer(build())


def test_tokenizer_ids_and_tokens() -> None:
    tokenizer = Tokenizer(byte_level())
    end = tokenizer.token_to_id("<|end|>")
    assert end is not None
    assert tokenizer.special_ids == {end}
    assert tokenizer.token_text(end) == "<|end|>"
    assert tokenizer.token_text(tokenizer.size - 1) is not None
    assert tokenizer.token_text(tokenizer.size) is None
    assert tokenizer.token_to_id("nowhere") is None
    assert tokenizer.token_to_id("\ud800") is None
    ids = tokenizer.encode("a<|end|>")
    assert (ids[-1], tokenizer.decode(ids), tokenizer.decode(ids, skip_special=False)) == (end, "a", "a<|end|>")
    assert tokenizer.chat_template == ChatTemplate(PLAIN_TEMPLATE)


@pytest.mark.parametrize(
    ("text", "why"), [("fine \ud83e no", r"character 5 is the lone surrogate '\\ud83e'"), (7, "int, not a string")]
)
def test_encode_refuses_unusable_text(text: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        Tokenizer(byte_level()).encode(text)


@pytest.mark.parametrize("ids", [[-1], [2**33], ["x"]])
def test_decode_refuses_unusable_ids(ids: list[int]) -> None:
    with pytest.raises(InputError, match="token id"):
        Tokenizer(byte_level()).decode(ids)


@pytest.mark.parametrize(
    "content", [None, "", "no json", "{}", "[]", '{"model":{"type":"BPE","vocab":{},"merges":["a b"]}}']
)
def test_tokenizer_file_that_is_missing_or_invalid_is_a_one_line_error(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ManifestError, match=r"tokenizer\.json") as caught:
        Tokenizer.from_file(path)
    assert "\n" not in str(caught.value)


def test_tokenizer_ignores_saved_padding_truncation_and_post_processor(tmp_path: Path) -> None:
    def change(spec: dict[str, Any]) -> None:
        inner = byte_level()
        inner.enable_padding(length=64)
        inner.enable_truncation(2)
        spec.update({key: json.loads(inner.to_str())[key] for key in ("padding", "truncation")})
        end = {"SpecialToken": {"id": "<|end|>", "type_id": 0}}
        spec["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [end, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {
                "<|end|>": {"id": "<|end|>", "ids": [inner.token_to_id("<|end|>")], "tokens": ["<|end|>"]}
            },
        }

    plain, saved = Tokenizer(byte_level()), altered(tmp_path, change)
    text = "the quick brown fox"
    assert saved.encode(text) == plain.encode(text)
    assert saved.encode(text, add_special=True) == [plain.token_to_id("<|end|>"), *plain.encode(text)]
    assert saved.digest == plain.digest
    assert saved.first_difference(plain) is None


def _swap_tokens(spec: dict[str, Any]) -> None:
    vocabulary = spec["model"]["vocab"]
    vocabulary["x"], vocabulary["y"] = vocabulary["y"], vocabulary["x"]


def _swap_merges(spec: dict[str, Any]) -> None:
    merges = spec["model"]["merges"]
    merges[0], merges[1] = merges[1], merges[0]


def _add_normalizer(spec: dict[str, Any]) -> None:
    spec["normalizer"] = {"type": "NFC"}


def _add_prefix_space(spec: dict[str, Any]) -> None:
    spec["pre_tokenizer"]["add_prefix_space"] = True


def _eat_spaces(spec: dict[str, Any]) -> None:
    spec["added_tokens"][0]["rstrip"] = True


def _add_token(spec: dict[str, Any]) -> None:
    spec["added_tokens"].append(
        {**spec["added_tokens"][-1], "id": spec["added_tokens"][-1]["id"] + 1, "content": "<new>"}
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_swap_tokens, r"id \d+ is 'x' in one and 'y' in the other"),
        (_add_token, r"id \d+ is unused in one and '<new>' in the other"),
        (_swap_merges, r"merges 0 is \["),
        (_add_normalizer, "normalizer 0 is None in one and .*NFC"),
        (_add_prefix_space, "pre-tokenizer 0 is"),
        (_eat_spaces, "added token 0 is"),
    ],
)
def test_digest_changes_with_tokenization_and_the_difference_is_named(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], words: str
) -> None:
    plain, changed = Tokenizer(byte_level()), altered(tmp_path, change)
    assert plain.digest != changed.digest
    difference = plain.first_difference(changed)
    assert difference is not None
    assert re.search(words, difference), difference


def _old_spelling(spec: dict[str, Any]) -> None:
    spec["model"]["merges"] = [" ".join(pair) for pair in spec["model"]["merges"]]
    spec["model"]["unk_token"] = None
    spec["model"]["continuing_subword_prefix"] = ""
    spec["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [{**spec["pre_tokenizer"], "trim_offsets": False}]}
    spec["model"]["vocab"] = dict(reversed(spec["model"]["vocab"].items()))


def test_digest_ignores_how_the_file_is_written(tmp_path: Path) -> None:
    assert altered(tmp_path, _old_spelling).digest == Tokenizer(byte_level()).digest


def test_digest_is_stable() -> None:
    # A pack's manifest contains digests, so a change here invalidates every pack.
    assert Tokenizer(byte_fallback()).digest == "b4e4d49b42cce3b8c00288c19eef2f9a6e047dcd20bde44448145f73b118d56b"


def split_by(pattern: str) -> Callable[[dict[str, Any]], None]:
    def change(spec: dict[str, Any]) -> None:
        split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        spec["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, spec["pre_tokenizer"]]}

    return change


def normalized_by(*steps: dict[str, Any]) -> Callable[[dict[str, Any]], None]:
    return lambda spec: spec.update(normalizer={"type": "Sequence", "normalizers": list(steps)})


def replacing(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def untyped(step: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in step.items() if name != "type"}


def without_unknown(spec: dict[str, Any]) -> None:
    spec["model"] = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "[UNK]"}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (normalized_by({"type": "Precompiled", "precompiled_charsmap": ""}), "precompiled_charsmap is damaged"),
        (normalized_by({"type": "Precompiled", "precompiled_charsmap": "CAAAAA=="}), "precompiled_charsmap is damaged"),
        (normalized_by(*[replacing({"String": "l"}, "l" * 16)] * 6), "more than 64 times longer"),
        (normalized_by(replacing({"Regex": "l"}, "l" * 65)), "more than 64 times longer"),
        (normalized_by({"type": "Prepend", "prepend": "l" * 1000}), "more than 64 times longer"),
        (normalized_by(replacing({"String": ""}, "ll")), "replaces the empty string"),
        (normalized_by(*[untyped(replacing({"String": "l"}, "l" * 16))] * 5), "a step of the unknown type 'None'"),
        (normalized_by({**replacing({"String": "l"}, "l" * 16), "type": "Other"}), "a step of the unknown type"),
        (normalized_by({**replacing({"String": "l"}, "l" * 16), "type": ["Replace"]}), "a step of the unknown type"),
        (normalized_by([{"String": "l"}, "l" * 16]), "has a list where a step belongs"),
        (lambda spec: spec.update(normalizer=[]), "has a list where a step belongs"),
        (lambda spec: spec.update(normalizer="NFC"), "has a str where a step belongs"),
        (lambda spec: spec.update(normalizer={"type": "Sequence"}), "Sequence without a list"),
        (lambda spec: spec.update(normalizer={"normalizers": [{"type": "NFC"}]}), "a step of the unknown type"),
        (lambda spec: spec.update(decoder=replacing({"String": "l"}, "l" * 65)), "more than 64 times longer"),
        (lambda spec: spec["model"]["vocab"].update({"l" * 20000: 9999}), "a token of 20000 characters"),
        (without_unknown, "does not work: .*[Mm]issing"),
    ],
)
def test_tokenizer_refuses_a_hostile_file_in_one_line(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ManifestError, match=why) as caught:
        altered(tmp_path, change)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().err == "", "the library itself must not write to stderr"


def test_tokenizer_turns_a_panic_of_the_library_into_its_own_error(tmp_path: Path) -> None:
    """The library panics after ten million steps of a pattern that backtracks without end."""
    tokenizer = altered(tmp_path, split_by("(a+)+$"))
    for ask in (tokenizer.encode, Tokenizer(tokenizer._inner).encode):
        with pytest.raises(InputError, match=r"cannot encode this text: .*retry-limit") as caught:
            ask("a" * 40 + "b")
        assert "\n" not in str(caught.value)
    assert tokenizer.decode(tokenizer.encode("hello")) == "hello"
    encoded = base64.b64encode(b"\x08\0\0\0" + b"\xff" * 8 + b"x\0").decode()
    with pytest.raises(ManifestError, match="index out of bounds"):
        altered(tmp_path, normalized_by({"type": "Precompiled", "precompiled_charsmap": encoded}))


def test_tokenizer_refuses_a_normalizer_spelled_in_escapes(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    text = byte_level().to_str().replace('"normalizer"', '"norm\\u0061lizer"')
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ManifestError, match="spells letters as escapes"):
        Tokenizer.from_file(path)


def test_tokenizer_refuses_a_step_with_two_types(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    text = byte_level().to_str().replace('"normalizer":null', '"normalizer":{"type":"Replace","type":"NFC"}')
    assert "Replace" in text
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ManifestError, match="normalizer is not JSON"):
        Tokenizer.from_file(path)


@pytest.mark.parametrize("backslashes", range(6))
def test_check_file_finds_escaped_letters_after_an_odd_number_of_backslashes(backslashes: int) -> None:
    data = json.dumps(["\\" * 7, "é"]).encode() + b"\\" * backslashes + b"u0041"
    assert (b"\\u0041" in data) == (backslashes > 0)
    with pytest.raises(ManifestError, match="escapes") if backslashes % 2 else nullcontext():
        check_file(data)


@pytest.mark.parametrize("token", ["\\u0061", "normalizer"])
def test_tokenizer_accepts_tokens_that_look_like_refused_content(tmp_path: Path, token: str) -> None:
    assert altered(tmp_path, lambda spec: spec["model"]["vocab"].update({token: 9999})).token_to_id(token) == 9999


@pytest.mark.parametrize("signal", [KeyboardInterrupt, SystemExit])
def test_encode_passes_interrupts_on(signal: type[BaseException]) -> None:
    class Stopped:
        def encode(self, *_: object, **__: object) -> None:
            raise signal

    tokenizer = Tokenizer(byte_level())
    tokenizer._inner = Stopped()
    with pytest.raises(signal):
        tokenizer.encode("a")


def test_encode_caches_a_bounded_amount_of_words() -> None:
    """The library caches 10,000 words of any size: 80 MB for words of 250 letters."""
    child = """
import random
from tests.small_tokenizers import byte_level
from edgedecode.memory.process_memory import peak_nbytes
from edgedecode.text.tokenizer import Tokenizer
from edgedecode.text.tokenizer_checks import check_file
tokenizer, before = Tokenizer(byte_level()), None
for number in range(3000):
    tokenizer.encode("".join(random.choices("abcdefghij", k=250)))
    before = before or peak_nbytes()
assert peak_nbytes() - before < tokenizer.cache_nbytes + 2_000_000, peak_nbytes() - before
"""
    if peak_nbytes() is None:
        pytest.skip("this system does not report a peak")
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=False, cwd=root)
    assert done.returncode == 0, done.stderr


@needs_shared
@pytest.mark.parametrize("name", [pytest.param("qwen2.5", marks=pytest.mark.slow), "smollm2", "phi3"])
def test_check_file_limits_are_far_above_real_files(name: str) -> None:
    tokenizer = opened(SHARED / "tokenizers" / name)
    assert tokenizer.growth < 12
    assert tokenizer.longest_token < 1000


def test_a_pointer_in_the_place_of_a_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(b"version https://git-lfs.example/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(ManifestError, match=r"tokenizer\.json is Git LFS's pointer to the file"):
        Tokenizer.from_file(tmp_path / "tokenizer.json")
