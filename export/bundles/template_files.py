"""Copies the files of `templates/`, of `device/` and the native library's into a bundle, and fills in a few names."""

import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import edgedecode
from edgedecode.pack.chips import CHIPS

from .bundle import Bundle
from .request import NATIVE, PackageRequest, Target

_TEMPLATES = Path(__file__).parent / "templates"
_DEVICE = Path(__file__).parent / "device"
_SOURCES = (
    "native/CMakeLists.txt",
    "native/exports.map",
    "native/[ijrs]*/**/*",
    "onnx/kernels/*.cpp",
    "onnx/kernels/*.h",
)
"""Of the native library, without its checks."""
_CPP = "gradle/app/src/main/cpp"
_TEXT = {".sh", ".ps1", ".kt", ".kts", ".xml", ".md", ".json", ".properties", ".txt"}


def copy_templates(root: Path, request: PackageRequest, bundle: Bundle) -> None:
    """Copy what the bundle's target gets; `@NAME@` is replaced in texts."""
    values = _values(request, bundle)
    for name, path in _sources(request.target):
        data = path.read_bytes()
        if path.suffix in _TEXT and path.is_relative_to(_TEMPLATES):
            text = data.decode()
            for word, value in values.items():
                text = text.replace(f"@{word}@", value)
            data = text.encode()
        place = root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
        if path.suffix == ".sh":
            place.chmod(0o755)


def _sources(target: Target) -> list[tuple[str, Path]]:
    """Return the templates that a target gets, and the self-test's program, by the name in the bundle."""
    found: list[tuple[str, Path]] = []
    for folder in target.templates:
        base, place = _TEMPLATES / folder, f"{folder}/" if folder == "gradle" else ""
        paths = sorted(path for path in base.rglob("*") if path.is_file())
        found += [(f"{place}{path.relative_to(base).as_posix()}", path) for path in paths]
    if target.provider == NATIVE:
        found += [(f"{_CPP}/{path.relative_to(runtimes()).as_posix()}", path) for path in native_sources()]
    elif target.provider:
        found += [(f"selftest/{path.name}", path) for path in sorted(_DEVICE.glob("*.py"))]
    return found


def native_sources() -> list[Path]:
    """Return the files that cmake needs for the native library."""
    return sorted(path for pattern in _SOURCES for path in runtimes().glob(pattern) if path.is_file())


def runtimes() -> Path:
    """Return the folder with the native library's sources and the kernels'."""
    found = find_spec("edgedecode.runtimes")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def _values(request: PackageRequest, bundle: Bundle) -> dict[str, str]:
    socs = {soc for model in bundle.models.values() for graph in model.graphs for soc in graph.socs}
    dependencies = "\n".join(f'    implementation("{each}")' for each in bundle.runtime)
    plan = bundle.plan
    options = {"memory": plan.budget_nbytes, "threads": plan.threads}
    options |= {"context": request.context} if request.context else {}
    cases = [f'  {name}) set -- {shlex.join(words)} "$@" ;;' for name, words in bundle.commands.items()]
    return {
        "APP_ID": request.package,
        "VERSION": edgedecode.__version__,
        "OPTIONS": ", ".join(f'"{name}" to {value}' for name, value in options.items()),
        "NAME": re.sub(r"[^A-Za-z0-9._-]", "-", bundle.name).lstrip(".-") or "pack",  # it is part of shell commands
        "ABI": bundle.abi,
        "ABIS": ", ".join(f'"{abi}"' for abi in bundle.abi.split()),
        "MIN_SDK": str(bundle.min_sdk),
        "SOC_MODELS": " ".join(sorted({model for soc in socs for model in CHIPS[soc].models})),
        "RUNTIME": dependencies if bundle.min_sdk else " ".join(f'"{each}"' for each in bundle.runtime),
        "COMMANDS": "\n".join(cases),
    }
