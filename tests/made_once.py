"""Build read-only test fixtures once per run, shared by all xdist workers; cache compiled programs across runs."""

import hashlib
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from edgedecode.locks import wait_for_lock

PATIENCE = 1800.0


def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the temporary folder of this run, the same one in every worker."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


def made_once(place: Path, make: Callable[[Path], object]) -> Path:
    """Return `place`, a folder or file written by `make`: the first worker that asks builds it, the others wait."""
    place.parent.mkdir(parents=True, exist_ok=True)
    lock = wait_for_lock(place.with_name(f"{place.name}.lock"), seconds=PATIENCE)
    assert lock is not None, f"another worker has been building {place} for {PATIENCE:.0f} seconds"
    with lock:
        if not place.exists():
            unfinished = place.with_name(f"{place.name}.unfinished-{os.getpid()}")
            make(unfinished)
            unfinished.rename(place)
    return place


def compiled(config: pytest.Config, name: str, command: Sequence[str], *, folder: Path) -> Path:
    """Return the output of a compiler command, to which `-o` and a path are added.

    Cached across runs by the compiler's version, the command and the sources in `folder`; only the latest is kept.
    """
    version = subprocess.run([command[0], "--version"], capture_output=True, check=True).stdout
    content = [path.read_bytes() for path in sorted(folder.rglob("*")) if path.suffix in (".cpp", ".h")]
    digest = hashlib.sha256()
    for part in (version, *map(str.encode, command), *content):
        digest.update(b"%d " % len(part) + part)
    kept = config.cache.mkdir("compiled")
    place = kept / f"{name}-{digest.hexdigest()[:16]}"

    def make(out: Path) -> None:
        for older in kept.glob(f"{name}-*"):
            if not older.name.startswith(place.name):
                older.unlink()
        built = subprocess.run([*command, "-o", str(out)], capture_output=True, text=True, check=False)
        assert built.returncode == 0, built.stderr[-2000:]

    return made_once(place, make)
