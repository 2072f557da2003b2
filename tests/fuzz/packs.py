"""A small valid pack from the bundled draft model, and copies with changed files and matching digests."""

import copy
import hashlib
import json
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from edgedecode.library.names import BUNDLED_PACK
from edgedecode.pack.manifest import MANIFEST_NAME

FILES = ("chat_template.jinja", "tokenizer.json", "draft/base.onnx", "draft/weights.bin")


@cache
def base_manifest() -> Any:
    """Return the parsed manifest of the small pack."""
    if not (BUNDLED_PACK / MANIFEST_NAME).is_file():
        pytest.skip("there is no bundled pack: run `make pack`", allow_module_level=True)
    manifest = json.loads((BUNDLED_PACK / MANIFEST_NAME).read_text(encoding="utf-8"))
    entry = manifest["models"]["draft"]
    entry |= {"graphs": {"base": entry["graphs"]["base"]}, "trim": None, "trimmed": None, "gguf_plan": ""}
    manifest["models"] = {"target": entry}
    manifest["files"] = {name: manifest["files"][name] for name in FILES}
    return manifest


@cache
def content_of(name: str) -> bytes:
    return (BUNDLED_PACK / name).read_bytes()


def write_pack(
    folder: Path, *, manifest: Any = None, raw: bytes | None = None, changed: Mapping[str, bytes] | None = None
) -> Path:
    """Write the pack; `changed` files are listed with their true sizes and digests. raw: the manifest's exact bytes."""
    changed = changed or {}
    manifest = copy.deepcopy(manifest or base_manifest())
    for name in {*FILES, *changed}:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name in changed:
            path.write_bytes(changed[name])
            digest = hashlib.sha256(changed[name]).hexdigest()
            manifest["files"][name] = {"nbytes": len(changed[name]), "sha256": digest}
        else:
            _link(BUNDLED_PACK / name, path)
    (folder / MANIFEST_NAME).write_bytes(json.dumps(manifest).encode() if raw is None else raw)
    return folder


def _link(source: Path, path: Path) -> None:
    try:
        os.link(source, path)
    except OSError:  # another file system
        path.write_bytes(source.read_bytes())


def answer_words(pack: Path, *, prompt: str = "hello", tokens: int = 3) -> list[str]:
    """Return the command line that answers a prompt inside the budget."""
    return ["generate", "-m", str(pack), "-p", prompt, "-n", str(tokens), "-t", "1", "--memory", "160MB"]
