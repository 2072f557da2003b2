"""Folders of onnxruntime-genai's builder, made in a child process: the builder is a program, not a library."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path


def build(model: Path, out: Path, *options: str, precision: str = "int4") -> Path:
    """Build the model in `model` for the CPU; `options` are the builder's extra ones, as name=value."""
    words = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(model), "-o", str(out)]
    words += ["-p", precision, "-e", "cpu", "-c", str(out.with_name(f"{out.name}-cache"))]
    words += ["--extra_options", *options] if options else []
    child = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert child.returncode == 0, child.stderr[-2000:]
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(model / name, out / name)  # the builder's copy is made by another tokenizer class
    return out
