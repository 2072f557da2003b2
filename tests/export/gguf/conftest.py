"""GGUF tests need the gguf package; those that run llama.cpp skip without llama-cpp-python."""

from __future__ import annotations

import pytest

pytest.importorskip("gguf", reason="the export extra is not installed")
