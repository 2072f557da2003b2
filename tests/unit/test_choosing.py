"""Which of several answers is chosen."""

import pytest

from edgedecode import InputError, TokenLogprob
from edgedecode.sessions.choosing import last_number, likeliest, pattern_reader, vote


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("3 sheep, so 1,200.50 in all.", "1200.5"),
        ("It is 12.0", "12"),
        ("minus -7!", "-7"),
        ("100", "100"),
        ("none", None),
        ("", None),
    ],
)
def test_the_last_number_however_it_is_written(text: str, said: str | None) -> None:
    assert last_number(text) == said


def test_the_most_frequent_answer_wins_and_the_earliest_of_equal_ones() -> None:
    made = vote(["it is 5", "I do not know", "about 7.0", "7", "5 + 2 = 7"])
    assert made == (2, {"7": 3, "5": 1})
    tie = vote(["6", "8", "8", "6"])
    assert tie is not None
    assert tie.chosen == 0
    assert vote(["I do not know"]) is None


def test_a_pattern_reads_its_last_match_or_its_first_group() -> None:
    assert pattern_reader(r"[ABC]")("A or B") == "B"
    assert pattern_reader(r"answer:\s*(\w+)|none")("answer: A, answer: B ") == "B"
    assert pattern_reader(r"answer:\s*(\w+)|none")("none") is None
    with pytest.raises(InputError, match="is no regular expression"):
        pattern_reader("(")


def test_the_likeliest_has_the_largest_mean() -> None:
    rows = [[TokenLogprob(1, -2.0), TokenLogprob(2, -1.0)], [TokenLogprob(1, -1.2)], [], [TokenLogprob(1, -1.2)]]
    assert likeliest(rows) == 1
    assert likeliest([[], []]) == 0
