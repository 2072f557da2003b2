"""Puts a draft model into a pack: its graph, with the logits of the ids that it was trained on."""

from dataclasses import asdict, replace
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

import numpy as np

from edgedecode.errors import ExportError
from edgedecode.pack.entries import DRAFT, DRAFT_FOLDERS, TRIM_NAMES
from edgedecode.pack.manifest import Manifest, ModelEntry, TrimmedDraft
from edgedecode.pack.new_folder import link_or_copy
from edgedecode.pack.pack_change import changed_pack
from edgedecode.pack.token_map import write_token_ids

from ...base_model import open_source
from ...checks.model_checks import CheckTexts
from ...graph.checkpoint import weight_files
from ...graph.graph_request import Span
from ...graph.quantize import Scheme
from ...graph.recipe import Recipe
from ...job import ModelJob
from ...kept_steps import KeptSteps
from ...model_export import export_model
from ...stages import Stages
from ...trim.trim_pack import ENGINE
from ...trim.trimmed_graph import write_trimmed
from .kind import IDS, TRIAL


def add_draft(root: Path, folder: Path, stages: Stages) -> None:
    """Export the model in the folder with the bits of the pack's target, in the place of the pack's draft model.

    Raises ExportError, ManifestError or OSError, and leaves the pack as it was.
    """
    with TemporaryDirectory(prefix=TRIAL, dir=folder) as place, changed_pack(root) as change:
        entry = _exported(folder, Path(place), change.manifest, stages)
        old = change.manifest.models.get(DRAFT)
        name = next(each for each in DRAFT_FOLDERS if not any(f.startswith(f"{each}/") for f in change.manifest.files))
        for path in sorted((Path(place) / DRAFT).iterdir()):
            link_or_copy(path, change.place(f"{name}/{path.name}"))
        change.value["models"][DRAFT] = asdict(_moved(entry, name))
        if old is not None:
            change.remove(_files(old))


def remove_draft(root: Path) -> ModelEntry:
    """Remove the pack's draft model; return its entry. Raises ManifestError, ExportError if it has none, or OSError."""
    with changed_pack(root) as change:
        if (entry := change.manifest.models.get(DRAFT)) is None:
            raise ExportError(f"the pack {root} has no draft model")
        check_unadapted(change.manifest)
        del change.value["models"][DRAFT]
        change.remove(_files(entry))
        return entry


def check_unadapted(manifest: Manifest) -> None:
    """Raise ExportError if an adapter of the pack is its draft model's."""
    if own := [name for name, each in manifest.adapters.items() if each.role == DRAFT]:
        raise ExportError(f"the pack's draft model has an adapter, {own[0]}: remove it first, it fits no other")


def _exported(folder: Path, place: Path, manifest: Manifest, stages: Stages) -> ModelEntry:
    source, target = open_source(str(folder)), manifest.models["target"]
    bits = target.bits if target.bits in (4, 8) else 8
    recipe = Recipe(Scheme(bits, 32), Scheme(8, 32)).of(source.shape)
    span = Span(min(target.context, source.shape.context))
    context = span.context_of(source.shape)
    texts = CheckTexts.of(source.tokenizer, template=None, ends=manifest.generation.end_token_ids, context=context)
    job = ModelJob(DRAFT, source, recipe, target.license, replace(texts, noise_positions=0), span)
    entry = export_model(job, weight_files(folder), pack=place, steps=KeptSteps(None, DRAFT, stages), stages=stages)
    entry = replace(entry, source=f"{target.source}, distilled")
    ids = np.fromfile(folder / IDS, "<i4").astype(np.int64)
    if len(ids) == entry.rows:
        return entry
    file, listed = (f"{DRAFT}/{TRIM_NAMES[kind][0]}" for kind in ("graph", "ids"))
    graph = write_trimmed(entry.graphs["base"], entry, place, out=place / file, ids=ids)
    write_token_ids(place / listed, ids)
    return replace(entry, trimmed=TrimmedDraft(replace(graph, file=file, token_ids=listed), ENGINE))


def _moved(entry: ModelEntry, folder: str) -> ModelEntry:
    """Return the entry with its files in another folder of the pack."""

    def place(name: str) -> str:
        return f"{folder}/{PurePosixPath(name).name}" if name else ""

    graphs = {name: replace(graph, file=place(graph.file)) for name, graph in entry.graphs.items()}
    trimmed = entry.trimmed
    if trimmed is not None:
        graph = replace(trimmed.graph, file=place(trimmed.graph.file), token_ids=place(trimmed.graph.token_ids))
        trimmed = replace(trimmed, graph=graph)
    return replace(entry, weights=place(entry.weights), graphs=graphs, trimmed=trimmed)


def _files(entry: ModelEntry) -> list[str]:
    graphs = [*entry.graphs.values(), *([entry.trimmed.graph] if entry.trimmed is not None else [])]
    return [
        *(name for name in (entry.weights, entry.gguf, entry.gguf_plan) if name),
        *(name for graph in graphs for name in graph.files),
    ]
