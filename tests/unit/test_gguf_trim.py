"""`trim_gguf` keeps the rows and tokens of a part of the vocabulary bit for bit and changes nothing else."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgedecode.decoding.drafts import TrimmedVocabulary
from edgedecode.errors import CapabilityError, EdgeDecodeError, ExportError, ManifestError
from edgedecode.gguf import trimmed_gguf as trim
from edgedecode.gguf.contents import BLOCKS, Contents, read_contents
from edgedecode.gguf.encoding import F32, WrittenTensor, encoded_field, write_encoded
from edgedecode.gguf.fields import ARRAY, FLOAT32, TEXT, UINT32, Truncated
from edgedecode.gguf.header import read_header
from edgedecode.gguf.trimmed_fields import trimmed_fields
from edgedecode.gguf.trimmed_gguf import TRIM_KEY, map_sha256, trim_gguf
from edgedecode.pack.token_map import write_token_ids

INT32 = 5
ROWS, HIDDEN = 40, 256
TOKENS = ["<s>", *(f"t{id}" for id in range(1, 36)), "a", "b", "ab", "abc"]
MERGES = ["a b", "ab c", " x", "t1 t2"]
KEPT = np.array([0, 3, 4, 5, 17, 36, 37, 38])
TYPES = {"Q4_0": 2, "Q8_0": 8, "Q4_K": 12, "Q6_K": 14, "F16": 1, "F32": F32}
Layers = dict[str, WrittenTensor]


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def array(name: str, kind: int, elements: Sequence[bytes]) -> bytes:
    return text(name) + struct.pack("<IIQ", ARRAY, kind, len(elements)) + b"".join(elements)


def numbers(name: str, kind: int, form: str, values: Sequence[float]) -> bytes:
    return array(name, kind, [struct.pack(f"<{form}", value) for value in values])


def fields(architecture: str = "llama") -> list[bytes]:
    return [
        encoded_field("general.architecture", architecture),
        encoded_field("general.alignment", 64),
        encoded_field(f"{architecture}.block_count", 1),
        encoded_field(f"{architecture}.embedding_length", HIDDEN),
        encoded_field(f"{architecture}.vocab_size", ROWS),
        encoded_field("tokenizer.ggml.model", "gpt2"),
        array("tokenizer.ggml.tokens", TEXT, [text(token) for token in TOKENS]),
        numbers("tokenizer.ggml.scores", FLOAT32, "f", [-id / 2 for id in range(ROWS)]),
        numbers("tokenizer.ggml.token_type", INT32, "i", [3, *([1] * (ROWS - 1))]),
        array("tokenizer.ggml.merges", TEXT, [text(merge) for merge in MERGES]),
        numbers("tokenizer.ggml.suppress_tokens", INT32, "i", [1, 5, 38]),
        encoded_field("tokenizer.ggml.bos_token_id", 0),
        encoded_field("tokenizer.ggml.eos_token_id", 17),
        encoded_field("tokenizer.ggml.padding_token_id", 9),
        encoded_field("tokenizer.huggingface.json", "{}"),
        encoded_field("tokenizer.chat_template", "{{ messages }}"),
        numbers(f"{architecture}.rope.dimension_sections", UINT32, "I", range(ROWS)),
    ]


def tensors(kind: int) -> list[WrittenTensor]:
    rng = np.random.default_rng(kind)

    def made(name: str, *shape: int, kind: int = F32) -> WrittenTensor:
        block, nbytes = BLOCKS[kind]
        return WrittenTensor(name, shape, kind, rng.bytes(int(np.prod(shape)) // block * nbytes))

    return [
        made("token_embd.weight", HIDDEN, ROWS, kind=kind),
        made("blk.0.ffn_up.weight", HIDDEN, ROWS, kind=kind),  # as many rows as tokens by chance
        made("output_norm.weight", HIDDEN),
        made("output.weight", HIDDEN, ROWS, kind=F32),
        made("output.bias", ROWS),
    ]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write(kind: int = 8, *, header: list[bytes] | None = None, stored: list[WrittenTensor] | None = None) -> Path:
        path = tmp_path / "whole.gguf"
        with path.open("wb") as file:
            write_encoded(file, header or fields(), stored or tensors(kind), alignment=64)
        return path

    return write


def vocabulary(ids: Sequence[int] | np.ndarray = KEPT, size: int = ROWS) -> TrimmedVocabulary:
    return TrimmedVocabulary(np.asarray(ids, np.int64), size)


def rows_of(path: Path, contents: Contents, name: str) -> np.ndarray:
    """Return a tensor's bytes, one array row per tensor row."""
    tensor = contents.tensors[name]
    start = contents.start + tensor.offset
    return np.frombuffer(path.read_bytes()[start : start + tensor.nbytes], np.uint8).reshape(tensor.shape[-1], -1)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("piece", [1, 4000, 2**20])
def test_trim_gguf_keeps_rows_bit_for_bit(
    kind: str, piece: int, write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of rows copied at once makes no difference."""
    monkeypatch.setattr(trim, "_PIECE_NBYTES", piece)
    full = write(TYPES[kind])
    out = full.with_name("trim.gguf")
    trim_gguf(full, out, vocabulary())
    before, after = read_contents(full), read_contents(out)
    assert list(before.tensors) == list(after.tensors)
    for name in ("token_embd.weight", "output.weight", "output.bias"):
        kept = rows_of(out, after, name)
        assert len(kept) == len(KEPT)
        np.testing.assert_array_equal(kept, rows_of(full, before, name)[KEPT])
    for name in ("blk.0.ffn_up.weight", "output_norm.weight"):
        assert after.tensors[name].shape == before.tensors[name].shape
        np.testing.assert_array_equal(rows_of(out, after, name), rows_of(full, before, name))
    assert after.alignment == 64
    assert read_header(out).rows == len(KEPT)


def test_trim_gguf_keeps_tokens_scores_types_merges_and_special_tokens(write: Callable[..., Path]) -> None:
    full = write()
    out = full.with_name("trim.gguf")
    trim_gguf(full, out, vocabulary())
    found = read_contents(out, arrays=True)
    assert found.arrays["tokenizer.ggml.tokens"] == tuple(TOKENS[id] for id in KEPT)
    assert found.arrays["tokenizer.ggml.scores"] == tuple(-id / 2 for id in KEPT)
    assert found.arrays["tokenizer.ggml.token_type"] == (3, *([1] * (len(KEPT) - 1)))
    assert found.arrays["tokenizer.ggml.merges"] == ("a b",), "a merge is kept only with both its parts and its result"
    assert found.arrays["tokenizer.ggml.suppress_tokens"] == (3, 7)
    assert found.arrays["llama.rope.dimension_sections"] == tuple(range(ROWS)), (
        "an array as long as the vocabulary by chance"
    )
    assert found.fields["llama.vocab_size"] == len(KEPT)
    assert (found.fields["tokenizer.ggml.bos_token_id"], found.fields["tokenizer.ggml.eos_token_id"]) == (0, 4)
    assert {"tokenizer.ggml.padding_token_id", "tokenizer.huggingface.json"}.isdisjoint(found.fields)
    assert found.fields["tokenizer.chat_template"] == "{{ messages }}"


def test_trim_gguf_copies_other_fields_byte_for_byte(write: Callable[..., Path]) -> None:
    full = write()
    out = full.with_name("trim.gguf")
    trim_gguf(full, out, vocabulary())
    written = out.read_bytes()
    for kept in (0, 1, 2, 3, 5, 15, 16):
        assert fields()[kept] in written


def test_trim_gguf_records_the_digest_of_the_token_map(write: Callable[..., Path], tmp_path: Path) -> None:
    full = write()
    trim_gguf(full, tmp_path / "trim.gguf", vocabulary())
    write_token_ids(tmp_path / "trim.ids", KEPT)
    from edgedecode.pack.integrity import file_sha256

    digest = read_contents(tmp_path / "trim.gguf").fields[TRIM_KEY]
    assert digest == map_sha256(KEPT) == file_sha256(tmp_path / "trim.ids")
    assert digest != map_sha256(KEPT + 1)


def test_trim_gguf_keeps_tokens_that_are_not_utf8(write: Callable[..., Path]) -> None:
    odd = b"\xff\xfe"
    header = fields()
    header[6] = array(
        "tokenizer.ggml.tokens", TEXT, [struct.pack("<Q", 2) + odd, *(text(token) for token in TOKENS[1:])]
    )
    full = write(header=header)
    out = full.with_name("trim.gguf")
    trim_gguf(full, out, vocabulary())
    assert struct.pack("<Q", 2) + odd in out.read_bytes()


def test_trim_gguf_to_the_full_vocabulary_changes_only_its_mark(write: Callable[..., Path]) -> None:
    full = write(header=[field for place, field in enumerate(fields()) if place not in (9, 14)])
    out = full.with_name("trim.gguf")
    trim_gguf(full, out, vocabulary(range(ROWS)))
    before, after = read_contents(full, arrays=True), read_contents(out, arrays=True)
    assert dict(after.fields, **{TRIM_KEY: ""}) == dict(before.fields, **{TRIM_KEY: ""})
    assert after.arrays == before.arrays
    assert full.read_bytes()[before.start :] == out.read_bytes()[after.start :]


# -- bad input -----------------------------------------------------------------------------------------------------


def damaged(name: str, field: bytes) -> list[bytes]:
    return [field if original.startswith(text(name)) else original for original in fields()]


REFUSED: dict[str, tuple[Callable[[Callable[..., Path]], Path], TrimmedVocabulary, type[EdgeDecodeError], str]] = {
    "no file": (lambda write: write().with_name("none.gguf"), vocabulary(), ManifestError, "cannot be read"),
    "another draft's map": (
        lambda write: write(),
        vocabulary(size=ROWS + 1),
        ManifestError,
        "40 rows, the map has 41 ids",
    ),
    "an architecture with further rows per token": (
        lambda write: write(header=fields("gemma3n")),
        vocabulary(),
        CapabilityError,
        "'gemma3n'.*cannot be trimmed there.*--runtime onnx",
    ),
    "a trimmed file": (
        lambda write: write(header=[*fields(), encoded_field(TRIM_KEY, "0")]),
        vocabulary(),
        ManifestError,
        "trimmed draft already",
    ),
    "an output with another number of rows": (
        lambda write: write(
            stored=[replace(tensors(8)[0]), WrittenTensor("output.weight", (256, 2), F32, bytes(2048))]
        ),
        vocabulary(),
        ManifestError,
        "2 rows in output.weight and 40 in its embedding",
    ),
    "too few scores": (
        lambda write: write(header=damaged("tokenizer.ggml.scores", numbers("tokenizer.ggml.scores", 6, "f", [1.0]))),
        vocabulary(),
        ManifestError,
        "scores has 1 elements",
    ),
    "scores that are texts": (
        lambda write: write(
            header=damaged("tokenizer.ggml.scores", array("tokenizer.ggml.scores", TEXT, [text("1")] * ROWS))
        ),
        vocabulary(),
        ManifestError,
        "scores does not hold numbers",
    ),
}
MISTYPED: dict[str, tuple[str, bytes, str]] = {
    "tokens that are numbers": (
        "tokenizer.ggml.tokens",
        numbers("tokenizer.ggml.tokens", INT32, "i", range(1, ROWS + 1)),
        "tokens does not hold texts",
    ),
    "merges that are numbers": (
        "tokenizer.ggml.merges",
        numbers("tokenizer.ggml.merges", INT32, "i", range(ROWS)),
        "merges does not hold texts",
    ),
    "merges that are one text": (
        "tokenizer.ggml.merges",
        encoded_field("tokenizer.ggml.merges", "a b"),
        "merges is not an array",
    ),
    "a special token that is not a number": (
        "tokenizer.ggml.eos_token_id",
        text("tokenizer.ggml.eos_token_id") + struct.pack("<If", FLOAT32, float("nan")),
        "eos_token_id does not hold integers",
    ),
    "a special token that is a text": (
        "tokenizer.ggml.eos_token_id",
        encoded_field("tokenizer.ggml.eos_token_id", "17"),
        "eos_token_id does not hold integers",
    ),
    "suppressed tokens that are fractions": (
        "tokenizer.ggml.suppress_tokens",
        numbers("tokenizer.ggml.suppress_tokens", FLOAT32, "f", [1.0, 5.0]),
        "suppress_tokens does not hold integers",
    ),
    "a size that is a text": (
        "llama.vocab_size",
        encoded_field("llama.vocab_size", str(ROWS)),
        "vocab_size does not hold integers",
    ),
}
"""A field's name, the bytes to put there, and the error message."""
REFUSED |= {
    case: (
        lambda write, name=name, field=field: write(header=damaged(name, field)),
        vocabulary(),
        ManifestError,
        message,
    )
    for case, (name, field, message) in MISTYPED.items()
}


@pytest.mark.parametrize("case", REFUSED)
def test_trim_gguf_refuses_unusable_files_and_leaves_no_file(
    case: str, write: Callable[..., Path], tmp_path: Path
) -> None:
    made, kept, error, message = REFUSED[case]
    source = made(write)
    with pytest.raises(error, match=message) as caught:
        trim_gguf(source, tmp_path / "trim.gguf", kept)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["whole.gguf"]


def test_trimmed_fields_refuse_a_size_of_too_small_a_type(tmp_path: Path) -> None:
    """One byte cannot hold a count of 300 tokens."""
    size = text("llama.vocab_size") + struct.pack("<IB", 0, 200)
    path = tmp_path / "fields"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + size)
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        pytest.raises(Truncated, match="vocab_size is too small for 300"),
    ):
        trimmed_fields(content, vocabulary(range(300), 400))


def test_trim_gguf_interrupted_leaves_the_old_file(
    write: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "trim.gguf"
    out.write_bytes(b"old")

    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(trim, "_picked", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trim_gguf(write(), out, vocabulary())
    assert out.read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["trim.gguf", "whole.gguf"]


def test_trim_gguf_reports_an_unwritable_path(write: Callable[..., Path], tmp_path: Path) -> None:
    source = write()
    with pytest.raises(ExportError, match=r"cannot be written \(No such file.*make room, or give another"):
        trim_gguf(source, tmp_path / "nowhere" / "trim.gguf", vocabulary())
    with pytest.raises(ExportError, match="cannot be written"):
        trim_gguf(source, source / "trim.gguf", vocabulary())


def test_trim_gguf_reports_a_file_that_shrinks_while_it_is_read(
    write: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, read = write(), trim.read_contents

    def cut(path: Path) -> Contents:
        found = read(path)
        path.write_bytes(path.read_bytes()[:-2000])
        return found

    monkeypatch.setattr(trim, "read_contents", cut)
    with pytest.raises(ManifestError, match="became shorter"):
        trim_gguf(source, tmp_path / "trim.gguf", vocabulary())
    assert not (tmp_path / "trim.gguf").exists()
