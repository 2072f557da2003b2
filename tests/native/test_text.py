"""Text in the native library: the same ids, texts and conversations as in Python."""

import json
import random
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from edgedecode.errors import ExportError
from edgedecode.export.gguf.pretokenizers import KNOWN, splits_of
from edgedecode.export.native.text_file import FILE, write_text, write_tokenizer
from edgedecode.export.native.turns import conversations, thinking_turns, turns_of
from edgedecode.library.names import BUNDLED_PACK
from edgedecode.text.chat_template import ChatTemplate
from edgedecode.text.messages import Message
from edgedecode.text.tokenizer import Tokenizer
from tests.native.conftest import Check
from tests.shared_paths import SHARED
from tests.small_tokenizers import byte_fallback, byte_level

COUNT = 2000
DEEPSEEK = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
)
PHI4 = r"(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
"""Of models that are in no file here."""
CHARACTERS = (
    "abcdefghijklmnopqrstuvwxyz",
    "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    " \t\n\r  \u00a0\u2003\u3000\u2028\u0085",
    "0123456789²½٣४",
    "'’s't're've'm'll'd'S'T'REſK.,;:!?-_/\\()[]{}<>|@#$%^&*+=~`\"",
    "éèüñçßøåæœÅÉÖ",
    "你好世界日本語ひらがなカタカナ한국어각가",
    "e\u0301\u0308\u0323\u0327\u0334\u0345\u20d7\u1161\u11a8\u0344\u0300",
    "🦙😀👩\u200d👩\u200d👧🇩🇪✊🏽❤\ufe0f",
    "АБВабвгاللغةעבריתไทยहिन्दी",
    "\x00\x01\x1f\x7f\ufeff\u200b\ufffd\ue000\uffff",
    "ǅǈⅧʰªº①𝒜𝟘𐐀",
)
WORDS = (
    *("the", "quick", "I'm", "you've", "DON'T", 'for (int i = 0; i < 10; i++) {\n\t\tprintf("%d\\n", i);\n}\n\n\n'),
    *("https://a.b/c?d=e&f=1", "1234567", "3.14159", "naïve", "café", "ﬁ", "Ångström", "中文字符。"),
    *("▁", "▁▁", "<0x41>", "<s>", "</s>"),
)
TEMPLATES = {
    "folded": "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}"
    "{{ '<start>' + m.role + '\n' + m.content | trim + '<end>\n' }}{% endfor %}<start>model\n",
    "last": "{% set n = namespace(s='') %}{% for m in messages %}{% if m.role == 'system' %}{% set n.s = m.content %}"
    "{% elif m.role == 'user' %}{{ '[INST] ' + (n.s + '\n\n' if loop.last and n.s else '') + m.content + '[/INST]' }}"
    "{% else %}{{ ' ' + m.content + '</s>' }}{% endif %}{% endfor %}",
    "thoughts": "{% if messages[0].role != 'system' %}<sys>default<end>\n{% endif %}{% for m in messages %}"
    "{{ '<start>' + m.role + '\n' + (m.content.split('</think>')[-1].lstrip('\n') if m.role[0] == 'a' else m.content)"
    " + '<end>\n' }}{% endfor %}<start>assistant\n",
    "dated": "{{ 'Today: ' + strftime_now('%d %b %Y') + '\n' }}{% for m in messages %}"
    "{{ m.role + ': ' + m.content + '\n' }}{% endfor %}assistant:",
}
REFUSED_TEMPLATES = {
    "depends": "{% for m in messages %}{{ m.role + ('!' if 'frog' in m.content else '') + m.content }}{% endfor %}",
    "upper": "{% for m in messages %}{{ m.role + m.content.upper() }}{% endfor %}",
    "counts": "{% for m in messages %}{{ m.role + loop.index|string + ':' + m.content + '\n' }}{% endfor %}",
}


def _bundled() -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(BUNDLED_PACK / "tokenizer.json"))


def _split_as(name: str) -> tokenizers.Tokenizer:
    """Return the bundled pack's tokenizer with a pre-tokenizer of llama.cpp's names."""
    splits, inner = splits_of(name), json.loads(_bundled().to_str())
    assert splits is not None
    inner["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": list(splits.steps)}
    inner["model"]["ignore_merges"] = splits.ignore_merges
    inner["normalizer"] = {"type": splits.normal_form} if splits.normal_form else None
    return tokenizers.Tokenizer.from_str(json.dumps(inner))


def _split_by(*expressions: str, behavior: str = "isolated") -> tokenizers.Tokenizer:
    inner = _bundled()
    parts = [
        pre_tokenizers.Split(tokenizers.Regex(each), behavior, invert=behavior == "removed") for each in expressions
    ]
    inner.pre_tokenizer = pre_tokenizers.Sequence([*parts, pre_tokenizers.ByteLevel(False, use_regex=False)])
    return inner


def _sentencepiece(prepend: str, *, split: bool = False) -> tokenizers.Tokenizer:
    """Return one like Gemma's (nothing comes before the text) or with a `Metaspace` step, as newer Llama 2's."""
    inner = byte_fallback()
    inner.normalizer, inner.pre_tokenizer = (
        normalizers.Replace(" ", "▁"),
        pre_tokenizers.Split(" ", "merged_with_previous"),
    )
    if prepend:
        inner.normalizer = None
        inner.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme=prepend, split=split)
    inner.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    inner.add_tokens([AddedToken("▁▁▁▁", normalized=False), AddedToken("<tag>", rstrip=True, normalized=False)])
    inner.add_special_tokens([AddedToken("<turn>", lstrip=True, normalized=False)])
    return inner


def _joined_control() -> tokenizers.Tokenizer:
    """Return one whose merges make a control token of its letters."""
    pieces = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "<", "s", ">", "<s"]
    vocabulary = {piece: id for id, piece in enumerate(pieces)}
    merges = [("<", "s"), ("<s", ">")]
    inner = tokenizers.Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    inner.normalizer = normalizers.Replace(" ", "▁")
    inner.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    inner.add_special_tokens(["<s>"])
    inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return inner


FAMILIES = {
    "demo": _bundled,
    **{name: (lambda name=name: _split_as(name)) for name in KNOWN},
    "deepseek": lambda: _split_by(*DEEPSEEK),
    "phi-4": lambda: _split_by(PHI4, behavior="removed"),
    "small": byte_level,
    "llama-2": byte_fallback,
    "gemma": lambda: _sentencepiece(""),
    "metaspace": lambda: _sentencepiece("first"),
    "metaspace-words": lambda: _sentencepiece("always", split=True),
    "joined": _joined_control,
    **{name: (lambda name=name: _shared(name)) for name in ("phi3", "qwen2.5", "smollm2")},
}


def _shared(name: str) -> tokenizers.Tokenizer:
    path = SHARED / "tokenizers" / name / "tokenizer.json"
    if not path.is_file():
        pytest.skip(f"{path} is missing")
    return tokenizers.Tokenizer.from_file(str(path))


def texts(count: int, *, names: list[str], seed: int) -> Iterator[str]:
    """Yield random texts: words, runs, characters of many scripts, names of control tokens."""
    chance = random.Random(seed)
    for _ in range(count):
        yield "".join(_part(chance, names) for _ in range(chance.randint(0, 12)))


def _part(chance: random.Random, names: list[str]) -> str:
    match chance.choices(range(6), weights=(30, 45, 8, 7, 7, 3))[0]:
        case 0:
            return chance.choice(WORDS) + chance.choice((" ", "", "  ", "\n"))
        case 1:
            return "".join(chance.choices(chance.choice(CHARACTERS), k=chance.randint(1, 8)))
        case 2:
            return chance.choice((" ", "\n", "\t", " \n")) * chance.randint(1, 20)
        case 3:
            return chance.choice(names) + chance.choice(("", " ", "\n "))
        case 4:
            planes = (range(0x800), range(0xD800), range(0xE000, 0x110000))
            return "".join(chr(chance.choice(chance.choice(planes))) for _ in range(chance.randint(1, 6)))
    return chance.choice("aA1 é你.\u0301") * chance.randint(1, 300)


@pytest.fixture(scope="module", params=[*FAMILIES])
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Path]:
    """A tokenizer and its file."""
    template = "{% for m in messages %}{{ m.role }}<tag></tag>{{ m.content }}{% endfor %}"
    tokenizer = Tokenizer(FAMILIES[request.param](), chat_template=ChatTemplate(template))
    path = tmp_path_factory.mktemp("text") / FILE
    write_tokenizer(tokenizer, path, name="the pack")
    return tokenizer, path


def test_texts_have_the_same_ids(native_check: Check, family: tuple[Tokenizer, Path]) -> None:
    tokenizer, path = family
    names = [each for id in tokenizer.added_ids if (each := tokenizer.token_text(id))]
    some = [*texts(COUNT, names=names, seed=7)]
    lines = [{"text": text, "control": control} for text in some for control in (True, False)]
    lines += [{"prompt": text} for text in some[:50]]
    expected = [
        ids for text in some for ids in (tokenizer.encode(text), tokenizer.encode(tokenizer.without_controls(text)))
    ]
    expected += [tokenizer.encode(text, add_special=True) for text in some[:50]]
    found = native_check("tokenizer", str(path), lines=lines)
    assert len(found) == len(expected)
    for line, ids, wanted in zip(lines, found, expected, strict=True):
        assert ids == wanted, line


def test_ids_have_the_same_texts(native_check: Check, family: tuple[Tokenizer, Path]) -> None:
    """Random ids, whose bytes are invalid where they meet, and ids of texts, piece by piece."""
    tokenizer, path = family
    chance = random.Random(11)
    streams = [[chance.randrange(tokenizer.size + 2) for _ in range(chance.randint(0, 30))] for _ in range(200)]
    byte_ids = sorted(tokenizer.byte_ids())
    streams += [chance.choices(byte_ids, k=chance.randint(1, 12)) for _ in range(200)]
    streams += [tokenizer.encode(text) for text in texts(200, names=["<s>"], seed=3)]
    lines = [{"ids": ids} for ids in streams]
    for ids, found in zip(streams, native_check("tokenizer", str(path), lines=lines), strict=True):
        detokenizer = tokenizer.detokenizer()
        assert found == [*(detokenizer.push([id]) for id in ids), detokenizer.flush()]
    ids = [*range(min(tokenizer.size, 3000)), tokenizer.size]
    every = native_check("tokenizer", str(path), lines=[{"bytes": id} for id in ids])
    assert [bytes(each) for each in every] == [tokenizer.token_bytes(id) for id in ids]


@pytest.mark.parametrize("name", ["pack", *TEMPLATES])
def test_conversations_have_the_same_text_and_ids(native_check: Check, tmp_path: Path, name: str) -> None:
    source = TEMPLATES.get(name) or (BUNDLED_PACK / "chat_template.jinja").read_text(encoding="utf-8")
    template = ChatTemplate(source, bos_token="<|endoftext|>")
    tokenizer = Tokenizer(_bundled(), chat_template=template)
    turns = write_text(tokenizer, tmp_path, name="the pack")
    (tmp_path / "turns.json").write_text(json.dumps(turns), encoding="utf-8")
    some = [*conversations(200, seed=1)]
    lines = [{"turns": [[each.role, each.content] for each in messages]} for messages in some]
    arguments = (str(tmp_path / FILE), str(tmp_path / "turns.json"))
    controls = 0
    for messages, found in zip(some, native_check("tokenizer", *arguments, lines=lines), strict=True):
        text = tokenizer.render([Message(each.role, each.content) for each in messages])
        assert found == {"text": text, "ids": tokenizer.encode(text)}
        controls += sum(id in tokenizer.special_ids for id in found["ids"])
    assert controls or name not in ("pack", "folded")


def test_a_switch_for_thinking_has_tables_of_its_own() -> None:
    """As Qwen 3 has it: an empty thought before the answer if thinking is off."""
    source = (
        "{% for m in messages %}{{ '<start>' + m.role + '\n' + m.content + '<end>\n' }}{% endfor %}<start>assistant\n"
    )
    template = ChatTemplate(source + "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}")
    found = thinking_turns(template, name="the pack")
    for which, turns in found.items():
        for messages in conversations(20, seed=2):
            plain = [{"role": each.role, "content": each.content} for each in messages]
            assert turns.render(messages) == template.render(plain, arguments={"enable_thinking": which == "true"})
    assert found["false"] != found["true"] == turns_of(template, name="the pack")
    assert thinking_turns(ChatTemplate(source), name="the pack") == {}


@pytest.mark.parametrize("name", [*REFUSED_TEMPLATES])
def test_template_that_is_no_pattern_is_refused(name: str) -> None:
    with pytest.raises(ExportError, match="the pack has a chat template that the native library cannot have as turns"):
        turns_of(ChatTemplate(REFUSED_TEMPLATES[name]), name="the pack")


def _unigram(inner: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer(models.Unigram([("a", 0.0), ("b", -1.0)]))


def _with(name: str, value: object) -> Callable[[tokenizers.Tokenizer], tokenizers.Tokenizer]:
    def change(inner: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
        setattr(inner, name, value)
        return inner

    return change


def _added(token: AddedToken) -> Callable[[tokenizers.Tokenizer], tokenizers.Tokenizer]:
    def change(inner: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
        inner.add_tokens([token])
        return inner

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_unigram, "a vocabulary of the type Unigram"),
        (_with("normalizer", normalizers.Lowercase()), "the normalizer {'type': 'Lowercase'}"),
        (_with("pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=True)), "'add_prefix_space': True"),
        (_with("pre_tokenizer", pre_tokenizers.Whitespace()), "splits text into other tokens"),
        (_with("decoder", decoders.CTC()), "a decoder"),
        (_added(AddedToken("word", single_word=True)), "the added token 'word' in single words only"),
    ],
)
def test_tokenizer_is_refused_by_name(
    tmp_path: Path, change: Callable[[tokenizers.Tokenizer], tokenizers.Tokenizer], reason: str
) -> None:
    tokenizer = Tokenizer(change(byte_level()))
    with pytest.raises(ExportError, match=r"(?s)the pack .*" + reason):
        write_text(tokenizer, tmp_path, name="the pack")
    assert not (tmp_path / FILE).exists()


@pytest.mark.parametrize("expression", [r"(a|b)+", r"a(?<=b)c", r"a*", r"\bword", r"(?!ab)c", r"(?i:ss)", "[a&&b]"])
def test_expression_is_refused(tmp_path: Path, expression: str) -> None:
    with pytest.raises(ExportError, match="the pre-tokenizer's expression"):
        write_tokenizer(Tokenizer(_split_by(expression)), tmp_path / FILE, name="the pack")


def test_damaged_files_are_refused(native_build: Path, tmp_path: Path) -> None:
    write_tokenizer(Tokenizer(byte_level()), tmp_path / FILE, name="the pack")
    data = (tmp_path / FILE).read_bytes()
    damages = {
        "cannot be mapped: copy the folder again": None,
        "is damaged: package the model again": data[:100],
        "has format 2, this library reads format 1: package the model again": data[:8] + b"\2" + data[9:],
    }
    for reason, damage in damages.items():
        (tmp_path / FILE).unlink(missing_ok=True)
        if damage is not None:
            (tmp_path / FILE).write_bytes(damage)
        command = [str(native_build / "edgedecode-check"), "tokenizer", str(tmp_path / FILE)]
        done = subprocess.run(command, input=b"", capture_output=True, check=False)
        assert done.returncode == 1
        assert done.stderr.decode().strip().endswith(reason)


def test_damage_is_an_error_and_no_crash(native_check: Check, tmp_path: Path) -> None:
    """Two seconds; with -DEDGEDECODE_SANITIZE and more time it is what looks for faults."""
    turns = write_text(Tokenizer(byte_level()), tmp_path, name="the pack")
    (tmp_path / "turns.json").write_text(json.dumps(turns), encoding="utf-8")
    (found,) = native_check("fuzz-text", str(tmp_path / FILE), str(tmp_path / "turns.json"), "1", "2", lines=[])
    assert min(found["opened"], found["refused"]) > 0
    assert found["texts"] > found["failed"]
