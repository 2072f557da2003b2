"""A base model: a Hugging Face folder or hub id, checked through its JSON files without loading a framework.

For a hub id the text files are downloaded first, and the weights only after every check that does not need them.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from edgedecode.errors import ExportError, cause
from edgedecode.library.stored import named
from edgedecode.library.stores import stored_models
from edgedecode.text.tokenizer import Tokenizer
from edgedecode.typed_json import JsonValue

from .download import WEIGHTS, fetch_files, find_snapshot
from .frameworks import refused
from .graph.checkpoint import weight_files
from .graph.model_shape import EndIds, ModelConfig, Shape, read_config
from .stages import Stages

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
LICENSES = ("LICENSE*", "LICENCE*", "NOTICE*", "COPYING*")
_TEXTS = ("*.json", "*.jinja", "README.md", *LICENSES)
_LARGEST_JSON = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder:
    """A model in a folder, whose tokenizer has passed the checks."""

    name: str
    """The hub id, or the folder's name without its path."""
    folder: Path
    tokenizer: Tokenizer
    rows: int
    """Width of the logits."""
    ends: EndIds
    """Ids that end an answer, as the configuration names them."""
    license: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Source(ModelFolder):
    """A folder of Hugging Face, whose configuration has passed the checks too."""

    config: ModelConfig
    shape: Shape
    commit: str | None
    """The commit downloaded from the hub; None for a local folder."""
    download_nbytes: int
    """Bytes left to download; 0 for a local folder, and when the hub could not be reached."""

    @property
    def origin(self) -> str:
        """The model's source as the manifest names it: the name, with the commit if there is one."""
        return f"{self.name}@{self.commit}" if self.commit else self.name


def open_source(name: str) -> Source:
    """Find and check a model: a folder, or a hub id whose text files are downloaded. Raises ExportError."""
    local = _local(name)
    snapshot = None if local else find_snapshot(name, _TEXTS)
    folder = snapshot.folder if snapshot else local
    assert folder is not None
    title = local.resolve().name if local else name
    if (value := read_json(folder / "config.json")) is None:
        raise ExportError(f"{folder} is not a model folder: it has no config.json")
    config, shape = read_config(value, name=title)
    with refused():
        tokenizer = Tokenizer.from_file(folder / "tokenizer.json")
    if tokenizer.size > shape.rows:
        raise ExportError(
            f"{title}: its tokenizer has {tokenizer.size} ids, but vocab_size in its config.json is "
            f"{shape.rows}: the files do not belong together"
        )
    return Source(
        name=title,
        folder=folder,
        tokenizer=tokenizer,
        rows=shape.rows,
        ends=config.eos_token_id,
        license=read_license(folder, config.license),
        config=config,
        shape=shape,
        commit=snapshot.commit if snapshot else None,
        download_nbytes=snapshot.weights_nbytes if snapshot else 0,
    )


def find_weights(source: Source, stages: Stages) -> list[Path]:
    """Return a model's weight files; for a hub id, download them in a stage first. Raises ExportError."""
    if source.commit is not None:
        with stages.stage(f"{source.name}: download", source.download_nbytes) as advance:
            fetch_files(source.name, source.commit, WEIGHTS, progress=advance)
    return weight_files(source.folder)


def read_json(path: Path) -> JsonValue:
    """Parse a JSON file; return None if it does not exist. Raises ExportError if it is damaged."""
    try:
        if path.stat().st_size > _LARGEST_JSON:
            raise ExportError(f"{path} is too large for a configuration file")
        value: JsonValue = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise ExportError(f"{path} cannot be read ({cause(error)}): download it again") from None
    return value


def _local(name: str) -> Path | None:
    """Return the folder `name`, or None if `name` is a hub id. Raises ExportError if it is neither."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if folder.exists():
        raise ExportError(f"{name} is a file: give the folder of a Hugging Face model")
    if not _HUB_ID.fullmatch(name):
        if named(name, stored_models()):
            raise ExportError(
                f"{name} is a model of `edgedecode list`, which runs as it is; `export` needs a checkpoint: "
                f"give its folder or hub id (owner/name)"
            )
        raise ExportError(f"there is no folder {name!r}, and it is not a hub id (owner/name)")
    return None


def read_license(folder: Path, named: object) -> str:
    """Return the licence `named` in config.json, else the one of the README's front matter, else `unknown`."""
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
