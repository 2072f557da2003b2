"""What a word looks like: the name of a model, a hub id, a path."""

import re
from contextlib import suppress
from pathlib import Path

BUNDLED, BUNDLED_PACK = "demo", Path(__file__).parents[1] / "packs" / "demo"
"""The bundled pack's name, unless the current folder has a pack of this name, and its folder."""
MODEL_FILES = (".gguf", ".onnx", ".safetensors")
_HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*(:\w[\w.-]*|(/\w[\w.-]*)+\.gguf)?")
_HUB = re.compile(r"(https?://)?(hf\.co|huggingface\.co)/", re.IGNORECASE)
"""What Ollama's users and browsers write before a hub id."""
_PATH = re.compile(r"(\.\.?|~|[A-Za-z]:)[/\\]|/[^/\s]+/")
"""How a path begins that is not a hub id. One slash alone begins a command of a chat."""
_GGUF = b"GGUF"


def is_hub_name(word: str) -> bool:
    """Return whether a word is a hub id, alone or with a type or a file: owner/name, owner/name:Q8_0."""
    return bool(_HUB_NAME.fullmatch(word)) and not (is_path(word) and word.count("/") < 2)


def without_hub(word: str) -> str:
    """Return a hub id without the hub's address, if it begins with that."""
    name = _HUB.sub("", word, 1) if _HUB.match(word) else word
    return name if is_hub_name(name) else word


def is_path(word: str) -> bool:
    return bool(_PATH.match(word)) or word.endswith(MODEL_FILES)


def is_gguf(path: Path) -> bool:
    """Return whether there is a file that is a GGUF file by its name or its first bytes."""
    if path.suffix == ".gguf" or not path.is_file():
        return path.is_file()
    with path.open("rb") as file:
        return file.read(len(_GGUF)) == _GGUF


def expanded(name: str | Path) -> Path:
    """Replace a leading ~, which a shell leaves in place after `=`, by the home folder."""
    with suppress(RuntimeError):  # there is no home
        return Path(name).expanduser()
    return Path(name)
