"""Path of the shared folder next to the project; tests that need it are skipped without it."""

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"
needs_shared = pytest.mark.skipif(not SHARED.exists(), reason="needs the shared folder next to the project")
