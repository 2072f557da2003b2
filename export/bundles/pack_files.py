"""Chooses what a bundle takes of a pack, and copies it: graphs, weights, tokenizer, adapters, GGUF files."""

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from shlex import quote

from edgedecode.errors import ExportError
from edgedecode.pack.chips import CHIPS
from edgedecode.pack.entries import STATIC
from edgedecode.pack.manifest import Graph, Manifest, ModelEntry
from edgedecode.typed_json import JsonValue

from ..gguf.maker import GgufMaker
from ..native.folder import NativeFolder
from .bundle import BundleAdapter, BundleGraph, BundleModel
from .request import NATIVE, PackageRequest

MODELS = "models"
SOC_MAP = "soc_map.json"
"""The file that names the graphs of each chip."""
_BASE, _ADAPTERS = "base", "adapters"
_FACTS = (
    "architecture", "rows", "context", "layers", "kv_heads", "head_size", "parameters", "license", "source", "window",
)  # fmt: skip
"""What a bundle says of a model as the pack does."""


def check_pack_has(request: PackageRequest, manifest: Manifest) -> None:
    """Raise ExportError, with the command that makes it, if the pack lacks what the target needs."""
    manifest.check_same_tokens("package")
    target, pack = request.target, request.pack
    if target.provider == NATIVE:
        return  # what the library cannot run is refused where its folder is written
    for role, entry in manifest.models.items():
        if not target.provider:
            if not entry.gguf and not entry.gguf_plan:
                raise ExportError(
                    f"the {role} of {pack} has no GGUF form, which {target.name} needs: export it with --formats gguf"
                )
            continue
        if _app_graph(entry) is None:
            raise ExportError(
                f"the {role} of {pack} has no ONNX graph that updates its cache in place, which {target.name} needs: "
                f"export it with --formats onnx"
            )
        if target.provider != "qnn":
            continue
        found = {soc for graph in entry.graphs.values() for each in graph.compiled for soc in each.socs}
        wanted = {chip.number for chip in request.socs}
        if not found or wanted - found:
            have = f"is compiled for {', '.join(map(str, sorted(found)))}" if found else "is not compiled"
            numbers = ",".join(map(str, sorted(wanted or {57, 69, 87})))
            raise ExportError(
                f"the {role} of {pack} {have}: run "
                f"`edgedecode compile {quote(str(pack))} --device qnn --soc {numbers}` first"
            )


def chosen_manifest(request: PackageRequest, manifest: Manifest) -> Manifest:
    """Return the manifest with the graphs that the bundle takes."""
    wanted = {chip.number for chip in request.socs}

    def kept(graph: Graph) -> Graph | None:
        if STATIC not in graph.capabilities:
            return None
        if request.target.provider != "qnn" or "lora" in graph.capabilities:
            return None
        compiled = tuple(each for each in graph.compiled if not wanted or wanted & {*each.socs})
        return replace(graph, compiled=compiled) if compiled else None

    models = {}
    for role, entry in manifest.models.items():
        static = {name: found for name, graph in entry.graphs.items() if (found := kept(graph)) is not None}
        models[role] = replace(entry, graphs={_BASE: base} | static if (base := _app_graph(entry)) else {})
    return replace(manifest, models=models)


def copy_models(
    root: Path, request: PackageRequest, manifest: Manifest, *, roles: Iterable[str]
) -> dict[str, BundleModel]:
    """Copy the models of these roles into the bundle at `root`; those of the native library's folder are there."""
    models: dict[str, BundleModel] = {}
    for role in roles:
        entry = manifest.located(role)
        plain = BundleModel(**{name: getattr(entry, name) for name in _FACTS})
        if request.target.provider == NATIVE:
            models[role] = plain
            continue
        if not request.target.provider:
            models[role] = replace(plain, gguf=_write_gguf(root, request.pack, entry, role))
            continue
        folder = f"{MODELS}/{role}"
        weights = _copy(request.pack / entry.weights, root, f"{folder}/{Path(entry.weights).name}")
        graphs = tuple(each for graph in entry.graphs.values() for each in _copy_graph(root, request.pack, graph, role))
        models[role] = replace(plain, weights=weights, graphs=graphs)
    return models


def soc_map_of(models: Mapping[str, BundleModel]) -> dict[str, JsonValue]:
    """Return the content of `SOC_MAP`: which graphs each chip opens, by the name that the device reports."""
    chips: list[JsonValue] = []
    numbers = sorted({soc for model in models.values() for graph in model.graphs for soc in graph.socs})
    for number in numbers:
        chip = CHIPS[number]
        graphs: JsonValue = {
            role: {str(graph.width): graph.file for graph in model.graphs if number in graph.socs}
            for role, model in models.items()
        }
        chips.append({
            "soc": number, "htp_arch": chip.generation, "name": chip.name, "soc_models": list(chip.models),
            "graphs": graphs,
        })  # fmt: skip
    return {"chips": chips, "otherwise": "cpu"}


def _app_graph(entry: ModelEntry) -> Graph | None:
    """Return the graph that an app opens on the processor; None: the pack has none with a cache updated in place."""
    graph = entry.graphs.get(_BASE)
    return graph if graph is not None and {"rows", "input_ids", "seqlens_k"} <= {*graph.inputs} else None


def _copy_graph(root: Path, pack: Path, graph: Graph, role: str) -> list[BundleGraph]:
    if not graph.compiled:
        name = _copy(pack / graph.file, root, f"{MODELS}/{role}/{PurePosixPath(graph.file).name}")
        return [BundleGraph(name)]
    found = []
    for each in graph.compiled:
        # the compiled graph names its binary, which lies next to it
        file, binary = (_copy(pack / name, root, name) for name in (each.file, each.binary))
        found.append(BundleGraph(file, each.provider, graph.width, graph.slots, binary, each.socs))
    return found


def copy_adapters(
    root: Path, request: PackageRequest, manifest: Manifest, *, roles: Iterable[str]
) -> dict[str, BundleAdapter]:
    """Copy the adapters of these roles into the bundle at `root`, in the target's format."""
    found = {}
    for name in manifest.adapters:
        entry = manifest.located_adapter(name)
        if entry.role in roles and entry.file.endswith(".gguf") != bool(request.target.provider):
            folder = f"{_ADAPTERS}/{name.replace(':', '-')}"
            file = _copy(request.pack / entry.file, root, f"{folder}/{Path(entry.file).name}")
            if entry.config:
                _copy(request.pack / entry.config, root, f"{folder}/{Path(entry.config).name}")
            found[name] = BundleAdapter(file, entry.role, entry.rank)
    return found


def native_adapters(folder: NativeFolder, manifest: Manifest) -> dict[str, BundleAdapter]:
    """Return the adapters in the native library's folder."""
    entries = manifest.adapters
    return {
        name: BundleAdapter(f"{NATIVE}/{each.file}", entries[name].role, entries[name].rank)
        for model in folder.models.values()
        for name, each in model.adapters.items()
    }


def _write_gguf(root: Path, pack: Path, entry: ModelEntry, role: str) -> str:
    kind = {8: "Q8_0", 4: "Q4_0", 16: "F16", 32: "F32"}.get(entry.bits, "mixed")
    name = f"{MODELS}/{role}-{kind}.gguf"
    if entry.gguf:
        return _copy(pack / entry.gguf, root, name)
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    GgufMaker().make(entry, pack, root / name)
    return name


def _copy(source: Path, root: Path, name: str) -> str:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, root / name)
    return name
