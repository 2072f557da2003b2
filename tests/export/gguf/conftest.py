"""GGUF tests need the gguf package; those that run llama.cpp skip without llama-cpp-python."""

import pytest

pytest.importorskip("gguf", reason="the export extra is not installed")
