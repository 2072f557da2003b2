"""Stops a training, or the writing of texts, in the middle."""

import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from edgedecode.export.distil.texts import Text


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


def enough(count: int, told: list[Text]) -> Callable[[Text], bool]:
    """Return an `advance` that wants this many texts."""

    def advance(text: Text) -> bool:
        told.append(text)
        return len(told) < count

    return advance
