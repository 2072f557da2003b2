"""Write a tokenizer for the native library: tables that it maps, so that opening reads next to nothing.

The layout is that of runtimes/native/src/text/tables.h: all numbers little-endian, sorted where the library searches.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers

from edgedecode.errors import ExportError
from edgedecode.text.control_tokens import ControlTokens
from edgedecode.text.token_text import Layout, Pieces, component_steps
from edgedecode.text.tokenizer import Tokenizer

from .normal_forms import FormTables, form_tables
from .splits import CODES, compile_steps
from .turns import thinking_turns, turns_of

FILE = "tokenizer.bin"
_MAGIC, _VERSION, _ALIGNMENT = b"edtokens", 1, 8
_KNOWN, _SPECIAL, _CONTROL, _TAG, _BYTE, _LEFT, _RIGHT, _LATE = (1 << bit for bit in range(8))
_NONE = 0xFFFFFFFF
_NEVER, _FIRST, _EACH, _ALWAYS = range(4)
"""When a space mark comes before a stretch of text."""
_SPACE_MARK = "\u2581"
_LACKS = "which the native library lacks"
_PROBE = "a"
_Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class _Model:
    """What tokenizer.json has under "model", checked."""

    vocabulary: Mapping[str, int]
    merges: Sequence[tuple[str, str]]
    whole_words: bool

    @classmethod
    def of(cls, inner: tokenizers.Tokenizer, name: str) -> "_Model":
        state = json.loads(inner.model.__getstate__())
        if state["type"] != "BPE":
            raise ExportError(f"{name} has a vocabulary of the type {state['type']}, {_LACKS}: it has BPE")
        for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
            if state.get(key):
                raise ExportError(f"{name} has the setting {key}={state[key]!r}, {_LACKS}")
        merges = [each.split(" ", 1) if isinstance(each, str) else each for each in state["merges"]]
        return cls(state["vocab"], [(left, right) for left, right in merges], bool(state.get("ignore_merges")))


@dataclass(frozen=True, slots=True)
class _Marks:
    """How spaces are marked (SentencePiece), and whether text is composed before (NFC)."""

    marked: bool
    when: int
    composes: bool


def write_text(tokenizer: Tokenizer, folder: Path, *, name: str) -> dict[str, object]:
    """Write a tokenizer's tables into a folder, and return its chat template's turns for native.json.

    name: for errors. Raises ExportError for a tokenizer or a template that the native library cannot do.
    """
    turns = turns_of(tokenizer.chat_template, name=name)
    write_tokenizer(tokenizer, folder / FILE, name=name)
    thinking = thinking_turns(tokenizer.chat_template, name=name)
    return {**turns.as_json(), "thinking": {which: each.as_json() for which, each in thinking.items()}}


def write_tokenizer(tokenizer: Tokenizer, path: Path, *, name: str) -> None:
    """Write a tokenizer's tables. name: for errors. Raises ExportError for one that the library cannot do."""
    inner = tokenizers.Tokenizer.from_str(tokenizer.definition)
    pieces, model = Pieces(inner), _Model.of(inner, name)
    if pieces.layout not in (Layout.BYTES, Layout.FALLBACK):
        raise ExportError(f"{name} has a decoder {inner.decoder}, {_LACKS}")
    steps = component_steps(inner.pre_tokenizer)
    marks = _marks(component_steps(inner.normalizer), steps, name)
    byte_level = pieces.layout is Layout.BYTES
    if byte_level == marks.marked or byte_level != any(step["type"] == "ByteLevel" for step in steps):
        raise ExportError(f"{name} splits text into other tokens than its decoder joins, {_LACKS}")
    texts = _texts(pieces, tokenizer.size, byte_level=byte_level)
    programs = compile_steps(steps, marked=marks.marked, name=name)
    classes, masks = programs.classes()
    code = [(kind, mask, *rest) for kind, mask, *rest in programs.code]
    forms = form_tables() if marks.composes else None
    flags, added = _flags(inner, tokenizer, pieces, name=name)
    leading, trailing = _around(inner, name)
    stripped = sum(int(str(step["start"])) for step in component_steps(inner.decoder) if step["type"] == "Strip")
    facts = [tokenizer.size, byte_level, model.whole_words, stripped, marks.marked, marks.when, marks.composes]
    tables: list[npt.NDArray[Any]] = [
        _numbers(facts),
        *_joined(texts),
        np.array(flags, np.uint8),
        _numbers(_sorted(texts, model, pieces, byte_level=byte_level)),
        _numbers(_byte_ids(pieces, model, byte_level=byte_level, name=name)),
        *_pairs(model, tokenizer.size),
        _numbers([id for _, id in added]),
        *_joined([text for text, _ in added]),
        *_blocks(classes),
        _numbers(programs.steps),
        _numbers(code),
        np.array(masks, np.uint64),
        *_form_tables(forms),
        _numbers(leading),
        _numbers(trailing),
    ]
    _write(path, tables)


def _write(path: Path, tables: Sequence[npt.NDArray[Any]]) -> None:
    header = bytearray(_MAGIC + np.array([_VERSION, len(tables)], "<u4").tobytes())
    body, start = bytearray(), len(header) + 16 * len(tables)
    for table in tables:
        data = table.astype(table.dtype.newbyteorder("<")).tobytes()
        header += np.array([start + len(body), len(data)], "<u8").tobytes()
        body += data + bytes(-len(data) % _ALIGNMENT)
    path.write_bytes(header + body)


def _numbers(values: object) -> npt.NDArray[np.uint32]:
    return np.array(values, np.uint32)


def _joined(texts: Sequence[bytes]) -> tuple[npt.NDArray[np.uint32], _Bytes]:
    """Return where each text ends, from a zero on, and the texts one after another."""
    return _numbers(np.cumsum([0, *map(len, texts)])), np.frombuffer(b"".join(texts), np.uint8)


def _blocks(values: _Bytes) -> tuple[npt.NDArray[np.uint16], _Bytes]:
    """Return a property of every code point as numbers of blocks of 256, and the different blocks."""
    blocks, places = np.unique(values.reshape(-1, 256), axis=0, return_inverse=True)
    return places.astype(np.uint16).ravel(), blocks.ravel()


def _form_tables(forms: FormTables | None) -> tuple[npt.NDArray[Any], ...]:
    if forms is None:
        return (*_blocks(np.zeros(CODES, np.uint8)), *(_numbers([]) for _ in range(3)))
    return (*_blocks(forms.forms), forms.decomposed, forms.parts, forms.composed)


def _marks(normalizer: Sequence[Mapping[str, object]], steps: Sequence[Mapping[str, object]], name: str) -> _Marks:
    marked, when, composes = False, _NEVER, False
    for step in (*normalizer, *(each for each in steps[:1] if each["type"] == "Metaspace")):
        match step:
            case {"type": "NFC"} if not marked:
                composes = True
            case {"type": "Prepend", "prepend": str(text)} if text == _SPACE_MARK:
                when = _ALWAYS
            case {"type": "Replace", "pattern": {"String": " "}, "content": str(text)} if text == _SPACE_MARK:
                marked = True
            case {"type": "Metaspace", "replacement": str(text), "prepend_scheme": str(scheme)} if text == _SPACE_MARK:
                marked, when = True, {"never": when, "first": max(when, _FIRST), "always": max(when, _EACH)}[scheme]
            case _:
                raise ExportError(f"{name} has the normalizer {step}, {_LACKS}")
    return _Marks(marked, when, composes)


def _texts(pieces: Pieces, size: int, *, byte_level: bool) -> list[bytes]:
    """Return what each token is spelled as, in the bytes that it stands for where all tokens are bytes."""
    return [pieces.bytes_of(id) if byte_level else (pieces.token(id) or "").encode() for id in range(size)]


def _sorted(texts: Sequence[bytes], model: _Model, pieces: Pieces, *, byte_level: bool) -> list[int]:
    """Return the ids of the model's own vocabulary by their texts, without those that no text becomes."""
    spelled = [id for token, id in model.vocabulary.items() if not byte_level or pieces.spells_bytes(token)]
    return sorted(spelled, key=texts.__getitem__)


def _byte_ids(pieces: Pieces, model: _Model, *, byte_level: bool, name: str) -> list[int]:
    """Return the token of each byte."""
    found = [_NONE] * 256
    for token, id in model.vocabulary.items():
        if byte_level:
            data = pieces.bytes_of(id) if len(token) == 1 and pieces.spells_bytes(token) else b""
            if len(data) == 1:
                found[data[0]] = id
        elif (byte := pieces.byte(token)) is not None and token == f"<0x{byte:02X}>":
            found[byte] = id
    if _NONE in found and not byte_level:
        raise ExportError(f"{name} has no token for the byte {found.index(_NONE)}: unknown characters, {_LACKS}")
    return found


def _pairs(model: _Model, size: int) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    """Return where each left token's pairs begin, and the pairs: right token, rank, and what they become."""
    ids = model.vocabulary
    ranks = {(ids[left], ids[right]): (rank, ids[left + right]) for rank, (left, right) in enumerate(model.merges)}
    rows = np.array(sorted((*pair, *made) for pair, made in ranks.items()), np.uint32).reshape(-1, 4)
    return _numbers(np.searchsorted(rows[:, 0], np.arange(size + 1))), np.ascontiguousarray(rows[:, 1:])


def _flags(
    inner: tokenizers.Tokenizer, tokenizer: Tokenizer, pieces: Pieces, *, name: str
) -> tuple[list[int], list[tuple[bytes, int]]]:
    """Return every token's flags, and the added tokens by their text."""
    flags, normalizes = [0] * tokenizer.size, bool(component_steps(inner.normalizer))
    for id in range(tokenizer.size):
        if (text := pieces.token(id)) is not None:
            flags[id] = _KNOWN | _BYTE * (pieces.byte(text) is not None)
    control = ControlTokens(inner, tokenizer.chat_template.source)
    added = list[tuple[bytes, int]]()
    for id, token in inner.get_added_tokens_decoder().items():
        if token.single_word or (token.normalized and normalizes):
            what = "single words only" if token.single_word else "normalized text"
            raise ExportError(f"{name} looks for the added token {token.content!r} in {what}, {_LACKS}")
        flags[id] |= _SPECIAL * token.special
        flags[id] |= _CONTROL * (token.content in control.texts) | _TAG * (token.content in control.tags)
        flags[id] |= _LEFT * token.lstrip | _RIGHT * token.rstrip | _LATE * token.normalized
        if token.content:
            added.append((token.content.encode(), id))
    return flags, sorted(added)


def _around(inner: tokenizers.Tokenizer, name: str) -> tuple[list[int], list[int]]:
    """Return the tokens that the post-processor puts before a text and behind it."""
    bare = inner.encode(_PROBE, add_special_tokens=False).ids
    whole = inner.encode(_PROBE, add_special_tokens=True).ids
    for start in range(len(whole) - len(bare) + 1):
        if whole[start : start + len(bare)] == bare:
            return whole[:start], whole[start + len(bare) :]
    raise ExportError(f"{name} has the post-processor {inner.post_processor}, {_LACKS}")
