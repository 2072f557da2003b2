"""The native library, built once and again where a source has changed."""

import json
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from edgedecode.locks import wait_for_lock
from tests.made_once import PATIENCE

SOURCES = Path(__file__).parents[2] / "runtimes" / "native"
Check = Callable[..., list[Any]]


@pytest.fixture(scope="session")
def native_build(pytestconfig: pytest.Config) -> Path:
    """The folder with `edgedecode-check`, `edgedecode-run` and the library."""
    if shutil.which("cmake") is None or shutil.which("make") is None or shutil.which("c++") is None:
        pytest.skip("cmake, make or a C++ compiler is missing")
    kept = pytestconfig.cache.mkdir("native")
    folder = kept / "build"
    lock = wait_for_lock(kept / "build.lock", seconds=PATIENCE)
    assert lock is not None, f"another worker has been building for {PATIENCE:.0f} seconds"
    with lock:
        choices = ["-DEDGEDECODE_CHECKS=ON", f"-DEDGEDECODE_JDK={_jdk()}"]
        configure = ["cmake", "-S", str(SOURCES), "-B", str(folder), "-G", "Unix Makefiles", *choices]
        for command in (configure, ["cmake", "--build", str(folder), "-j2"]):
            built = subprocess.run(command, capture_output=True, text=True, check=False)
            assert built.returncode == 0, built.stderr[-4000:]
    return folder


def _jdk() -> str:
    """Return the folder of the JDK whose compiler is called; empty: there is none."""
    compiler = shutil.which("javac")
    home = Path(compiler).resolve().parents[1] if compiler else Path()
    return str(home) if (home / "include/jni.h").is_file() else ""


@pytest.fixture(scope="session")
def native_check(native_build: Path) -> Check:
    """Run a subcommand of `edgedecode-check` with values or texts as lines of input; return its lines, parsed."""

    def check(name: str, *arguments: str, lines: Sequence[Any], raw: bool = False) -> list[Any]:
        text = "".join(f"{line if isinstance(line, str) and raw else json.dumps(line)}\n" for line in lines)
        command = [str(native_build / "edgedecode-check"), name, *arguments]
        done = subprocess.run(command, input=text.encode(), capture_output=True, check=False, timeout=600)
        assert done.returncode == 0, done.stderr.decode(errors="replace")[-2000:]
        found = done.stdout.decode().split("\n")[:-1]
        return found if raw else [json.loads(line) for line in found]

    return check
