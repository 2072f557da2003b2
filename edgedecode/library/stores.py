"""Finds the models on this machine: in the library, in Python packages, and where other programs keep theirs.

Nothing is written, and no model is opened. Folders that cannot be read count as empty.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.metadata import Distribution, distributions
from pathlib import Path

from edgedecode.cache import area
from edgedecode.pack.manifest import MANIFEST_NAME

from .ollama import ollama_models
from .stored import Store, StoredModel, is_model_name, repository_models

__all__ = ["FOLDERS", "folder_models", "repository_folder", "stored_models"]

FOLDERS = "EDGEDECODE_MODELS"
"""The variable that names folders of models, separated as in PATH."""
_REPOSITORY_SEPARATOR = "--"


def stored_models() -> list[StoredModel]:
    """Return every model found, in the order of `Store`."""
    folders = [Path(folder).expanduser() for folder in os.environ.get(FOLDERS, "").split(os.pathsep) if folder]
    return [
        *_library_models(),
        *_package_models(),
        *_hub_models(),
        *(model for root in _lm_studio() for model in _repositories(root, Store.LM_STUDIO)),
        *(model for root in _ollama() for model in ollama_models(root)),
        *(model for root in _llama_cpp() for model in folder_models(root, Store.LLAMA_CPP)),
        *(model for root in folders for model in folder_models(root)),
    ]


def repository_folder(repository: str) -> str:
    """Return the name of the folder of a repository or a package in the library."""
    return repository.replace("/", _REPOSITORY_SEPARATOR)


def folder_models(root: Path, store: Store = Store.FOLDER) -> list[StoredModel]:
    """Return the GGUF models under a folder, and the packs directly in it."""
    files = [path for path in _files(root) if is_model_name(path.name)]
    packs = [path.parent for path in sorted(root.glob(f"*/{MANIFEST_NAME}"))]
    return [
        *(StoredModel(path.stem, path, store, (path.name,)) for path in files),
        *(StoredModel(path.name, path, store) for path in packs),
    ]


def _files(root: Path) -> list[Path]:
    """Return the GGUF files under a folder. A link to nothing is an interrupted download."""
    return sorted(path for path in root.rglob("*.gguf") if path.is_file())


def _library_models() -> Iterator[StoredModel]:
    for folder in _folders(area("models")):
        name = folder.name.replace(_REPOSITORY_SEPARATOR, "/", 1)
        if "/" in name:
            yield from repository_models(name, folder, _files(folder), Store.LIBRARY)
        else:
            yield from _of_package(name, _files(folder), Store.LIBRARY)
    for folder in _folders(area("packs")):
        name = folder.name.replace(_REPOSITORY_SEPARATOR, "/", 1)
        yield StoredModel(name, folder, Store.LIBRARY, (name.rpartition("/")[2],))


def _package_models() -> Iterator[StoredModel]:
    for distribution in distributions():
        with suppress(OSError, UnicodeDecodeError):
            if ".gguf" in (distribution.read_text("RECORD") or ""):  # fast: most packages list none
                yield from _of_package(distribution.name, _package_files(distribution), Store.PACKAGE)


def _package_files(distribution: Distribution) -> list[Path]:
    found = [Path(str(file.locate())) for file in distribution.files or () if file.suffix == ".gguf"]
    return [path for path in found if path.is_file()]


def _of_package(name: str, files: Iterable[Path], store: Store) -> list[StoredModel]:
    """Return the models of a package: a single one has the package's name."""
    models = [path for path in files if is_model_name(path.name)]
    single = len(models) == 1
    return [
        StoredModel(name if single else f"{name}/{path.name}", path, store, (path.name, path.stem)) for path in models
    ]


def _hub_models() -> Iterator[StoredModel]:
    for folder in _folders(_hub_cache()):
        kind, _, name = folder.name.partition(_REPOSITORY_SEPARATOR)
        if kind == "models" and (snapshot := _snapshot(folder)) is not None:
            repository = name.replace(_REPOSITORY_SEPARATOR, "/", 1)
            yield from repository_models(repository, snapshot, _files(snapshot), Store.HUB)
            if (snapshot / MANIFEST_NAME).is_file():
                yield StoredModel(repository, snapshot, Store.HUB, (repository.rpartition("/")[2],))


def _snapshot(folder: Path) -> Path | None:
    """Return the folder of a repository's main revision, or of the newest."""
    with suppress(OSError, UnicodeDecodeError):
        main = folder / "snapshots" / (folder / "refs" / "main").read_text(encoding="utf-8").strip()
        if main.is_dir():
            return main
    return max(_folders(folder / "snapshots"), key=lambda path: path.stat().st_mtime, default=None)


def _repositories(root: Path, store: Store) -> Iterator[StoredModel]:
    for owner in _folders(root):
        for folder in _folders(owner):
            yield from repository_models(f"{owner.name}/{folder.name}", folder, _files(folder), store)


def _folders(root: Path) -> list[Path]:
    """Return the folders in a folder that are not hidden."""
    with suppress(OSError):
        return sorted(path for path in root.iterdir() if path.is_dir() and path.name[0] != ".")
    return []


def _home() -> Path:
    with suppress(RuntimeError):
        return Path.home()
    return Path(os.devnull)  # which has nothing in it


def _xdg_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or _home() / ".cache")


def _hub_cache() -> Path:
    home = os.environ.get("HF_HOME") or _xdg_cache() / "huggingface"
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub")


def _ollama() -> list[Path]:
    """Return the stores of the user, and of the service that Ollama's installer makes on Linux."""
    if override := os.environ.get("OLLAMA_MODELS"):
        return [Path(override)]
    service = [Path("/usr/share/ollama/.ollama/models")] if sys.platform == "linux" else []
    return [_home() / ".ollama" / "models", *service]


def _lm_studio() -> list[Path]:
    """Return its folder of models, and that of older versions."""
    return [_home() / ".lmstudio" / "models", _home() / ".cache" / "lm-studio" / "models"]


def _llama_cpp() -> list[Path]:
    local = os.environ.get("LOCALAPPDATA") if sys.platform == "win32" else None
    caches = _home() / "Library" / "Caches" if sys.platform == "darwin" else Path(local or _xdg_cache())
    return [Path(os.environ.get("LLAMA_CACHE") or caches / "llama.cpp")]
