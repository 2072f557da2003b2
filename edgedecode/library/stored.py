"""A model that lies on this machine, and the names that its file and its repository give it."""

import re
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path, PurePath

_TYPE = re.compile(r"(?<![A-Za-z0-9])(I?Q\d(?:_[A-Z0-9]+)*|TQ\d_\d|B?F16|F32|MXFP4(?:_MOE)?)$", re.IGNORECASE)
"""How the name of a GGUF file ends, without its suffix and part number."""
_SAMPLE_NBYTES = 1 << 12
_PART = re.compile(r"-(\d{5})-of-(\d{5})$")
_BESIDE = re.compile(r"\..*|(.*[-_.])?mmproj[-_.].*|mtp-.*|.*-dspark|.*imatrix.*", re.IGNORECASE)
"""Names of files beside a model: image projectors, drafting heads, importance matrices."""


class Store(StrEnum):
    """Where a model lies, in the order in which a name is looked up."""

    LIBRARY = "library"
    PACKAGE = "package"
    HUB = "hub cache"
    LM_STUDIO = "LM Studio"
    OLLAMA = "Ollama"
    LLAMA_CPP = "llama.cpp"
    FOLDER = "folder"


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A GGUF file, or the folder of a pack. problem: why it cannot be used; empty: no reason is known."""

    name: str
    path: Path
    store: Store
    aliases: tuple[str, ...] = ()
    problem: str = ""

    @property
    def nbytes(self) -> int:
        """The bytes of its files; 0 if they are gone."""
        files = self.path.rglob("*") if self.path.is_dir() else [self.path]
        with suppress(OSError):
            return sum(file.stat().st_size for file in files if file.is_file())
        return 0

    @property
    def content(self) -> tuple[str, int, bytes]:
        """What copies of a file share: its name, its size, and its last bytes, which are weights."""
        last = b""
        with suppress(OSError), self.path.open("rb") as file:
            file.seek(max(0, self.nbytes - _SAMPLE_NBYTES))
            last = file.read(_SAMPLE_NBYTES)
        return self.path.name, self.nbytes, last

    @property
    def names(self) -> tuple[str, ...]:
        return self.name, *self.aliases

    def named(self, name: str) -> "StoredModel":
        """Return the model under another name; its own becomes an alias."""
        return replace(self, name=name, aliases=(self.name, *self.aliases))

    def __str__(self) -> str:
        return f"{self.name} ({self.store}, {self.path})"


def named(word: str, models: Iterable[StoredModel]) -> list[StoredModel]:
    """Return the models that a word names; case does not count. Copies of a file in several stores count once."""
    plain = word.casefold()
    alike = [model for model in models if plain in map(str.casefold, model.names)]
    exact = [model for model in alike if model.name.casefold() == plain] or alike
    if len(exact) < 2:
        return exact
    return list({model.content: model for model in reversed(exact)}.values())[::-1]


def advice_on_head(name: str) -> str:
    """Return what to do with a drafting head that was named as a model."""
    return f"a drafting head, which no command runs alone: `edgedecode head add PACK {name}`, once it is pulled"


def weight_type(file: str) -> str:
    """Return the type that a file's name ends with, such as Q4_K_M; empty: none."""
    found = _TYPE.search(_PART.sub("", PurePath(file).stem))
    return found[1].upper() if found else ""


def parts_of(file: str) -> int:
    """Return the number of files that a model is split into."""
    found = _PART.search(PurePath(file).stem)
    return int(found[2]) if found else 1


def is_model_name(file: str) -> bool:
    """Return whether a file's name is that of a GGUF model, or of the first part of one."""
    path = PurePath(file)
    part = _PART.search(path.stem)
    return path.suffix.lower() == ".gguf" and not _BESIDE.fullmatch(path.stem) and (part is None or int(part[1]) == 1)


def repository_models(repository: str, root: Path, files: Iterable[Path], store: Store) -> list[StoredModel]:
    """Return the models of the repository `owner/name` whose files lie under `root`."""
    below = {path: path.relative_to(root).as_posix() for path in files if is_model_name(path.name)}
    types = Counter(map(weight_type, below.values()))
    short, found = repository.rpartition("/")[2], []
    for path, file in below.items():
        kind = weight_type(file)
        typed = (f"{repository}:{kind}", f"{short}:{kind}") if kind and types[kind] == 1 else ()
        name, *aliases = dict.fromkeys((*typed, f"{repository}/{file}", repository, short, path.name, path.stem))
        found.append(StoredModel(name, path, store, tuple(aliases)))
    return found
