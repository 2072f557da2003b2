"""Toys with a graph of two heads, built from the toy's base graph as by `edgedecode trim`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgedecode.arrays import IntArray
from edgedecode.decoding.model import HeadedModel
from edgedecode.memory.budget import Budget
from edgedecode.pack.entries import TrimEntry
from edgedecode.pack.manifest import ModelEntry
from edgedecode.pack.token_map import write_token_ids
from edgedecode.runtimes.onnx.onnx_model import OnnxModel
from tests.contract.conftest import open_entry
from tests.contract.toy_graph import ToyShape, write_toy

MAP = "trim.ids"
KEPT: IntArray = np.sort(np.random.default_rng(11).permutation(128)[:37]).astype(np.int64)
"""An odd number of ids, so that no kernel's tile comes out even."""


def add_heads(entry: ModelEntry, folder: Path, *, ids: IntArray = KEPT) -> ModelEntry:
    """Add the graph "heads" to an existing toy and return the entry with it."""
    pytest.importorskip("onnx_ir", reason="onnx_ir, which builds the graph, is not installed")
    from edgedecode.export.trim.heads_graph import write_heads

    graph = write_heads(entry.graphs["base"], entry, folder, out=folder / "heads.onnx", ids=ids)
    write_token_ids(folder / MAP, ids)
    return replace(entry, graphs={**entry.graphs, "heads": graph}, trim=TrimEntry(size=len(ids), token_ids=MAP))


def write_headed(folder: Path, shape: ToyShape, *, ids: IntArray = KEPT) -> ModelEntry:
    """Write a toy and its graph "heads"."""
    return add_heads(write_toy(folder, shape), folder, ids=ids)


def open_headed(
    entry: ModelEntry, folder: Path, *, budget: Budget | None = None, threads: int = 1, provider: str = "cpu"
) -> OnnxModel:
    """Open the graph with the trimmed head."""
    budget = budget or Budget()
    model = open_entry(entry, folder, budget=budget, needs=("trim",), threads=threads, provider=provider)
    assert isinstance(model, OnnxModel)
    assert isinstance(model, HeadedModel)
    return model
