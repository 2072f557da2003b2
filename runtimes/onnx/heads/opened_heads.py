"""A graph's further heads as they are opened with it: the trimmed one's map, the local one's table. Binds nothing."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from edgedecode.decoding.drafts import TrimmedVocabulary
from edgedecode.decoding.model import ModelCard
from edgedecode.errors import InputError, ManifestError
from edgedecode.head_table import HEAD_PROPERTY, HeadLayout, HeadTable
from edgedecode.memory import Budget
from edgedecode.pack.manifest import Graph, ModelEntry
from edgedecode.pack.token_map import read_token_ids

from ..graph_session import TRIM_LOGITS, Untyped
from .local_rows import LocalRows
from .logits_outputs import LOCAL, Outlet

__all__ = ["OpenedHeads", "open_heads"]


@dataclass(frozen=True, slots=True)
class OpenedHeads:
    """What a model has beside its whole head."""

    trimmed: TrimmedVocabulary | None = None
    local: LocalRows | None = None

    def check_chosen(self, outlet: Outlet, *, name: str) -> None:
        """Raise InputError for a choice of the local head's ids that another one has replaced, with its rows."""
        if outlet.place == LOCAL and (self.local is None or outlet is not self.local.outlet):
            raise InputError(
                f"the local head of {name} got other ids before its pass could start: choose its ids again"
            )

    def close(self) -> None:
        """Give the local head's memory back. Idempotent."""
        if self.local is not None:
            self.local.close()


def open_heads(
    engine: Untyped,
    session: Untyped,
    *,
    entry: ModelEntry,
    graph: Graph,
    root: Path,
    card: ModelCard,
    needs: Collection[str],
    budget: Budget,
) -> OpenedHeads:
    """Open the further heads of a graph that `check_contract` has passed; the local one only where it is needed.

    Raises ManifestError where they do not fit the manifest, BudgetExceeded before the local head's rows are allocated.
    """
    trimmed = None
    if "trim" in graph.capabilities:
        trimmed = _read_map(entry, root, vocabulary_size=card.vocabulary_size)
        _check_width(session, len(trimmed), path=root / graph.file)
    if "local" not in needs:
        return OpenedHeads(trimmed)
    table = _open_table(session, entry, root=root, path=root / graph.file)
    size = card.vocabulary_size
    return OpenedHeads(trimmed, LocalRows(engine, table, name=card.name, vocabulary_size=size, budget=budget))


def _read_map(entry: ModelEntry, root: Path, *, vocabulary_size: int) -> TrimmedVocabulary:
    if entry.trim is None:
        raise ManifestError(f"{root} has a trimmed head and nothing that maps it: run `edgedecode trim` again")
    return read_token_ids(root / entry.trim.token_ids, rows=entry.trim.size, vocabulary_size=vocabulary_size)


def _check_width(session: Untyped, rows: int, *, path: Path) -> None:
    """Raise ManifestError unless the trimmed head has a row for each id of the map."""
    (width,) = (value.shape[-1] for value in session.get_outputs() if value.name == TRIM_LOGITS)
    if width != rows:
        raise ManifestError(f"{path} has a trimmed head of {width} rows, its map {rows}: run `edgedecode trim` again")


def _open_table(session: Untyped, entry: ModelEntry, *, root: Path, path: Path) -> HeadTable:
    where = f"{path}: {HEAD_PROPERTY}"
    try:
        text = session.get_modelmeta().custom_metadata_map.get(HEAD_PROPERTY, "")
    except UnicodeDecodeError:
        raise ManifestError(f"{where} is not text: run `edgedecode trim` again") from None
    layout = HeadLayout.parse(text, where)
    if (layout.rows, layout.columns) != (entry.rows, entry.hidden_size):
        raise ManifestError(
            f"{path} speaks of a head of {layout.rows} by {layout.columns}, the manifest of {entry.rows} by "
            f"{entry.hidden_size}: run `edgedecode trim` again"
        )
    return HeadTable(layout, root / entry.weights)
