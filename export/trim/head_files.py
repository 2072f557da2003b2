"""Writes the files of a draft's trimmed head: the graph "heads" and the token map."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from edgedecode.arrays import IntArray
from edgedecode.decoding.drafts import TrimmedVocabulary
from edgedecode.decoding.model import HeadedModel, LanguageModel
from edgedecode.engines.interface import ModelRequest, Runtime
from edgedecode.engines.pass_timing import Forward
from edgedecode.errors import ExportError
from edgedecode.memory.budget import Budget
from edgedecode.pack.entries import TrimEntry
from edgedecode.pack.manifest import Graph, Manifest, ModelEntry
from edgedecode.pack.token_map import write_token_ids

from .pack_change import HEADS, Workplace

_BASE = "base"


@dataclass(frozen=True, slots=True)
class Heads:
    """Files that were written, named relative to the pack."""

    graph: Graph | None
    """None if the pack holds the draft only as GGUF."""
    trim: TrimEntry
    paths: tuple[Path, ...]


def make_heads(place: Workplace, manifest: Manifest, *, vocabulary: TrimmedVocabulary) -> Heads:
    """Write the head for this vocabulary. Raises ExportError if the draft's head cannot be trimmed."""
    entry = manifest.located("draft")
    if not entry.graphs:
        raise ExportError("the pack's draft has no ONNX graph, and only graphs can be trimmed: export it again")
    base = entry.graphs.get(_BASE) or next(iter(entry.graphs.values()))
    paths = place.path("heads"), place.path("trim")
    graph = _write_graph(base, entry, place.root, out=paths[0], ids=vocabulary.ids)
    write_token_ids(paths[1], vocabulary.ids)
    trim = TrimEntry(size=len(vocabulary), token_ids=place.name(paths[1]))
    return Heads(replace(graph, file=place.name(paths[0])), trim, paths)


@contextmanager
def opened_trim(
    runtime: Runtime, heads: Heads, place: Workplace, manifest: Manifest, *, vocabulary_size: int, threads: int | None
) -> Iterator[LanguageModel]:
    """Open the draft with these heads as a session would. Raises what `Runtime.open` does."""
    entry = manifest.located("draft")
    model = runtime.open(
        ModelRequest(
            replace(entry, graphs={} if heads.graph is None else {HEADS: heads.graph}, trim=heads.trim),
            place.root,
            "draft",
            vocabulary_size,
            Budget(),
            threads=threads,
            needs=("trim",),
        )
    )
    try:
        yield model
    finally:
        model.close()


def trimmed_head(model: LanguageModel) -> Forward:
    """Return the object that computes the trimmed logits: a head of the model, or the model itself."""
    if isinstance(model, HeadedModel) and model.trimmed is not None:
        return model.trimmed
    return model


def _write_graph(base: Graph, entry: ModelEntry, root: Path, *, out: Path, ids: IntArray) -> Graph:
    from .heads_graph import write_heads

    return write_heads(base, entry, root, out=out, ids=ids)
