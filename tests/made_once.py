"""What several tests read and none changes is made once a run, also where several worker processes share the run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from edgedecode.locks import wait_for_lock

PATIENCE = 1800.0


def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of this run, the same one in every worker."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


def made_once(place: Path, make: Callable[[Path], object]) -> Path:
    """Return `place`, a folder or a file that `make` wrote; the first worker that asks makes it, the others wait."""
    place.parent.mkdir(parents=True, exist_ok=True)
    lock = wait_for_lock(place.with_name(f"{place.name}.lock"), seconds=PATIENCE)
    assert lock is not None, f"another worker has been making {place} for {PATIENCE:.0f} seconds"
    with lock:
        if not place.exists():
            unfinished = place.with_name(f"{place.name}.unfinished-{os.getpid()}")
            make(unfinished)
            unfinished.rename(place)
    return place
