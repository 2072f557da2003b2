"""Fixtures for `distil`."""

import shutil
from pathlib import Path

import pytest

from edgedecode.library.names import BUNDLED_PACK


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    shutil.copytree(BUNDLED_PACK, tmp_path / "pack")
    return tmp_path / "pack"
