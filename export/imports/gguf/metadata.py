"""A file's fields by key and type. A key that is missing, or of another type, has no value."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from edgedecode.gguf.contents import Contents

__all__ = ["Metadata"]


@dataclass(frozen=True, slots=True)
class Metadata:
    """Typed access to the fields and arrays of a GGUF file that was read with its arrays."""

    contents: Contents

    def text(self, key: str) -> str:
        """Return a text; empty where there is none."""
        value = self.contents.fields.get(key)
        return value if isinstance(value, str) else ""

    def integer(self, key: str) -> int | None:
        value = self.contents.fields.get(key)
        return value if isinstance(value, int) and key not in self.contents.arrays else None

    def number(self, key: str) -> float | None:
        """Return a finite number."""
        value = self.contents.fields.get(key)
        return float(value) if isinstance(value, (int, float)) and isfinite(value) else None

    def flag(self, key: str, *, usual: bool) -> bool:
        value = self.integer(key)
        return usual if value is None else bool(value)

    def texts(self, key: str) -> tuple[str, ...]:
        """Return an array of texts; empty where there is none."""
        return tuple(value for value in self.contents.arrays.get(key, ()) if isinstance(value, str))

    def numbers(self, key: str) -> tuple[float, ...]:
        """Return an array of numbers; empty where there is none."""
        return tuple(value for value in self.contents.arrays.get(key, ()) if not isinstance(value, str))
