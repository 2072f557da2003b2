"""How answers are judged."""

import pytest

from edgedecode.apps.calibrate.answer_numbers import is_number, last_number
from edgedecode.apps.calibrate.arms import is_correct
from edgedecode.apps.calibrate.task_files import Kind, Task

NUMBERS = [
    ("The answer is 34.", "34"),
    ("77 + 47 = 124.", "124"),
    ("It costs $1,234.50 in all.", "1234.5"),
    ("1,234,567 people", "1234567"),
    ("the list 3, 4, 5", "5"),
    ("-7", "-7"),
    ("−7 degrees", "-7"),
    ("it fell by -$5", "-5"),
    ("it fell by $-5", "-5"),
    ("10-3=7", "7"),
    ("between 5-9", "9"),
    ("+12", "12"),
    (".5 of it", "0.5"),
    ("1.5e3 and nothing else", "1500"),
    ("5kg", "5"),
    ("50%", "50"),
    ("16 - 7 = <<16-7=9>>9\n#### 18\nso 3 steps", "18"),
    ("#### 1,018 apples", "1018"),
    ("step 4: done ####", "4"),
    ("007", "7"),
    ("no number", None),
    ("", None),
    ("x2 and v1.2", None),
    ("12,34", "34"),
    ("about 1e3 or 2.5e-1", "0.25"),
    ("in 2024, 12 apples.", "12"),
    ("1,2,3.", "3"),
]


@pytest.mark.parametrize(("text", "number"), NUMBERS, ids=[text for text, _ in NUMBERS])
def test_last_number(text: str, number: str | None) -> None:
    found = last_number(text)
    assert (found is None) == (number is None)
    assert found is None or found == last_number(number or "")


@pytest.mark.parametrize("text", ["18", "1,018", "-3.5", "$5", "50%", "12 km", " 7. ", "3 apples"])
def test_is_number(text: str) -> None:
    assert is_number(text)


@pytest.mark.parametrize("text", ["", "Paris", "3 and 4", "3/4", "the 5th", "1.2.3", "5 red apples"])
def test_is_not_a_number(text: str) -> None:
    assert not is_number(text)


JUDGED = [
    (Kind.EXACT, "Paris is big.", " Paris\n is  big. ", True),
    (Kind.EXACT, "Paris is big.", "paris is big.", False),
    (Kind.EXACT, "Paris", "", False),
    (Kind.NUMBER, "The answer is 34.", "He has 20 + 15 - 1 = 34 candles", True),
    (Kind.NUMBER, "The answer is 34.", "34 of 35", False),
    (Kind.NUMBER, "1,018", "#### 1018.0", True),
    (Kind.NUMBER, "34", "many", False),
    (Kind.WRITTEN, "", "as the target  has it", True),
    (Kind.WRITTEN, "", "anything", False),
]


@pytest.mark.parametrize(("kind", "reference", "answer", "correct"), JUDGED)
def test_judgement(kind: Kind, reference: str, answer: str, correct: bool) -> None:
    task = Task("tasks:1", "family", kind, (), ("Question?",), reference)
    assert is_correct(task, answer, by_target="as the target has it") is correct
