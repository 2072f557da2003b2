"""One fork server for all fuzzing, skipped where processes cannot fork."""

import os
from collections.abc import Iterator

import pytest

from .running import Fuzz

if not hasattr(os, "fork"):
    pytest.skip("fuzzing runs its inputs in forks", allow_module_level=True)


@pytest.fixture(scope="session")
def fuzz(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fuzz]:
    fuzz = Fuzz(tmp_path_factory.mktemp("fuzz"))
    yield fuzz
    fuzz.close()
