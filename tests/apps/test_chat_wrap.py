"""Word wrap of streamed answers: against its definition, on random text and on examples."""

from __future__ import annotations

import io
import re
import unicodedata
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len

from edgedecode.apps.chat import answer_writer
from edgedecode.apps.chat.answer_writer import AnswerWriter
from edgedecode.apps.chat.word_wrap import BREAK, Piece, WordWrap, wrapped
from edgedecode.apps.colour import Paint

WORDS = st.sampled_from(
    [
        *("a", "the", "lighthouse", "x" * 30, "don't", "naïve", "e\u0301te\u0301", "1.5", "-", "`code`", "a\u00a0b"),
        *("中文字", "日本語。", "「引用」", "😀", "👨\u200d👩\u200d👧", "❤\ufe0f", "🇩🇪"),
    ]
)
GAPS = st.sampled_from(
    [" ", " ", " ", "  ", "\n", "\n\n", "\n    ", "\n- ", "\t", "", "\n```python\n", "\n```\n", "\n~~~\n"]
)
TEXTS = st.lists(st.tuples(WORDS, GAPS), max_size=40).map(lambda parts: "".join(word + gap for word, gap in parts))
WIDTHS = st.integers(min_value=12, max_value=60)


def pieces_of(text: str, *, width: int | None, cuts: list[int] | None = None) -> list[Piece]:
    wrap = WordWrap(lambda: width)
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts or [])})
    pieces: list[Piece] = []
    for start, end in pairwise(places):
        pieces += wrap.push(text[start:end])
    return [*pieces, *wrap.flush()]


def joined(pieces: list[Piece]) -> str:
    return "".join(text for text, _ in pieces)


def columns_of(line: str) -> int:
    columns = 0
    for part in re.split(r"(\t)", line):
        columns = (columns // 8 + 1) * 8 if part == "\t" else columns + cell_len(part)
    return columns


def in_code(lines: list[str]) -> list[bool]:
    """Tell for each line of a text whether it is in a code block or one of its fences."""
    found, fence = [], ""
    for line in lines:
        marks = re.fullmatch(r"\s*(```+|~~~+)([^`]*)", line)
        found.append(bool(fence) or bool(re.match(r"\s*(```|~~~)", line)))
        if not fence and marks:
            fence = marks[1]
        elif fence and marks and marks[1].startswith(fence) and not marks[2].strip():
            fence = ""
    return found


def has_a_break_opportunity(line: str) -> bool:
    """Return whether a line has two words, or two East Asian characters that a line may end between."""
    words = re.split(r"[ \t]+", line.strip(" \t"))
    if len(words) > 1:
        return True
    clusters = re.findall(r"(?:\u200d?.[\u0300-\u036f\ufe0f]*(?:\u200d.[\ufe0f]*)*)", "".join(words))
    return any(
        max(cell_len(left[0]), cell_len(right[0])) > 1  # a mark that widens a character allows no break next to it
        and unicodedata.category(right[0])[0] != "P"
        and unicodedata.category(left[-1])[0] != "P"
        and "\u00a0" not in left + right
        for left, right in pairwise(clusters)
    )


@given(text=TEXTS, width=WIDTHS, cuts=st.lists(st.integers(0, 1000), max_size=12))
@example(text="x" * 30 + " y", width=12, cuts=[])
@example(text="aaaaaaaaaaa b", width=12, cuts=[])
def test_word_wrap_adds_line_breaks_only_and_does_not_depend_on_chunks(text: str, width: int, cuts: list[int]) -> None:
    pieces = pieces_of(text, width=width, cuts=cuts)
    assert "".join(piece for piece, source in pieces if source != BREAK) == text
    assert {piece for piece, source in pieces if source == BREAK} <= {"\n"}
    assert joined(pieces) == wrapped(text, width)


@given(text=TEXTS, width=WIDTHS)
@example(text="the `code`\ta a a ", width=12)
def test_word_wrap_keeps_lines_within_the_width_except_single_words_and_code(text: str, width: int) -> None:
    lines = text.split("\n")
    for line, code in zip(lines, in_code(lines), strict=True):
        if code:
            continue
        for part in wrapped(line, width).split("\n"):
            if columns_of(part) > width:
                assert not has_a_break_opportunity(part), part


@given(text=TEXTS, width=WIDTHS)
def test_word_wrap_leaves_code_blocks_unchanged_and_wraps_each_line_by_itself(text: str, width: int) -> None:
    lines = text.split("\n")
    expected = [line if code else wrapped(line, width) for line, code in zip(lines, in_code(lines), strict=True)]
    assert wrapped(text, width) == "\n".join(expected)


@given(text=TEXTS, width=WIDTHS)
def test_word_wrap_breaks_no_word_and_no_character(text: str, width: int) -> None:
    pieces = pieces_of(text, width=width)
    before = ""
    for position, (piece, source) in enumerate(pieces):
        if source == BREAK:
            after = pieces[position + 1][0]
            narrow = cell_len(before[-1]) == 1 and cell_len(after[0]) == 1
            assert not narrow or before[-1].isspace() or after[0].isspace() or before[-1] in "\ufe0f🇪"
            assert cell_len(after[0]) or after[0] == "\t"
            assert "\u200d" not in before[-1] + after[0]
        before += piece


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one two three four five", "one two \nthree four \nfive"),
        ("one two thr", "one two thr"),
        ("one two thre", "one two \nthre"),
        ("  indented words here", "  indented \nwords here"),
        ("abcdefghijklmnop x", "abcdefghijklmnop \nx"),
        ("x abcdefghijklmnop", "x \nabcdefghijklmnop"),
        ("中文字中文字中文字", "中文字中文\n字中文字"),
        ("中文字中。文字", "中文字中。\n文字"),
        ("abc def中文字中", "abc def中文\n字中"),
        ("😀😀😀😀😀😀😀", "😀😀😀😀😀\n😀😀"),
        ("e\u0301" * 11 + " x", "e\u0301" * 11 + " \nx"),
        ("a\tb\tcd ef", "a\tb\n\tcd \nef"),
        (
            "```\none two three four five\n```\none two three four",
            "```\none two three four five\n```\none two \nthree four",
        ),
        ("~~~~\none two three four\n~~~\n~~~~\none two three", "~~~~\none two three four\n~~~\n~~~~\none two \nthree"),
        ("one two\n\nthree four five", "one two\n\nthree four \nfive"),
    ],
)
def test_word_wrap_in_twelve_columns(text: str, expected: str) -> None:
    assert wrapped(text, 12) == expected


@pytest.mark.parametrize("width", [None, 0, 11])
def test_word_wrap_without_a_usable_width_changes_and_delays_nothing(width: int | None) -> None:
    wrap = WordWrap(lambda: width)
    assert wrap.push("a long line of many words, in a te", "target") == [
        ("a long line of many words, in a te", "target")
    ]
    assert wrap.flush() == []


def test_word_wrap_keeps_sources_and_holds_back_at_most_one_word() -> None:
    wrap = WordWrap(lambda: 12)
    assert wrap.push("one squir", "target") == [("one ", "target")]
    assert wrap.push("re", "model") == []
    assert wrap.push("ls", "model") == [("\n", BREAK), ("squir", "target"), ("rels", "model")]
    assert wrap.push("!", "target") == [("!", "target")]  # the first word of a line waits for nothing
    assert wrap.push("\na b", "target") == [("\na ", "target")]
    assert wrap.flush() == [("b", "target")]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_answer_writer_wraps_colours_and_escapes_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_writer, "terminal_columns", lambda stream: 12)
    chunks = [("one squir", "target"), ("rels\x1b[2J", "model"), (" x", "draft")]
    for stream, expected in (
        (Terminal(), "one \nsquir\x1b[32mrels\\x1b[2J\x1b[0m\x1b[33m \x1b[0m\n\x1b[33mx\x1b[0m\n"),
        (io.StringIO(), "one squir\x1b[32mrels\x1b[2J\x1b[0m\x1b[33m x\x1b[0m\n"),
    ):
        writer = AnswerWriter(stream, Paint.for_stream(stream, when="always"))
        for text, source in chunks:
            writer.write(text, source)
        writer.end()
        assert stream.getvalue() == expected


def test_answer_writer_adds_nothing_to_an_answer_that_ends_its_line() -> None:
    writer = AnswerWriter(stream := io.StringIO(), Paint(on=False))
    writer.write("one\n", "target")
    writer.write("", "target")
    writer.end()
    assert stream.getvalue() == "one\n"


def test_word_wrap_uses_a_new_width_from_the_next_line_on() -> None:
    width = 12
    wrap = WordWrap(lambda: width)
    pieces = wrap.push("one two ")
    width = 20
    pieces += [*wrap.push("three four five six"), *wrap.flush()]
    assert joined(pieces) == "one two \nthree four five six"
