"""Typed access to JSON: every wrong type is refused with the field's name."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edgedecode.errors import ManifestError
from edgedecode.export.json_fields import Fields
from edgedecode.typed_json import JsonValue

DATA: dict[str, JsonValue] = {
    "text": "a",
    "number": 1.5,
    "integer": 3,
    "flag": True,
    "nothing": None,
    "list": ["a", "b"],
    "ids": [1, 2],
    "mixed": [1, "a"],
    "child": {"x": 1, "y": 2.5},
    "nan": float("nan"),
    "infinite": float("inf"),
    "huge": 10**400,
    "negative": -1,
}
FIELDS = Fields.of(DATA, "top")


def test_json_fields_accept_the_right_types() -> None:
    assert FIELDS.text("text") == "a"
    assert FIELDS.optional_text("nothing") is None
    assert FIELDS.optional_text("absent") is None
    assert FIELDS.texts("list") == ("a", "b")
    assert FIELDS.integer("integer", low=3) == 3
    assert FIELDS.optional_integer("nothing") is None
    assert FIELDS.integers("ids") == (1, 2)
    assert FIELDS.number("number") == 1.5
    assert FIELDS.number("integer") == 3.0
    assert FIELDS.optional_number("absent") is None
    assert FIELDS.numbers("child") == {"x": 1.0, "y": 2.5}
    assert FIELDS.child("child").number("y") == 2.5


@pytest.mark.parametrize(
    ("get", "key"),
    [
        (FIELDS.text, "integer"),
        (FIELDS.text, "nothing"),
        (FIELDS.optional_text, "ids"),
        (FIELDS.texts, "text"),
        (FIELDS.texts, "mixed"),
        (lambda key: FIELDS.integer(key, low=0), "flag"),
        (lambda key: FIELDS.integer(key, low=0), "number"),
        (lambda key: FIELDS.integer(key, low=0), "negative"),
        (FIELDS.optional_integer, "text"),
        (FIELDS.integers, "mixed"),
        (FIELDS.integers, "text"),
        (FIELDS.number, "flag"),
        (FIELDS.number, "nan"),
        (FIELDS.number, "infinite"),
        (FIELDS.number, "huge"),
        (FIELDS.optional_number, "text"),
        (FIELDS.child, "list"),
        (FIELDS.numbers, "text"),
        (FIELDS.text, "absent"),
        (FIELDS.child, "absent"),
    ],
)
def test_json_fields_name_the_field_of_a_wrong_type(get: Callable[[str], object], key: str) -> None:
    with pytest.raises(ManifestError, match=rf"^top(\.{key} must be| has no '{key}')") as refusal:
        get(key)
    assert len(str(refusal.value)) < 140
    assert "\n" not in str(refusal.value)


def test_json_fields_refuse_a_value_that_is_not_an_object() -> None:
    with pytest.raises(ManifestError, match="manifest must be a JSON object, not list"):
        Fields.of([], "manifest")


def test_json_fields_name_the_path_of_a_nested_field() -> None:
    nested = Fields.of({"models": {"target": {"rows": "many"}}}, "manifest")
    (role, target), *_ = nested.children("models")
    assert role == "target"
    with pytest.raises(ManifestError, match=r"^manifest\.models\.target\.rows must be an integer of at least 1"):
        target.integer("rows", low=1)
