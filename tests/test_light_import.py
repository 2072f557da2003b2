"""Importing the package and printing help load no engine; checked in fresh child processes."""

import json
import subprocess
import sys

import pytest

HEAVY = ("huggingface_hub", "llama_cpp", "onnx", "onnx_ir", "onnxruntime", "onnxruntime_genai", "torch", "transformers")
SHOW_LOADED = """
import json, sys
top = sorted({name.partition(".")[0] for name in sys.modules})
print("\\n" + json.dumps(top))
"""


def loaded_after(code: str, *words: str) -> set[str]:
    """Run `code` in a fresh interpreter and return the top-level names of the modules it has loaded."""
    child = subprocess.run(
        [sys.executable, "-c", code + SHOW_LOADED, *words], capture_output=True, text=True, timeout=120, check=False
    )
    assert child.returncode == 0, child.stderr
    return set(json.loads(child.stdout.splitlines()[-1]))


def test_import_of_the_package_loads_nothing_heavy() -> None:
    assert not loaded_after("import edgedecode, edgedecode.cli") & {*HEAVY, "rich", "numpy", "tokenizers"}


def test_import_of_the_core_loads_no_engine() -> None:
    loaded = loaded_after("import edgedecode, edgedecode.testing; edgedecode.load")
    assert "numpy" in loaded
    assert not loaded & {*HEAVY, "rich"}


def test_help_and_loading_all_commands_load_no_engine() -> None:
    code = """
import contextlib
from importlib.metadata import entry_points
from edgedecode.cli import main
with contextlib.suppress(SystemExit):
    main(["--help"])
for entry in entry_points(group="edgedecode.commands"):
    entry.load()
"""
    assert not loaded_after(code) & set(HEAVY)


@pytest.mark.slow
def test_an_answer_on_one_engine_imports_nothing_of_another() -> None:
    code = """
import contextlib, io, sys
from edgedecode.cli import main
with contextlib.redirect_stdout(io.StringIO()):
    assert main(["generate", "hi", "-n", "2"]) == 0
ours = [name for name in sys.modules if name.startswith("edgedecode.")]
assert not [name for name in ours if name.startswith("edgedecode.runtimes.llama")]
assert len(ours) <= int(sys.argv[1]), len(ours)
"""
    pytest.importorskip("onnxruntime")
    for most in (163, 151):  # the first time, the pack is checked
        loaded_after(code, str(most))
