"""Stop strings: the shown text does not depend on the chunks, and no part of a match is ever shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedecode.errors import InputError
from edgedecode.text.stop_strings import StopStrings


def run(stops: list[str], *, chunks: list[str]) -> tuple[str, str | None]:
    watch = StopStrings(stops)
    shown = "".join(watch.push(chunk) for chunk in chunks) + watch.flush()
    return shown, watch.matched


def expected(stops: list[str], *, text: str) -> tuple[str, str | None]:
    found = [(text.find(stop), len(stop), stop) for stop in stops if stop in text]
    if not found:
        return text, None
    start, _, stop = min(found)
    return text[:start], stop


@given(
    stops=st.lists(st.text("abc", min_size=1, max_size=5), max_size=4),
    chunks=st.lists(st.text("abcd", max_size=6), max_size=12),
)
def test_stop_strings_give_the_earliest_match_for_any_chunks(stops: list[str], chunks: list[str]) -> None:
    assert run(stops, chunks=chunks) == expected(stops, text="".join(chunks))


@given(
    stops=st.lists(st.text("ab", min_size=1, max_size=6), min_size=1, max_size=3),
    chunks=st.lists(st.text("abc", max_size=4), max_size=12),
)
def test_stop_strings_show_a_prefix_and_hold_less_than_a_stop_string(stops: list[str], chunks: list[str]) -> None:
    watch, shown, seen = StopStrings(stops), "", ""
    for chunk in chunks:
        shown, seen = shown + watch.push(chunk), seen + chunk
        assert seen.startswith(shown)
        if watch.matched is None:
            assert len(seen) - len(shown) < max(map(len, stops))


def test_stop_strings_hold_a_tail_until_it_is_decided() -> None:
    watch = StopStrings(["</s>"])
    assert watch.push("hi <") == "hi "
    assert watch.push("/") == ""
    assert watch.push("p>") == "</p>"
    assert (watch.push("x</s>y"), watch.matched) == ("x", "</s>")
    assert (watch.push("more"), watch.flush()) == ("", "")


def test_stop_strings_report_the_shorter_of_two_with_one_start() -> None:
    assert run(["stop it", "stop"], chunks=["please stop it"]) == ("please ", "stop")


def test_stop_strings_are_literal() -> None:
    assert run(["a.c", "(x"], chunks=["abc (", "x)"]) == ("abc ", "(x")


@pytest.mark.parametrize("stops", [[""], ["ok", ""], "text"])
def test_stop_strings_that_are_unusable_are_refused(stops: list[str]) -> None:
    with pytest.raises(InputError, match="stop string"):
        StopStrings(stops)
