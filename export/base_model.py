"""A base model: a Hugging Face folder or hub id, checked as far as reading JSON can. Loads no framework.

Of a hub id the texts are downloaded first; its weights come when every refusal that needs none is behind.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass, fields
from pathlib import Path

from edgedecode.errors import ExportError
from edgedecode.text.tokenizer import Tokenizer
from edgedecode.typed_json import JsonValue

from .download import WEIGHTS, fetch_files, find_snapshot
from .frameworks import refused
from .graph.checkpoint import weight_files
from .graph.model_shape import Shape, read_shape
from .json_fields import Fields
from .stages import Stages

__all__ = [
    "Source",
    "Texts",
    "copy_text_files",
    "fetch_model",
    "find_weights",
    "license_files",
    "open_source",
    "open_texts",
    "read_json",
    "read_license",
]

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_LICENSES = ("LICENSE*", "LICENCE*", "NOTICE*", "COPYING*")
_TEXTS = ("*.json", "*.jinja", "README.md", *_LICENSES)
_LARGEST_JSON = 64 << 20


@dataclass(frozen=True, slots=True)
class Texts:
    """A model folder whose configuration has been read: enough to say how large its export becomes."""

    name: str
    """Hub id, or the folder's name: never a path."""
    folder: Path
    config: Fields
    shape: Shape
    commit: str | None
    """The hub's commit that was downloaded; None for a local folder."""
    download_nbytes: int
    """What the hub still has to send; 0 for a local folder, and where the hub was not reached."""

    @property
    def origin(self) -> str:
        """The name, with the commit where there is one: what a manifest says of where a model came from."""
        return f"{self.name}@{self.commit}" if self.commit else self.name


@dataclass(frozen=True, slots=True)
class Source(Texts):
    """A model folder whose configuration and tokenizer have been found sound."""

    tokenizer: Tokenizer
    license: str

    @property
    def rows(self) -> int:
        return self.shape.rows


def open_source(name: str) -> Source:
    """Find and check a model: a folder, or a hub id whose texts are downloaded. Raises ExportError with what to do."""
    texts = open_texts(name)
    with refused():
        tokenizer = Tokenizer.from_file(texts.folder / "tokenizer.json")
    if tokenizer.size > texts.shape.rows:
        raise ExportError(
            f"{texts.name}: its tokenizer knows {tokenizer.size} ids, the vocab_size of its config.json is "
            f"{texts.shape.rows}: the files do not belong together"
        )
    known = {field.name: getattr(texts, field.name) for field in fields(texts)}
    return Source(**known, tokenizer=tokenizer, license=read_license(texts.folder, texts.config))


def license_files(folder: Path) -> list[Path]:
    """Return the licence texts of a model's folder."""
    return sorted({path for pattern in _LICENSES for path in folder.glob(pattern) if path.is_file()})


def copy_text_files(model: Path, folder: Path) -> None:
    """Copy configuration, tokenizer, template and licences of a model, not its weights."""
    for path in sorted({path for pattern in _TEXTS for path in model.glob(pattern) if path.is_file()}):
        shutil.copyfile(path, folder / path.name)


def fetch_model(name: str, stages: Stages) -> Path:
    """Return the folder `name`, or that of a hub id, all of it downloaded. Raises ExportError."""
    if (local := _local(name)) is not None:
        return local
    snapshot = find_snapshot(name, _TEXTS)
    with stages.stage(f"{name}: download", snapshot.weights_nbytes) as advance:
        fetch_files(name, snapshot.commit, WEIGHTS, progress=advance)
    return snapshot.folder


def open_texts(name: str) -> Texts:
    """Find a model and read its configuration, which is all that a forecast needs. Raises ExportError."""
    local = _local(name)
    snapshot = None if local else find_snapshot(name, _TEXTS)
    folder = snapshot.folder if snapshot else local
    assert folder is not None
    title = local.resolve().name if local else name
    config = _config(folder)
    with refused():
        shape = read_shape(config, name=title)
    commit, nbytes = (snapshot.commit, snapshot.weights_nbytes) if snapshot else (None, 0)
    return Texts(title, folder, config, shape, commit, nbytes)


def find_weights(source: Source, stages: Stages) -> list[Path]:
    """Return the weight files of a model, downloaded, as a stage, where it came from the hub. Raises ExportError."""
    if source.commit is not None:
        with stages.stage(f"{source.name}: download", source.download_nbytes) as advance:
            fetch_files(source.name, source.commit, WEIGHTS, progress=advance)
    return weight_files(source.folder)


def read_json(path: Path) -> JsonValue:
    """Parse a JSON file; None where there is none. Raises ExportError for one that is damaged."""
    try:
        if path.stat().st_size > _LARGEST_JSON:
            raise ExportError(f"{path} is too large to be a configuration")
        value: JsonValue = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise ExportError(f"{path} cannot be read ({error}): download it again") from None
    return value


def _local(name: str) -> Path | None:
    """Return the folder `name`, or None for a hub id."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if folder.exists():
        raise ExportError(f"{name} is a file: give the folder of a Hugging Face model")
    if not _HUB_ID.fullmatch(name):
        raise ExportError(f"there is no folder {name!r}, and it is not a hub id (owner/name)")
    return None


def _config(folder: Path) -> Fields:
    path = folder / "config.json"
    value = read_json(path)
    if value is None:
        raise ExportError(f"{folder} is not a model folder: it has no config.json")
    with refused(folder):
        return Fields.of(value, str(path.name))


def read_license(folder: Path, config: Fields) -> str:
    """Return the licence the source names, by README front matter or config.json; else `unknown`."""
    named = config.values.get("license")
    if isinstance(named, str) and named:
        return named
    try:
        text = (folder / "README.md").read_text(encoding="utf-8", errors="replace")[:8192]
    except OSError:
        return "unknown"
    front = re.match(r"---\s*\n(.*?)\n---", text, re.DOTALL)
    lines: list[tuple[str, str]] = re.findall(r"^(license(?:_name)?):\s*(.+)$", front[1], re.M) if front else []
    found = {key: value.strip("\"' ") for key, value in lines}
    license = found.get("license", "unknown")
    return found.get("license_name", license) if license == "other" else license
