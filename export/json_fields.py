"""Typed access to parsed JSON. Every getter checks the type and names the field in its error."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from edgedecode.errors import ManifestError
from edgedecode.typed_json import JsonValue

_MAX_INTEGER = 1 << 53
"""Upper bound on sizes, counts and ids, safe for 64-bit arithmetic and arrays."""


@dataclass(frozen=True, slots=True)
class Fields:
    """A JSON object and its path for error messages. Every getter raises ManifestError."""

    values: Mapping[str, JsonValue]
    where: str

    @classmethod
    def of(cls, value: JsonValue, where: str) -> Fields:
        """Wrap a parsed value, which must be an object."""
        if not isinstance(value, dict):
            raise ManifestError(f"{where} must be a JSON object, not {type(value).__name__}")
        return cls(value, where)

    def child(self, key: str) -> Fields:
        return Fields.of(self._get(key), f"{self.where}.{key}")

    def children(self, key: str) -> Iterator[tuple[str, Fields]]:
        child = self.child(key)
        return ((name, child.child(name)) for name in child.values)

    def text(self, key: str) -> str:
        value = self._get(key)
        if not isinstance(value, str):
            raise self._wrong(key, "a string", value)
        return value

    def optional_text(self, key: str) -> str | None:
        return None if self.values.get(key) is None else self.text(key)

    def texts(self, key: str) -> tuple[str, ...]:
        value = self._get(key)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(key, "a list of strings", value)
        return tuple(str(item) for item in value)

    def integer(self, key: str, *, low: int, high: int = _MAX_INTEGER) -> int:
        value = self._get(key)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            bounds = f"of at least {low}" if high == _MAX_INTEGER else f"from {low} to {high}"
            raise self._wrong(key, f"an integer {bounds}", value)
        return value

    def optional_integer(self, key: str, *, low: int = 0, high: int = _MAX_INTEGER) -> int | None:
        return None if self.values.get(key) is None else self.integer(key, low=low, high=high)

    def integers(self, key: str) -> tuple[int, ...]:
        value = self._get(key)
        if not isinstance(value, list):
            raise self._wrong(key, "a list of token ids", value)
        result = [
            item for item in value if isinstance(item, int) and not isinstance(item, bool) and 0 <= item <= _MAX_INTEGER
        ]
        if len(result) != len(value):
            raise self._wrong(key, "a list of token ids", value)
        return tuple(result)

    def number(self, key: str) -> float:
        value = self._get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= sys.float_info.max:
            raise self._wrong(key, "a finite number", value)
        return float(value)

    def optional_number(self, key: str) -> float | None:
        return None if self.values.get(key) is None else self.number(key)

    def numbers(self, key: str) -> Mapping[str, float]:
        child = self.child(key)
        return {name: child.number(name) for name in child.values}

    def _get(self, key: str) -> JsonValue:
        if key not in self.values:
            raise ManifestError(f"{self.where} has no {key!r}")
        return self.values[key]

    def _wrong(self, key: str, expected: str, value: JsonValue) -> ManifestError:
        return ManifestError(f"{self.where}.{key} must be {expected}, not {str(value)[:60]!r}")
