"""GGUF headers: all damage gives a one-line error before native code opens the file. Needs no engine."""

import struct
from dataclasses import replace
from pathlib import Path

import pytest

from edgedecode.errors import ManifestError
from edgedecode.gguf.contents import read_contents
from edgedecode.gguf.fields import FieldReader
from edgedecode.gguf.header import read_header
from edgedecode.pack.gguf_check import check_header
from edgedecode.runtimes.llama.files.engine_probe import CONTEXT, HEAD_SIZE, HEADS, HIDDEN, MLP, ROWS, tiny_model
from tests.contract.conftest import GgufOpener
from tests.contract.toy_graph import ToyShape

TINY = tiny_model()


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def with_field(name: str, kind: int, value: bytes) -> bytes:
    """Return the tiny model with one more field."""
    (count,) = struct.unpack_from("<Q", TINY, 16)
    field = text(name) + struct.pack("<I", kind) + value
    grown = TINY[:16] + struct.pack("<Q", count + 1) + field + TINY[24:]
    return grown + bytes(64)  # the data moves to the next aligned byte


def written(path: Path) -> Path:
    path.write_bytes(TINY)
    return path


def refused(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    with pytest.raises(ManifestError) as caught:
        read_header(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def test_read_header_of_the_tiny_model(path: Path) -> None:
    path.write_bytes(TINY)
    header = read_header(path)
    assert (header.architecture, header.layers, header.rows, header.context) == ("llama", 1, ROWS, CONTEXT)
    assert (header.hidden_size, header.mlp_size) == (HIDDEN, MLP)
    assert (header.heads, header.kv_heads, header.head_size) == (HEADS, HEADS, HEAD_SIZE)
    assert 7 * HIDDEN * HIDDEN // 2 < header.quantized_nbytes < len(TINY)


def test_read_header_agrees_with_the_gguf_package(gguf_opener: GgufOpener) -> None:
    shape = ToyShape(window=40)
    entry = gguf_opener.entry(shape)
    path = gguf_opener.root(shape) / entry.gguf
    header = read_header(path)
    assert (header.rows, header.layers, header.kv_heads, header.head_size) == (128, 2, 2, 16)
    assert (header.heads, header.context, header.window, header.quantized_nbytes) == (4, 512, 40, 0)
    check_header(header, entry, path=path)
    for changed in ({"rows": 130}, {"layers": 3}, {"hidden_size": 65}, {"kv_heads": 1}, {"head_size": 8}):
        with pytest.raises(ManifestError, match="manifest says"):
            check_header(header, replace(entry, **changed), path=path)


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.001, 0.002, 0.5, 0.999])
def test_read_header_refuses_truncated_files(path: Path, share: float) -> None:
    message = refused(path, TINY[: int(len(TINY) * share)])
    assert "truncated" in message or "empty" in message


def test_read_header_detects_every_cut_within_the_header(path: Path) -> None:
    for end in range(4, 1500, 7):
        refused(path, TINY[:end])


def test_read_header_refuses_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="cannot be read"):
        read_header(tmp_path / "none.gguf")
    with pytest.raises(ManifestError, match="cannot be read"):
        read_header(tmp_path)


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (b"GGML" + TINY[4:], "is not a GGUF file"),
        (
            b"version https://git-lfs.example/spec/v1\noid sha256:" + bytes(64),
            "is Git LFS's pointer to the file, not the file: run",
        ),
        (b"<!doctype html>\n<html>" + TINY, "is a web page, not the file: download the file itself"),
        (b"\xef\xbb\xbf \n<html>" + TINY, "is a web page"),
        (bytes(400), "begins with zeros: its download did not finish"),
        (b"tjgg" + TINY[4:], "is not a GGUF file but of GGML, an older format"),
        (b"GG", "is not a GGUF file: give one, or download or copy it again"),
        (b"PK\3\4" + TINY[4:], "is not a GGUF file"),
        (b"GGUF" + struct.pack(">I", 3) + TINY[8:], "big-endian"),
        (b"GGUF" + struct.pack("<I", 4) + TINY[8:], "version 4, this edgedecode reads up to 3: upgrade"),
        (b"GGUF" + struct.pack("<I", 1) + TINY[8:], "too old"),
        (b"GGUF" + struct.pack("<I", 0) + TINY[8:], "too old"),
        (b"GGUF" + struct.pack("<IQ", 3, 2**40) + TINY[16:], "truncated or damaged"),
        (b"GGUF" + struct.pack("<IQQ", 3, 5, 2**63) + TINY[24:], "truncated or damaged"),
    ],
)
def test_read_header_refuses_other_newer_and_damaged_formats(path: Path, start: bytes, words: str) -> None:
    assert words in refused(path, start)


def test_read_header_refuses_split_files(path: Path) -> None:
    content = with_field("split.count", 2, struct.pack("<H", 3))
    assert "part 1 of 3 of a split file" in refused(path, content)


def test_read_header_refuses_a_vocabulary_only_file(path: Path) -> None:
    fields = text("general.architecture") + struct.pack("<I", 8) + text("llama")
    assert "vocabulary" in refused(path, b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + fields)


def test_read_header_refuses_other_than_language_models(path: Path) -> None:
    assert "does not hold a language model" in refused(path, TINY.replace(b"token_embd.weight", b"token_embd.wEight"))


def test_read_header_refuses_a_token_count_that_differs_from_the_rows(path: Path) -> None:
    tokens = struct.pack("<IQ", 8, 2) + text("a") + text("b")
    assert "lists 2 tokens for 64 rows" in refused(path, with_field("tokenizer.ggml.tokens", 9, tokens))


@pytest.mark.parametrize(
    ("kind", "value"),
    [(99, b""), (9, struct.pack("<IQ", 4, 2**50)), (9, struct.pack("<IQ", 9, 1)), (9, struct.pack("<IQ", 77, 1))],
)
def test_read_header_refuses_impossible_fields(path: Path, kind: int, value: bytes) -> None:
    assert "truncated or damaged" in refused(path, with_field("some.field", kind, value))


@pytest.mark.parametrize("kind", [4, 40, 1000])
def test_read_header_refuses_an_unknown_tensor_type(path: Path, kind: int) -> None:
    place = TINY.index(b"output_norm.weight") + len("output_norm.weight") + 12
    assert "unknown type" in refused(path, TINY[:place] + struct.pack("<I", kind) + TINY[place + 4 :])


def test_read_header_refuses_a_misaligned_tensor_or_one_beyond_the_end(path: Path) -> None:
    place = TINY.index(b"output_norm.weight") + len("output_norm.weight") + 16
    for offset, words in ((3, "not aligned to 32"), (2**40, "ends at byte")):
        assert words in refused(path, TINY[:place] + struct.pack("<Q", offset) + TINY[place + 8 :])


def test_read_header_refuses_tensors_that_overlap(path: Path) -> None:
    first, second = sorted(read_contents(written(path)).tensors.values(), key=lambda tensor: tensor.offset)[:2]
    place = TINY.index(second.name.encode()) + len(second.name) + 4 + 8 * len(second.shape) + 4
    words = f"the tensor '{second.name}' starts inside another one"
    assert first.nbytes > 32
    assert words in refused(path, TINY[:place] + struct.pack("<Q", first.offset + 32) + TINY[place + 8 :])


def test_read_header_refuses_a_name_that_is_listed_twice(path: Path) -> None:
    first, second = "blk.0.attn_q.weight", "blk.0.attn_k.weight"
    assert f"lists the tensor '{first}' twice" in refused(path, TINY.replace(second.encode(), first.encode()))
    assert "lists the field 'llama.block_count' twice" in refused(
        path, with_field("llama.block_count", 4, struct.pack("<I", 1))
    )


def test_read_header_takes_the_largest_of_per_layer_fields(path: Path) -> None:
    path.write_bytes(with_field("llama.attention.sliding_window", 9, struct.pack("<IQ3I", 4, 3, 7, 9, 8)))
    assert read_header(path).window == 9


@pytest.mark.parametrize(
    ("name", "kind", "value", "words"),
    [
        ("general.alignment", 4, struct.pack("<I", 8), "aligned to 8 bytes, the engine needs a multiple of 32"),
        ("llama.rope.freq_base", 6, struct.pack("<f", 0.0), "freq_base is 0.0"),
        ("llama.rope.freq_base", 6, struct.pack("<f", float("inf")), "freq_base is inf"),
    ],
)
def test_read_header_refuses_values_that_the_engine_asserts(
    path: Path, name: str, kind: int, value: bytes, words: str
) -> None:
    """The reader uses the last field of a name, so that appending one changes it."""
    (count,) = struct.unpack_from("<Q", TINY, 16)
    reader = FieldReader(TINY)
    reader.offset = 24
    for _ in range(count):
        reader.field()
    field = text(name) + struct.pack("<I", kind) + value
    changed = TINY[:16] + struct.pack("<Q", count + 1) + TINY[24 : reader.offset] + field + TINY[reader.offset :]
    assert words in refused(path, changed + bytes(128))


def sparse(path: Path, fields: bytes, *, count: int = 1, nbytes: int = 1 << 30) -> Path:
    """Write a file of these fields and then a hole: zeros that take no disk space."""
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, count) + fields)
        file.truncate(nbytes)
    return path


@pytest.mark.parametrize(
    ("fields", "count", "words"),
    [
        (text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 4_000_000), 1, "have 4000000 elements"),
        (text("tokenizer.ggml.merges") + struct.pack("<IIQ", 9, 8, 4_000_000), 1, "have 4000000 elements"),
        (text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 100_000_000), 1, "claims 100000000 elements"),
        (text("general.name") + struct.pack("<IQ", 8, 900_000_000), 1, "900000000 bytes are missing"),
        (struct.pack("<Q", 900_000_000), 1, "900000000 bytes are missing"),
        (text("tokenizer.ggml.tokens") + struct.pack("<IIQQ", 9, 8, 1, 900_000_000), 1, "beyond the file"),
        (
            b"".join(text(f"{i}") + struct.pack("<IIQ", 9, 0, 4096) + bytes(4096) for i in range(600)),
            600,
            "2101248 elem",
        ),
        (b"", 100_000, "claims 0 tensors and 100000 fields"),
    ],
)
@pytest.mark.parametrize("arrays", [False, True])
def test_read_header_refuses_a_hole_before_reading_through_it(
    path: Path, fields: bytes, count: int, words: str, arrays: bool
) -> None:
    with pytest.raises(ManifestError, match=words):
        read_contents(sparse(path, fields, count=count), arrays=arrays)


def test_read_header_counts_the_numbers_it_keeps(path: Path) -> None:
    fields = text("a") + struct.pack("<IIQ", 9, 0, 4_000_000)
    with pytest.raises(ManifestError, match="have 4000000 elements"):
        read_contents(sparse(path, fields), arrays=True)
    assert read_contents(path).fields == {"a": 4_000_000}


@pytest.mark.parametrize(
    ("tokens", "twice"),
    [
        (["a", "b", "c"], None),
        (["a", "b", "c", "b"], "b"),
        (["", "", ""], None),
        (["", "[EMPTY_0]"], "[EMPTY_0]"),
        (["", "[EMPTY_1]"], None),
        ([], None),
    ],
)
def test_repeated_token_is_found(path: Path, tokens: list[str], twice: str | None) -> None:
    listed = b"".join(text(token) for token in tokens)
    field = text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, len(tokens)) + listed
    assert read_contents(sparse(path, field)).twice == twice
