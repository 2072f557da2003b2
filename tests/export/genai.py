"""Run onnxruntime-genai's builder in this process, where its frameworks are already loaded."""

import io
import logging
import runpy
import shutil
import sys
import warnings
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest


def build(model: Path, out: Path, *options: str, precision: str = "int4") -> Path:
    """Build the model in `model` for the CPU; `options` are the builder's extra options, as name=value."""
    words = ["-i", str(model), "-o", str(out)]
    words += ["-p", precision, "-e", "cpu", "-c", str(out.with_name(f"{out.name}-cache"))]
    words += ["--extra_options", *options] if options else []
    printed = io.StringIO()
    with ExitStack() as undo:
        undo.enter_context(redirect_stdout(printed))
        undo.enter_context(redirect_stderr(printed))
        undo.enter_context(warnings.catch_warnings(action="ignore"))
        undo.callback(logging.root.setLevel, logging.root.level)
        patch = undo.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(logging.root, "handlers", [])
        patch.setattr(sys, "path", sys.path[:])
        patch.setattr(sys, "argv", ["builder", *words])
        runpy.run_module("onnxruntime_genai.models.builder", run_name="__main__", alter_sys=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(model / name, out / name)  # the builder writes its copy with another tokenizer class
    return out
