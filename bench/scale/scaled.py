"""Widens a pack to the cost of a larger model that generates the same text, and caches the result.

The target's weights file gets the requested size, the draft's a tenth of it. The widened pack is cached under the
pack's digest and the size, and written atomically.
"""

import hashlib
import shutil
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edgedecode import CapabilityError, InputError
from edgedecode.apps.terminal import progress
from edgedecode.cache import cache_folder, facts_key, user_cache
from edgedecode.errors import ManifestError
from edgedecode.library.find import find_pack
from edgedecode.memory.sizes import format_nbytes, parse_nbytes
from edgedecode.onnx_format.graph_file import GraphFile
from edgedecode.pack.entries import FileEntry
from edgedecode.pack.gate import check_pack
from edgedecode.pack.manifest import MANIFEST_NAME, Graph, Manifest, ModelEntry
from edgedecode.pack.new_folder import new_folder, remove_abandoned

from ..lock import one_at_a_time
from .widening import Widening

FOLDER = "scaled"
FORMAT = 2
"""Part of a cached pack's name. Raising it makes packs that an older edgedecode built differently obsolete."""
DRAFT_SHARE = 0.1
"""Size of the draft's weights as a share of the target's."""
_MARGIN_NBYTES = 20_000_000
"""Space to leave free on the disk."""


@dataclass(frozen=True, slots=True)
class _Role:
    """A model to widen, and the number of units to add to every layer."""

    name: str
    entry: ModelEntry
    widening: Widening
    units: int

    @property
    def nbytes(self) -> int:
        return self.widening.nbytes(self.units)

    @property
    def graphs(self) -> dict[str, Graph]:
        return _graphs(self.entry)


def scaled_pack(arguments: Namespace) -> Path:
    """Return the folder of the pack that the arguments name, widened to `arguments.scale`; build it if not cached.

    Raises InputError for a size below the pack's own, CapabilityError if its graphs cannot be widened or the cache
    cannot be written, ManifestError, and ExportError if the disk becomes full.
    """
    nbytes = parse_nbytes(arguments.scale)
    if arguments.runtime == "llama":
        raise CapabilityError("--scale widens ONNX graphs, which llama.cpp cannot run: leave out --runtime llama")
    root = find_pack(arguments.model)
    manifest = Manifest.load(root)
    own = manifest.weights_nbytes("target")
    if nbytes < own:
        raise InputError(f"--scale {arguments.scale} is less than the target's own {format_nbytes(own)}: give more")
    folder = cache_folder(FOLDER)
    if folder is None:
        raise CapabilityError(f"the cache {user_cache()} cannot be written: set EDGEDECODE_CACHE to another folder")
    key = facts_key(manifest.to_json(), nbytes, FORMAT)
    with one_at_a_time():  # so that two processes do not build the same pack
        remove_abandoned(folder)
        if not _is_intact(folder / key):
            _make(folder / key, root, manifest, nbytes=nbytes)
    print(
        f"Widened to {nbytes / 1e6:g} MB with MLP units whose output weights are zero: the same text at the cost of a "
        f"larger model.",
        flush=True,
    )
    return folder / key


def _is_intact(folder: Path) -> bool:
    """Tell whether a cached pack exists and passes the check; remove a damaged one."""
    if not folder.exists():
        return False
    try:
        check_pack(folder)
    except ManifestError:
        shutil.rmtree(folder)
        return False
    return True


def _make(out: Path, root: Path, manifest: Manifest, *, nbytes: int) -> None:
    check_pack(root)
    roles = [_role(root, manifest, name, nbytes=nbytes) for name in manifest.models]
    needed = sum(role.nbytes for role in roles) + manifest.nbytes + _MARGIN_NBYTES
    if (free := shutil.disk_usage(out.parent).free) < needed:
        raise CapabilityError(
            f"about {format_nbytes(needed)} are needed and {out.parent} has {format_nbytes(free)} left: free some "
            f"space, or set EDGEDECODE_CACHE to another folder"
        )
    with new_folder(out) as folder, progress("widening, MB", round(sum(role.nbytes for role in roles) / 1e6)) as bar:
        files: dict[str, FileEntry] = {}
        for role in roles:
            files |= _write_role(folder, role, advance=lambda piece: bar(piece / 1e6))
        for name in _copied(manifest):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / name, folder / name)
            files[name] = manifest.files[name]
        scaled = _manifest(manifest, roles, files, nbytes=nbytes)
        (folder / MANIFEST_NAME).write_text(scaled.to_json(), encoding="utf-8")


def _role(root: Path, manifest: Manifest, name: str, *, nbytes: int) -> _Role:
    entry = manifest.models[name]
    if not _graphs(entry):
        raise CapabilityError(f"the pack has no ONNX graph of its {name}, which --scale widens")
    weights = root / manifest.located(name).weights
    try:
        graphs = {key: GraphFile.parse((root / graph.file).read_bytes()) for key, graph in _graphs(entry).items()}
    except ValueError as error:
        raise ManifestError(f"a graph of the {name} cannot be read: {error}") from None
    wanted = nbytes if name == "target" else max(manifest.weights_nbytes(name), round(nbytes * DRAFT_SHARE))
    widening = Widening(graphs, weights, layers=entry.layers, name=name)
    return _Role(name, entry, widening, widening.units_for(wanted))


def _graphs(entry: ModelEntry) -> dict[str, Graph]:
    """Return the graphs to widen. The lora graph is left out, since adapters' matrices would have to grow with it, and
    graphs of earlier versions with a trimmed head, which are not used."""
    return {name: graph for name, graph in entry.graphs.items() if not {"lora", "trim"} & set(graph.capabilities)}


def _write_role(folder: Path, role: _Role, *, advance: Callable[[int], None]) -> dict[str, FileEntry]:
    """Write a model's weights and graphs, and return their manifest entries."""
    weights = folder / role.entry.weights
    weights.parent.mkdir(parents=True, exist_ok=True)
    with weights.open("wb") as file:
        digest = role.widening.write(file, role.units, progress=advance)
    files = {role.entry.weights: FileEntry(weights.stat().st_size, digest)}
    for key, content in role.widening.widen_graphs(role.units).items():
        name = role.graphs[key].file
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
        files[name] = FileEntry(len(content), hashlib.sha256(content).hexdigest())
    return files


def _manifest(manifest: Manifest, roles: Sequence[_Role], files: Mapping[str, FileEntry], *, nbytes: int) -> Manifest:
    """Return the widened pack's manifest.

    Kernel noise and parity stay valid, since the new units contribute exactly zero. Measurements of speed and of engine
    equality, and the trimmed draft, are left out.
    """
    name = f"{manifest.name}, widened to {nbytes / 1e6:g} MB"
    models = {role.name: _entry(role) for role in roles}
    return replace(manifest, name=name, models=models, files=files, outside={}, adapters={})


def _entry(role: _Role) -> ModelEntry:
    entry = role.entry
    return replace(
        entry,
        parameters=entry.parameters + role.units * role.widening.parameters_of_unit,
        graphs=role.graphs,
        notes=(*entry.notes, f"Every MLP has {role.units} more units whose output weights are zero."),
        gguf="",
        gguf_plan="",
        equality=None,
        trimmed=None,
    )


def _copied(manifest: Manifest) -> list[str]:
    """Return the files to copy unchanged: tokenizer, templates, licences."""
    changed = {adapter.file for adapter in manifest.adapters.values()}
    for entry in manifest.models.values():
        changed |= {entry.weights, entry.gguf, entry.gguf_plan, *(graph.file for graph in entry.graphs.values())}
        changed |= set(entry.trimmed.graph.files) if entry.trimmed is not None else set()
    return [name for name in manifest.files if name not in changed]
