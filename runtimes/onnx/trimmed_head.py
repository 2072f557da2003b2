"""A model's trimmed head: read its ids from the pack, and run forward passes through it."""

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

from .graph_session import TRIM_LOGITS
from .logits_outputs import HeadBinding
from .onnx_engine import Untyped


class Passes(Protocol):
    """A model's `forward` through a given head."""

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
    """Read the ids of a graph's trimmed head, after `check_contract`; None if the graph has no trimmed head.

    Raises ManifestError unless the head has one row per id.
    """
    if "trim" not in graph.capabilities:
        return None
    if entry.trim is None:
        raise ManifestError(f"{root} has a trimmed head without a token map: run `edgedecode trim` again")
    ids = read_token_ids(root / entry.trim.token_ids, rows=entry.trim.size, vocabulary_size=vocabulary_size)
    (width,) = (value.shape[-1] for value in session.get_outputs() if value.name == TRIM_LOGITS)
    if width != len(ids):
        raise ManifestError(
            f"{root / graph.file} has a trimmed head of {width} rows, its map {len(ids)}: run `edgedecode trim` again"
        )
    return ids
