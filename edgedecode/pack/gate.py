"""The gate at a pack's opening: what lies in the folder, what the graphs name, and whether they match the manifest.

A pack is data from a stranger. Native code sees its files only behind this gate, which reads them in Python, within
bounds, and opens no model. What passed is remembered with the files' digests.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path, PurePath, PurePosixPath

from edgedecode.cache import area
from edgedecode.errors import ManifestError
from edgedecode.gguf.header import read_header
from edgedecode.onnx_format.graph_check import CheckedGraph, Weights, check_graph
from edgedecode.onnx_format.graph_file import ValueInfo
from edgedecode.onnx_format.graph_memory import UnknownOperator
from edgedecode.text.chat_template import MOST_CHARACTERS

from .entries import ADAPTERS, TRIM_NAMES
from .gguf_check import check_header
from .integrity import check_files
from .manifest import MANIFEST_NAME, Graph, Manifest, ModelEntry

__all__ = ["check_listing", "check_pack", "is_downloaded"]

_GATE = 2
"""Another number when the gate looks for something else."""
_UNREAD = frozenset({".gitattributes", ".gitignore", ".git", ".cache"})
"""What repositories and downloads hold beside the manifest. Nothing of a pack can name it."""
_JOINS = "concat"
"""The capability of graphs that join past and present themselves."""
_TEXTS = ("LICENSE", "NOTICE", "README")
_TEXT_ENDS = ("", ".md", ".pdf", ".rst", ".txt")
"""How the names of further files beside the manifest begin and end that nothing reads."""
_SYSTEM, _SYSTEM_BEGINS = frozenset({".DS_Store", "Thumbs.db", "desktop.ini"}), ("._", ".nfs")
"""Files that systems leave in any folder."""
_WORK = (".trim-", f"{MANIFEST_NAME}.")
"""How files begin that a change of the pack has not put in place yet."""
_GRAPH_NBYTES, _LAYER_NBYTES = 4 << 20, 256 << 10
"""What a graph may take beside a trimmed head: some 10 kB a layer are usual."""
_TEMPLATE_NBYTES, _TOKENIZER_NBYTES, _PLAN_NBYTES = 4 * MOST_CHARACTERS, 64 << 20, 4 << 20
"""Of files that are read whole; a tokenizer of 262,000 tokens has 34 MB, a plan 100 bytes a tensor."""


def check_pack(root: Path, *, full: bool = False, progress: Callable[[int], None] | None = None) -> Manifest:
    """Return the manifest of the pack at `root` once everything that it lists may be opened.

    full, progress: as in `check_files`. Raises ManifestError, one line.
    """
    manifest = Manifest.load(root)
    if manifest.outside and is_downloaded(root):
        raise ManifestError(
            f"the pack {root} was downloaded and names files outside itself, such as "
            f"{next(iter(manifest.outside.values())).path}: refused; its author should import with --copy"
        )
    check_listing(manifest, root)
    key = sha256(f"{_GATE} {manifest!r}".encode("utf-8", "surrogatepass")).hexdigest()
    try:
        check_files(manifest, root, full=full, progress=progress, judge=lambda: _check_models(manifest, root), key=key)
    except ManifestError as error:
        if not is_downloaded(root):
            raise
        raise ManifestError(f"{error}; run `edgedecode cache clear --packs`, and it is downloaded again") from None
    return manifest


def is_downloaded(root: Path) -> bool:
    """Tell whether the pack at `root` came from the hub: then a stranger wrote its manifest."""
    return root.resolve().is_relative_to(area("packs").resolve())


def check_listing(manifest: Manifest, root: Path) -> None:
    """Raise ManifestError for anything in the pack's folders that its manifest does not list, by name.

    Files of a change of the pack that is under way or was killed, and what repositories keep beside a manifest, are
    passed over: nothing of the pack names them. A listed file may have hard links: its content is what was listed,
    wherever else it lies.
    """
    listed = {*manifest.files, MANIFEST_NAME}
    folders = {parent.as_posix() for name in listed for parent in PurePosixPath(name).parents}
    left = {name for names in TRIM_NAMES.values() for name in names}
    unused = _unused(manifest)
    for name, entry in _entries(root, folders):
        path = root / name
        if entry.is_symlink():
            raise ManifestError(f"{path} is a link: a pack holds its own files; copy the target of the link there")
        if entry.is_dir(follow_symlinks=False):
            if name in folders or name in _UNREAD or PurePosixPath(name).parts[0] == ADAPTERS:
                continue  # of an adapter that was added or removed when its process was killed
        elif not entry.is_file(follow_symlinks=False):
            raise ManifestError(f"{path} is not an ordinary file: remove it")
        elif name in listed or _is_unread(name) or entry.name.startswith(_WORK) or entry.name in left:
            continue
        raise ManifestError(f"{path} is not listed in the pack's manifest: move it elsewhere")
    if unused:
        raise ManifestError(
            f"{root / unused[0]} is listed, but no model names it: export the pack again{_upgrade(manifest)}"
        )


def _entries(root: Path, folders: set[str]) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield what lies in the pack's own folders, by its name there; links are not followed."""
    waiting = ["."]
    while waiting:
        folder = waiting.pop()
        with os.scandir(root / folder) as entries:
            for entry in sorted(entries, key=lambda each: each.name):
                name = entry.name if folder == "." else f"{folder}/{entry.name}"
                yield name, entry
                if name in folders and entry.is_dir(follow_symlinks=False):
                    waiting.append(name)


def _is_unread(name: str) -> bool:
    path = PurePosixPath(name)
    if path.name in _SYSTEM or path.name.startswith(_SYSTEM_BEGINS) or name in _UNREAD:
        return True
    return len(path.parts) == 1 and name.startswith(_TEXTS) and path.suffix.lower() in _TEXT_ENDS


def _unused(manifest: Manifest) -> list[str]:
    """Return files in the folders of graphs that no model names: an engine might find them there."""
    graphs = (graph.file for entry in manifest.models.values() for graph in entry.graphs.values())
    folders = {PurePosixPath(file).parent for file in graphs} - {PurePosixPath()}
    return sorted(name for name in {*manifest.files} - manifest.named() if PurePosixPath(name).parent in folders)


def _check_models(manifest: Manifest, root: Path) -> None:
    """Compare each model's numbers with its files."""
    _check_small(manifest, root, manifest.tokenizer, _TOKENIZER_NBYTES)
    if manifest.chat_template is not None:
        _check_small(manifest, root, manifest.chat_template, _TEMPLATE_NBYTES)
    for role in manifest.models:
        entry = manifest.located(role)
        _check_sizes(manifest, role, entry)
        if entry.gguf_plan:
            _check_small(manifest, root, entry.gguf_plan, _PLAN_NBYTES)
        weights = Weights(PurePath(entry.weights).name, nbytes := manifest.weights_nbytes(role))
        for graph in entry.graphs.values():
            path = root / graph.file
            try:
                _check_graph(path, graph, entry, replace(weights, folded=_folded(graph, entry, nbytes)))
            except (ValueError, OSError) as error:
                newer = _upgrade(manifest) if isinstance(error, UnknownOperator) else ""
                raise ManifestError(
                    f"the graph {path} is refused: {error}; export or import the pack again{newer}"
                ) from None
        if entry.gguf:
            check_header(read_header(root / entry.gguf), entry, path=root / entry.gguf)


def _upgrade(manifest: Manifest) -> str:
    return f", or upgrade edgedecode: the pack was made by {manifest.created_by[:40]}"


def _folded(graph: Graph, entry: ModelEntry, nbytes: int) -> int:
    """Return how many weights the engine converts before the first pass: 16-bit ones to 32 bits, some to turn."""
    if 16 in (entry.bits, entry.head_bits):
        return nbytes // 2
    return nbytes // 4 if _JOINS in graph.capabilities else 0


def _check_small(manifest: Manifest, root: Path, name: str, most: int) -> None:
    if (nbytes := manifest.files[name].nbytes) > most:
        raise ManifestError(f"{root / name} has {nbytes} bytes, {most} are the most: export the pack again")


def _check_sizes(manifest: Manifest, role: str, entry: ModelEntry) -> None:
    where = f"manifest.models.{role}"
    held = manifest.weights_nbytes(role)
    if entry.rows * entry.hidden_size > 8 * held:  # a weight takes a bit at least
        raise ManifestError(
            f"{where} declares {entry.rows} rows of {entry.hidden_size} weights, its file has {held} bytes: "
            f"export the pack again"
        )
    trim = entry.trim
    if trim is not None and (trim.size > entry.rows or manifest.files[trim.token_ids].nbytes != 4 * trim.size):
        raise ManifestError(
            f"{where}.trim has {trim.size} ids of {entry.rows}, its map {manifest.files[trim.token_ids].nbytes} bytes: "
            f"run `edgedecode trim` again"
        )


def _check_graph(path: Path, graph: Graph, entry: ModelEntry, weights: Weights) -> None:
    """Raise ValueError unless the graph is as the manifest says."""
    if path.suffix != ".onnx":
        raise ValueError("its name does not end in .onnx")
    trimmed = 0 if entry.trim is None else 4 * entry.trim.size * (entry.hidden_size + 64)
    most = _GRAPH_NBYTES + _LAYER_NBYTES * entry.layers + trimmed
    if (nbytes := path.stat().st_size) > most:
        raise ValueError(f"it has {nbytes} bytes, a graph of {entry.layers} layers needs less than {most}")
    found = check_graph(path, weights, joins=_JOINS in graph.capabilities)
    for what, said, there in (("inputs", graph.inputs, found.inputs), ("outputs", graph.outputs, found.outputs)):
        if sorted(said) != sorted(there):
            differing = sorted({*said} ^ {*there}) or ["a name twice"]
            raise ValueError(f"its {what} are not those of the manifest, which differs in {differing[0][:60]!r}")
    _check_shapes(found, entry)


def _check_shapes(found: CheckedGraph, entry: ModelEntry) -> None:
    layers = sum(name.startswith("past_key_values.") and name.endswith(".key") for name in found.inputs)
    pairs: dict[str, tuple[int | str | None, int]] = {"layers": (layers, entry.layers)}
    if dims := _dims(found.outputs, "logits"):
        pairs["rows"] = dims[-1], entry.rows
    if len(dims := _dims(found.inputs, "past_key_values.0.key")) == 4:
        pairs |= {"KV heads": (dims[1], entry.kv_heads), "head size": (dims[3], entry.head_size)}
    for name, (there, said) in pairs.items():
        if isinstance(there, int) and there != said:
            raise ValueError(f"it has {name} {there}, the manifest says {said}")
    if found.widths and entry.hidden_size not in found.widths:
        raise ValueError(f"its norms have widths {sorted(found.widths)}, the manifest says {entry.hidden_size}")
    if found.positions is not None and found.positions < entry.context:
        raise ValueError(f"it serves {found.positions} positions, the manifest says a context of {entry.context}")


def _dims(values: Mapping[str, ValueInfo], name: str) -> Sequence[int | str | None]:
    value = values.get(name)
    return () if value is None or value.dims is None else value.dims
