"""Build a pack whose models are GGUF files only, with the byte tokenizer."""

import shutil
from dataclasses import replace
from pathlib import Path

from edgedecode.pack.entries import FileEntry
from edgedecode.pack.integrity import file_sha256
from edgedecode.pack.manifest import MANIFEST_NAME, Generation, Manifest, ModelEntry
from edgedecode.testing import toy_pair
from tests.contract.conftest import GgufOpener
from tests.contract.toy_graph import ToyShape

TOKENIZER = "tokenizer.json"


def write_pack(root: Path, opener: GgufOpener, *, gguf: bool = True, architecture: str = "qwen2") -> Path:
    """Write a target and a draft with one layer fewer; without `gguf` the entries name their graphs instead.

    Hybrids have two layers more: the draft too has both kinds.
    """
    base = toy_pair()
    root.mkdir()
    tokenizer = base.tokenizer
    (root / TOKENIZER).write_text(tokenizer._inner.to_str(), encoding="utf-8")
    models = {}
    more = 0 if architecture == "qwen2" else 2
    for role, layers in (("target", 2 + more), ("draft", 1 + more)):
        shape = ToyShape(rows=tokenizer.size + 3, layers=layers)
        models[role] = _copy(opener, shape, root, role=role, gguf=gguf, architecture=architecture)
    files = [path for path in root.rglob("*") if path.is_file()]
    entries = {
        path.relative_to(root).as_posix(): FileEntry(nbytes=path.stat().st_size, sha256=file_sha256(path))
        for path in files
    }
    manifest = replace(
        base.manifest,
        tokenizer=TOKENIZER,
        vocabulary_size=tokenizer.size,
        chat_template=None,
        generation=Generation(end_token_ids=(2,)),
        models=models,
        files=entries,
    )
    (root / MANIFEST_NAME).write_text(manifest.to_json(), encoding="utf-8")
    Manifest.load(root)
    return root


def _copy(opener: GgufOpener, shape: ToyShape, root: Path, *, role: str, gguf: bool, architecture: str) -> ModelEntry:
    entry = opener.entry(shape, architecture)
    names = [entry.gguf] if gguf else [entry.weights, *(graph.file for graph in entry.graphs.values())]
    (root / role).mkdir()
    for name in names:
        shutil.copy(opener.root(shape, architecture) / name, root / role / name)
    if gguf:
        path = f"{role}/{entry.gguf}"
        return replace(entry, gguf=path, weights=path, graphs={})
    graphs = {name: replace(graph, file=f"{role}/{graph.file}") for name, graph in entry.graphs.items()}
    return replace(entry, gguf="", weights=f"{role}/{entry.weights}", graphs=graphs)
