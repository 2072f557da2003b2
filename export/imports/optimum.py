"""Runs optimum's exporter as a child process, then imports its graphs.

Optimum needs a different version of transformers, so it has a separate environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from edgedecode.cache import area
from edgedecode.errors import ExportError, RuntimeUnavailable
from edgedecode.pack.manifest import Manifest
from edgedecode.pack.new_folder import check_place
from edgedecode.typed_json import JsonValue

from ..base_model import copy_text_files, fetch_model, read_json
from ..graph.checkpoint import weight_files
from ..stages import Stages

if TYPE_CHECKING:
    from .imported_pack import ImportRequest

_PACKAGES = ("torch==2.13.*", "optimum-onnx[onnxruntime]==0.1.*")
_SCRIPTS = "Scripts" if os.name == "nt" else "bin"


@dataclass(frozen=True, slots=True)
class OptimumRequest:
    """The models to export (folders or hub ids), and how to import the result."""

    target: str
    draft: str | None
    make_environment: bool
    """Create the environment if it is missing, which downloads about 300 MB."""
    importing: ImportRequest
    """Settings of the import; `target` and `draft` are replaced by optimum's output."""


def export_with_optimum(request: OptimumRequest, stages: Stages) -> Manifest:
    """Export every model with optimum, then import and copy the results, which are temporary.

    Raises ExportError, and RuntimeUnavailable if there is no environment and creating one is not allowed.
    """
    from .onnx_import import import_pair

    names = {"target": request.target} | ({"draft": request.draft} if request.draft is not None else {})
    with stages.stage("check"):
        check_place(request.importing.out, nbytes=0)
    models = {role: fetch_model(name, stages) for role, name in names.items()}
    with stages.stage("configurations"):
        configs = {role: _config(model) for role, model in models.items()}
    with stages.stage("environment"):
        scripts = find_environment(make=request.make_environment)
    with TemporaryDirectory(prefix="edgedecode-optimum-") as place:
        exported: dict[str, Path] = {}
        for role, model in models.items():
            with stages.stage(f"{role}: optimum"):
                staged = _staged(model, configs[role], Path(place) / role / "model")
                exported[role] = Path(place) / role / _title(names[role])
                _run_exporter(scripts, staged, exported[role])
                copy_text_files(model, exported[role])
        folders = replace(request.importing, target=exported["target"], draft=exported.get("draft"), copy=True)
        return import_pair(folders, stages)


def find_environment(*, make: bool) -> Path:
    """Return the environment's folder of programs; if there is none, create it with `make`.

    Raises RuntimeUnavailable, naming the two commands that create it.
    """
    folder = area("optimum")
    scripts = folder / _SCRIPTS
    if _program(scripts).is_file():
        return scripts
    commands = _commands(folder)
    if not make:
        lines = " && ".join(" ".join(_quoted(word) for word in command) for command in commands)
        raise RuntimeUnavailable(
            f"optimum needs a separate environment: add --make-environment (downloads about 300 MB), or run: {lines}"
        )
    for command in commands:
        _run(command, what="the environment for optimum could not be created")
    return scripts


def readable_config(config: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Convert a config.json of transformers 5 for older versions, which would silently use the default RoPE."""
    rope = config.get("rope_parameters")
    if not isinstance(rope, dict) or "rope_theta" in config:
        return config
    old = {**config, "rope_theta": rope.get("rope_theta", 10000.0)}
    rest = {key: value for key, value in rope.items() if key != "rope_theta"}
    if rest.get("rope_type", "default") != "default":
        old["rope_scaling"] = rest
    return old


def _config(model: Path) -> dict[str, JsonValue]:
    """Read a model's configuration. Raises ExportError for models with Python code or pickled weights."""
    config = read_json(model / "config.json")
    if not isinstance(config, dict):
        raise ExportError(f"{model} is not a model folder: it has no config.json")
    if config.get("auto_map"):
        raise ExportError(f"{model} needs its own Python code (auto_map in config.json), which is never run")
    weight_files(model)
    return config


def _staged(model: Path, config: dict[str, JsonValue], folder: Path) -> Path:
    """Create the folder that optimum reads: links to safetensors, text files, and a configuration it understands."""
    folder.mkdir(parents=True)
    copy_text_files(model, folder)
    for path in weight_files(model):
        (folder / path.name).symlink_to(path.resolve())
    (folder / "config.json").write_text(json.dumps(readable_config(config)), encoding="utf-8")
    return folder


def _run_exporter(scripts: Path, model: Path, out: Path) -> None:
    words = ["export", "onnx", "--model", str(model), "--task", "text-generation-with-past"]
    words += ["--framework", "pt", "--device", "cpu", "--dtype", "fp32", str(out)]
    _run([str(_program(scripts)), *words], what="optimum could not export the model")


def _run(command: Sequence[str], *, what: str) -> None:
    """Run a child process and wait for it; an exception here, such as Ctrl-C, kills it.

    Raises ExportError with the last line of its output if it fails.
    """
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    child = subprocess.run(
        command,
        capture_output=True,
        text=True,
        errors="replace",
        env=environment,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if child.returncode:
        lines = [line.strip() for line in (child.stderr or child.stdout).splitlines() if line.strip()]
        raise ExportError(f"{what}: {(lines or ['it printed nothing'])[-1][:300]}")


def _commands(folder: Path) -> list[list[str]]:
    python = str(folder / _SCRIPTS / "python")
    return [[sys.executable, "-m", "venv", str(folder)], [python, "-m", "pip", "install", *_PACKAGES]]


def _quoted(word: str) -> str:
    return f"'{word}'" if any(sign in word for sign in "[*= ") else word


def _program(scripts: Path) -> Path:
    return scripts / ("optimum-cli.exe" if os.name == "nt" else "optimum-cli")


def _title(name: str) -> str:
    """Return the name of the model's source in the pack: the folder's name, or the hub id's last part."""
    return Path(name).expanduser().resolve().name
