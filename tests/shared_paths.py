"""Where the material beside the project lies, for tests that use it and skip without it."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"
needs_shared = pytest.mark.skipif(not SHARED.exists(), reason="needs the shared folder beside the project")
