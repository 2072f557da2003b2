"""Finds the models on this machine: in the library, in Python packages, and where other programs keep theirs.

Nothing is written, and no model is opened. Folders that cannot be read count as empty.
"""

import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import distributions
from pathlib import Path

from edgedecode.cache import area
from edgedecode.pack.manifest import MANIFEST_NAME

from .stored import Store, StoredModel, advice_on_head, is_model_name, repository_models

_FOLDERS = "EDGEDECODE_MODELS"
"""The variable that names folders of models, separated as in PATH."""
_SEPARATOR = "--"
"""Between owner and name in the name of a repository's folder."""


def stored_models() -> list[StoredModel]:
    """Return every model found, in the order of `Store`."""
    places = _places(os.environ)
    found = [
        *_library_models(),
        *_package_models(),
        *(model for root in places[Store.HUB] for model in _hub_models(root)),
        *(model for root in places[Store.LM_STUDIO] for owner in _folders(root) for model in _owned(owner)),
        *(model for root in places[Store.OLLAMA] if root.is_dir() for model in _ollama_models(root)),
        *(model for root in places[Store.LLAMA_CPP] for model in folder_models(root, Store.LLAMA_CPP)),
        *(model for root in places[Store.FOLDER] for model in folder_models(root)),
    ]
    return _distinct(found)


def _distinct(models: Sequence[StoredModel]) -> list[StoredModel]:
    """Return the models with names of their own: where several have one, paths name them, and it stays an alias.

    The first of copies of one file keeps it.
    """
    alike: dict[str, list[StoredModel]] = {}
    for model in models:
        alike.setdefault(model.name.casefold(), []).append(model)
    kept = {id(same[0]) for same in alike.values() if len(same) == 1 or len({each.content for each in same}) == 1}
    return [model if id(model) in kept else model.named(str(model.path)) for model in models]


def _places(given: Mapping[str, str]) -> dict[Store, list[Path]]:
    """Return the folders of other programs. LM Studio's moved; Ollama's installer makes a service's on Linux."""
    home = Path(os.devnull)  # which has nothing in it
    with suppress(RuntimeError):
        home = Path.home()
    cache = Path(given.get("XDG_CACHE_HOME") or home / ".cache")
    hub = Path(given.get("HF_HOME") or cache / "huggingface") / "hub"
    caches = {"darwin": home / "Library" / "Caches", "win32": Path(given.get("LOCALAPPDATA", cache))}
    ollama = [home / ".ollama" / "models", Path("/usr/share/ollama/.ollama/models")]
    return {
        Store.HUB: [Path(given.get("HF_HUB_CACHE") or hub)],
        Store.LM_STUDIO: [home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models"],
        Store.OLLAMA: [Path(given["OLLAMA_MODELS"])] if given.get("OLLAMA_MODELS") else ollama,
        Store.LLAMA_CPP: [Path(given.get("LLAMA_CACHE") or caches.get(sys.platform, cache) / "llama.cpp")],
        Store.FOLDER: [Path(folder).expanduser() for folder in given.get(_FOLDERS, "").split(os.pathsep) if folder],
    }


def repository_folder(repository: str) -> str:
    """Return the name of the folder of a repository or a package in the library."""
    return repository.replace("/", _SEPARATOR)


def folder_models(root: Path, store: Store = Store.FOLDER) -> list[StoredModel]:
    """Return the GGUF models under a folder, and the packs directly in it.

    Where several have one name, they are called by their paths in the folder.
    """
    files = [path for path in _files(root) if is_model_name(path.name)]
    times = Counter(path.stem.casefold() for path in files)
    found = [StoredModel(path.stem, path, store, (path.name,)) for path in files]
    packs = [_pack(path.parent.name, path.parent, store) for path in sorted(root.glob(f"*/{MANIFEST_NAME}"))]
    return [
        *(
            each.named(each.path.relative_to(root).with_suffix("").as_posix())
            if times[each.name.casefold()] > 1
            else each
            for each in found
        ),
        *packs,
    ]


def _pack(name: str, folder: Path, store: Store) -> StoredModel:
    return StoredModel(name, folder, store, (name.rpartition("/")[2],))


def _files(root: Path) -> list[Path]:
    """Return the GGUF files under a folder. A link to nothing is an interrupted download."""
    return sorted(
        Path(folder, name)
        for folder, _, names in os.walk(root)  # which skips what cannot be read, where rglob raises
        for name in names
        if name.lower().endswith(".gguf") and os.path.isfile(os.path.join(folder, name))
    )


def _library_models() -> Iterator[StoredModel]:
    for folder in _folders(area("models")):
        name = folder.name.replace(_SEPARATOR, "/", 1)
        if "/" in name and (folder / "config.json").is_file():
            aliases = (name.rpartition("/")[2],)
            yield StoredModel(name, folder, Store.LIBRARY, aliases, problem=advice_on_head(name))
        elif "/" in name:
            yield from repository_models(name, folder, _files(folder), Store.LIBRARY)
        else:
            yield from _of_package(name, _files(folder), Store.LIBRARY)
    for folder in _folders(area("packs")):
        yield _pack(folder.name.replace(_SEPARATOR, "/", 1), folder, Store.LIBRARY)


def _package_models() -> Iterator[StoredModel]:
    for package in distributions():
        with suppress(OSError, UnicodeDecodeError):
            own = package.name == "edgedecode"  # whose files are drafting heads
            if not own and ".gguf" in (package.read_text("RECORD") or ""):  # fast: most packages list none
                found = [Path(str(file.locate())) for file in package.files or () if file.suffix.lower() == ".gguf"]
                yield from _of_package(package.name, [path for path in found if path.is_file()], Store.PACKAGE)


def _of_package(name: str, files: Sequence[Path], store: Store) -> list[StoredModel]:
    """Return the models of a package: a single one has the package's name."""
    models = [path for path in files if is_model_name(path.name)]
    names = [name] if len(models) == 1 else [f"{name}/{path.name}" for path in models]
    return [StoredModel(name, path, store, (path.name, path.stem)) for name, path in zip(names, models, strict=True)]


def _hub_models(root: Path) -> Iterator[StoredModel]:
    for folder in _folders(root):
        kind, _, name = folder.name.partition(_SEPARATOR)
        if kind == "models" and (snapshot := _snapshot(folder)) is not None:
            repository = name.replace(_SEPARATOR, "/", 1)
            yield from repository_models(repository, snapshot, _files(snapshot), Store.HUB)
            if (snapshot / MANIFEST_NAME).is_file():
                yield _pack(repository, snapshot, Store.HUB)


def _ollama_models(root: Path) -> Iterable[StoredModel]:
    from .ollama import ollama_models

    return ollama_models(root)


def _snapshot(folder: Path) -> Path | None:
    """Return the folder of a repository's main revision, or of the newest."""
    with suppress(OSError, UnicodeDecodeError):
        main = folder / "snapshots" / (folder / "refs" / "main").read_text(encoding="utf-8").strip()
        if main.is_dir():
            return main
    return max(_folders(folder / "snapshots"), key=lambda path: path.stat().st_mtime, default=None)


def _owned(owner: Path) -> Iterator[StoredModel]:
    for folder in _folders(owner):
        yield from repository_models(f"{owner.name}/{folder.name}", folder, _files(folder), Store.LM_STUDIO)


def _folders(root: Path) -> list[Path]:
    """Return the folders in a folder that are not hidden."""
    with suppress(OSError):
        return sorted(path for path in root.iterdir() if path.is_dir() and path.name[0] != ".")
    return []
