"""A model's smaller heads as callers see them: passes of the model that leave through another head."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from edgedecode.decoding.arrays import IntArray
from edgedecode.decoding.model import AdapterUse, Output, RowRequest, State
from edgedecode.errors import CapabilityError, InputError

from .local_rows import LocalRows
from .logits_outputs import Outlet

__all__ = ["LocalModelHead", "TrimmedModelHead"]


class Passes(Protocol):
    """A model's `forward` through a head."""

    def __call__(
        self,
        outlet: Outlet,
        tokens: Sequence[int],
        state: State,
        *,
        parents: Sequence[int] | None,
        rows: RowRequest,
        adapter: AdapterUse | None,
    ) -> Output: ...


class TrimmedModelHead:
    """Implements `Head` for the trimmed vocabulary."""

    def __init__(self, passes: Passes, outlet: Outlet, token_ids: IntArray) -> None:
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


class LocalModelHead:
    """Implements `LocalHead`. A model has one choice of ids at a time: whoever shares it chooses before its passes."""

    def __init__(self, passes: Passes, local: LocalRows, *, lock: AbstractContextManager[object], name: str) -> None:
        self._passes, self._local, self._lock, self._name = passes, local, lock, name

    @property
    def token_ids(self) -> IntArray:
        return self._local.chosen

    @property
    def most(self) -> int:
        return self._local.most

    def choose(self, ids: IntArray) -> None:
        with self._lock:
            if self._local.closed:
                raise CapabilityError(f"the model {self._name} is closed")
            self._local.choose(ids)

    def forward(
        self,
        tokens: Sequence[int],
        state: State,
        *,
        parents: Sequence[int] | None = None,
        rows: RowRequest = "last",
        adapter: AdapterUse | None = None,
    ) -> Output:
        outlet = self._local.outlet
        if outlet is None:
            if self._local.closed:
                raise CapabilityError(f"the model {self._name} is closed")
            raise InputError(f"the local head of {self._name} has no ids: choose some before its first pass")
        return self._passes(outlet, tokens, state, parents=parents, rows=rows, adapter=adapter)
