"""JSON in the native library against Python's."""

import json
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.native.conftest import Check

_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
)
_VALUES = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(_VALUES, min_size=30, max_size=60), ascii=st.booleans())
def test_values_come_back(native_check: Check, values: list[object], ascii: bool) -> None:
    found = native_check("json", lines=[json.dumps(value, ensure_ascii=ascii) for value in values], raw=True)
    for value, text in zip(values, found, strict=True):
        back = json.loads(text)
        assert back == value
        assert json.dumps(back) == json.dumps(value)  # whole numbers stay whole, and the sign of zero


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": 1, "a": 2}', 'the key "a" comes twice'),
        ("[1,]", "a value is missing"),
        ("[1", "a comma or ] is missing"),
        ('{"a" 1}', "a colon is missing"),
        ("01", "more text"),
        ("1.", "a digit is missing"),
        ("1e999", "too large"),
        ("NaN", "a value is missing"),
        ('"\\ud800"', "half of a surrogate pair"),
        ('"\\udc00\\ud800"', "half of a surrogate pair"),
        ('"\\x41"', "an unknown escape"),
        ('"a\tb"', "a control character"),
        ('"a', "does not end"),
        ("", "too early"),
        ("[" * 66 + "]" * 66, "more than 64 levels"),
    ],
)
def test_invalid_text_is_refused(native_check: Check, text: str, reason: str) -> None:
    (line,) = native_check("json", lines=[text], raw=True)
    assert line.startswith("error: ")
    assert reason in line


def test_errors_say_where(native_check: Check) -> None:
    (line,) = native_check("json", lines=['{"a": [1,]}'], raw=True)
    assert "is not valid JSON, at character 10: a value is missing" in line


def test_the_same_number_comes_back(native_check: Check) -> None:
    numbers = [0.1, 1e-320, 5e-324, 1.7976931348623157e308, math.pi, 2.0**53 + 2, 1e23]
    found = native_check("json", lines=[json.dumps(each) for each in numbers], raw=True)
    assert [json.loads(text) for text in found] == numbers
