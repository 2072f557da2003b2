"""Packaging: the entry points and the content of the wheel."""

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import distribution, entry_points
from pathlib import Path
from typing import Any

import pytest

import edgedecode

ROOT = Path(__file__).parents[1]
FOLDERS = ("edgedecode", "apps", "bench", "export", "runtimes")
DATA = (
    *("edgedecode/packs/**/*", "edgedecode/py.typed", "apps/*.jsonl", "apps/library/*.jsonl"),
    *("bench/measure/*.jsonl", "apps/serve/page/**/*", "export/bundles/templates/**/*", "export/trim/*.jsonl"),
    *("export/distil/*.jsonl", "export/heads/shipped/*.gguf", "export/bundles/bionic.txt"),
    *("runtimes/native/*.*", "runtimes/native/[ijrs]*/**/*"),
    *("runtimes/onnx/kernels/*.cpp", "runtimes/onnx/kernels/*.h"),
)
PACK_LIMIT = 15 * 2**20


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def _installed_path(path: Path) -> str:
    """Return the path in the wheel of a file of the source tree."""
    inside = path.relative_to(ROOT).as_posix()
    return inside if inside.startswith("edgedecode/") else f"edgedecode/{inside}"


def test_version_is_the_same_everywhere(project: dict[str, Any]) -> None:
    assert edgedecode.__version__ == project["project"]["version"] == distribution("edgedecode").version
    assert f"## [{edgedecode.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_entry_points_installed_are_the_declared_ones(project: dict[str, Any]) -> None:
    """An editable install keeps the entry points it was made with: run `pip install -e .` again after a change."""
    for group, declared in project["project"]["entry-points"].items():
        assert {entry.name: entry.value for entry in entry_points(group=group)} == declared


def test_entry_points_resolve() -> None:
    for group in (
        "edgedecode.commands",
        "edgedecode.drafters",
        "edgedecode.named_drafters",
        "edgedecode.runtimes",
        "console_scripts",
    ):
        ours = [entry for entry in entry_points(group=group) if entry.value.startswith("edgedecode.")]
        assert all(entry.load() is not None for entry in ours), group


def _built(copy: Path, **environment: str) -> Path:
    """Build the wheel from a copy of the source tree, which stays clean."""
    for folder in FOLDERS:
        unused = shutil.ignore_patterns("__pycache__", "_rows.*", "node_modules")
        shutil.copytree(ROOT / folder, copy / folder, ignore=unused)
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    shutil.copytree(ROOT / "tests", copy / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    build = "from setuptools.build_meta import build_wheel; print(build_wheel('.'))"
    child = subprocess.run(
        [sys.executable, "-c", build],
        cwd=copy,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, **environment},
    )
    assert child.returncode == 0, child.stderr
    return copy / child.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """Build a wheel without the kernels; return the size of each file inside."""
    with zipfile.ZipFile(_built(tmp_path_factory.mktemp("source"), EDGEDECODE_BUILD_KERNELS="0")) as archive:
        return {entry.filename: entry.file_size for entry in archive.infolist()}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="names compilers by variables")
@pytest.mark.parametrize("kernels", ["0", "1"])
def test_wheel_tag_allows_every_python_version(tmp_path: Path, kernels: str) -> None:
    """With a compiler that fails: the wheel is built without the library, tagged for the platform or for any."""
    environment = {"CC": "false", "CXX": "false", "EDGEDECODE_BUILD_KERNELS": kernels}
    found = _built(tmp_path, **environment)
    assert f"-{'py3-none-any' if kernels == '0' else 'cp311-abi3-'}" in found.name
    with zipfile.ZipFile(found) as archive:
        assert not [name for name in archive.namelist() if Path(name).stem == "_rows"]


def test_kernel_library_does_not_use_the_python_api() -> None:
    from edgedecode.runtimes.onnx.kernels.library import LIBRARY

    if not LIBRARY.is_file():
        pytest.skip("the kernels were not built")
    content = LIBRARY.read_bytes()
    assert b"RegisterCustomOps" in content
    assert not [name for name in (b"PyInit", b"PyObject", b"Py_", b"PyErr") if name in content]


@pytest.mark.slow
def test_wheel_contains_the_package_and_nothing_else(wheel: dict[str, int]) -> None:
    modules = {_installed_path(file) for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")}
    data = {_installed_path(path) for pattern in DATA for path in ROOT.glob(pattern) if path.is_file()}
    records = {name for name in wheel if name.partition("/")[0].endswith(".dist-info")}
    assert set(wheel) - records == modules | data
    assert any(name.endswith("/LICENSE") for name in records)


@pytest.mark.slow
def test_wheel_limits_the_size_of_the_bundled_pack(wheel: dict[str, int]) -> None:
    assert sum(size for name, size in wheel.items() if name.startswith("edgedecode/packs/")) <= PACK_LIMIT
