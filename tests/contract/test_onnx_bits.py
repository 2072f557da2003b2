"""Quantized kernels: rows of chain passes two or more rows wide are bit-identical, whatever the widths and threads.

The bitwise losslessness suite stands on this; a one-row pass may round differently.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edgedecode.protocols import AdapterModel
from edgedecode.types import AdapterUse, LowRank
from tests.contract.conftest import Opener
from tests.contract.toy_graph import ToyShape

LENGTH = 200
WIDTHS = [*range(3, 18), 32, 64, 100, 198]


def shape(bits: int, block: int) -> ToyShape:
    return ToyShape(hidden=256, head_size=64, mlp=384, rows=512, bits=bits, block=block)


def read(model: object, tokens: list[int], *, width: int, rows: str, adapter: AdapterUse | None = None) -> np.ndarray:
    """Read `tokens` in passes of `width`, the last never one row, and return the rows asked for of every pass."""
    state, found, start = model.new_state(LENGTH), [], 0  # type: ignore[attr-defined]
    while start < len(tokens):
        left = len(tokens) - start
        step = width if left - width != 1 else width - 1
        logits = model.forward(tokens[start : start + step], state, rows=rows, adapter=adapter).logits  # type: ignore[attr-defined]
        found.append(logits.copy())
        start += min(step, left)
    state.close()
    return np.concatenate(found)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("bits", "block"), [(4, 32), (4, 128), (8, 32), (8, 128)])
def test_wide_chain_rows_are_bit_identical(opener: Opener, bits: int, block: int, threads: int) -> None:
    model = opener(shape(bits, block), threads=threads)
    tokens = [int(token) for token in np.random.default_rng(2).integers(0, 512, LENGTH)]
    pairs = read(model, tokens, width=2, rows="all")
    different = [width for width in WIDTHS if not np.array_equal(read(model, tokens, width=width, rows="all"), pairs)]
    assert different == []
    model.close()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("needs", ["kv:int8", "lora"])
def test_other_graphs_wide_chain_rows_are_bit_identical(opener: Opener, needs: str, threads: int) -> None:
    sizes = replace(shape(8, 32), graphs=("base", "lora", "kv8"))
    model = opener(sizes, threads=threads, needs=(needs,))
    adapter = None
    if needs == "lora":
        adapter = AdapterUse(name="formal", digest="f0")
        assert isinstance(model, AdapterModel)
        model.add_adapter("f0", [LowRank(0, "o_proj", *normal((8, 256), (256, 8)))])
    tokens = [int(token) for token in np.random.default_rng(2).integers(0, 512, LENGTH)]
    pairs = read(model, tokens, width=2, rows="all", adapter=adapter)
    found = {width: read(model, tokens, width=width, rows="all", adapter=adapter) for width in WIDTHS}
    assert [width for width, rows in found.items() if not np.array_equal(rows, pairs)] == []
    model.close()


def normal(*sizes: tuple[int, int]) -> list[np.ndarray]:
    draw = np.random.default_rng(4)
    return [draw.standard_normal(size, np.float32) / 16 for size in sizes]


@pytest.mark.parametrize("bits", [4, 8])
def test_a_row_does_not_depend_on_how_many_are_asked_for(opener: Opener, bits: int) -> None:
    model = opener(shape(bits, 32))
    tokens = [int(token) for token in np.random.default_rng(2).integers(0, 512, LENGTH)]
    pairs = read(model, tokens, width=2, rows="all")
    assert np.array_equal(read(model, tokens, width=2, rows="last"), pairs[1::2])
    assert np.array_equal(read(model, tokens, width=198, rows="last"), pairs[[197, 199]])
    model.close()
