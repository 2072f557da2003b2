"""A model's trimmed head: its ids, as the pack has them, and passes of the model that leave through it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from edgedecode.arrays import IntArray
from edgedecode.decoding.drafts import TrimmedVocabulary
from edgedecode.decoding.model import AdapterUse, Output, RowRequest, State
from edgedecode.errors import ManifestError
from edgedecode.pack.manifest import Graph, ModelEntry
from edgedecode.pack.token_map import read_token_ids

from .graph_session import TRIM_LOGITS, Untyped
from .logits_outputs import HeadBinding

__all__ = ["TrimmedModelHead", "read_trimmed"]


class Passes(Protocol):
    """A model's `forward` through a head."""

    def __call__(
        self,
        outlet: HeadBinding,
        tokens: Sequence[int],
        state: State,
        *,
        parents: Sequence[int] | None,
        rows: RowRequest,
        adapter: AdapterUse | None,
    ) -> Output: ...


class TrimmedModelHead:
    """Implements `Head` for the trimmed vocabulary."""

    def __init__(self, passes: Passes, outlet: HeadBinding, token_ids: IntArray) -> None:
        self._passes, self._outlet, self._token_ids = passes, outlet, token_ids

    @property
    def token_ids(self) -> IntArray:
        return self._token_ids

    def forward(
        self,
        tokens: Sequence[int],
        state: State,
        *,
        parents: Sequence[int] | None = None,
        rows: RowRequest = "last",
        adapter: AdapterUse | None = None,
    ) -> Output:
        return self._passes(self._outlet, tokens, state, parents=parents, rows=rows, adapter=adapter)


def read_trimmed(
    session: Untyped, *, entry: ModelEntry, graph: Graph, root: Path, vocabulary_size: int
) -> TrimmedVocabulary | None:
    """Read the ids of the trimmed head of a graph that `check_contract` has passed; None where it has none.

    Raises ManifestError unless the graph's head has a row for each of them.
    """
    if "trim" not in graph.capabilities:
        return None
    if entry.trim is None:
        raise ManifestError(f"{root} has a trimmed head and nothing that maps it: run `edgedecode trim` again")
    ids = read_token_ids(root / entry.trim.token_ids, rows=entry.trim.size, vocabulary_size=vocabulary_size)
    (width,) = (value.shape[-1] for value in session.get_outputs() if value.name == TRIM_LOGITS)
    if width != len(ids):
        raise ManifestError(
            f"{root / graph.file} has a trimmed head of {width} rows, its map {len(ids)}: run `edgedecode trim` again"
        )
    return ids
