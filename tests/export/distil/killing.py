"""Kills a training in the middle."""

import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path


def kill_when(words: Sequence[str], out: Path, name: str, nbytes: int = 0) -> None:
    """Run a training and kill it once its file `name` has `nbytes`; again if it was over before, on a busy machine."""
    for _ in range(5):
        shutil.rmtree(out, ignore_errors=True)
        with subprocess.Popen(words) as running:
            while running.poll() is None and not ((out / name).exists() and (out / name).stat().st_size >= nbytes):
                time.sleep(0.005)
            running.kill()
        if not (out / "model.safetensors").exists():
            return
    raise AssertionError("the training was over each time before it was killed")
