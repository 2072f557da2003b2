"""The two layouts of an adapter's matrices for one product, `join` and `stack`, give the same delta."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from edgedecode.adapters.adapter_parts import Projection, Projections, part_starts
from edgedecode.decoding.model import LowRank

INPUTS, KV_WIDTH = 24, 16


def projections(module: str, outputs: int) -> Projections:
    return Projections(
        [Projection(0, module, INPUTS, outputs)],
        name="target",
        rank=8,
        modules=("q_proj", "k_proj", "v_proj", "qkv_proj", "gate_proj", "up_proj", "gate_up_proj", "o_proj"),
        kv_width=KV_WIDTH,
        hint="",
    )


def part(module: str, outputs: int, rank: int) -> LowRank:
    draw = np.random.default_rng(len(module) + rank)
    down = draw.standard_normal((rank, INPUTS)).astype(np.float32)
    return LowRank(0, module, down, draw.standard_normal((outputs, rank)).astype(np.float32))


@pytest.mark.parametrize(
    ("module", "outputs", "given"),
    [
        ("qkv_proj", 64, [part("q_proj", 32, 4), part("k_proj", 16, 4), part("v_proj", 16, 4)]),
        ("qkv_proj", 64, [part("v_proj", 16, 3), part("q_proj", 32, 8)]),
        ("qkv_proj", 64, [part("qkv_proj", 64, 5)]),
        ("qkv_proj", 64, [part("qkv_proj", 64, 2), part("k_proj", 16, 3)]),
        ("gate_up_proj", 80, [part("up_proj", 40, 1)]),
        ("o_proj", 32, [part("o_proj", 32, 7)]),
        ("o_proj", 32, []),
    ],
    ids=["all parts", "two of different ranks", "stacked", "stacked and one part", "one half", "single", "none"],
)
def test_stack_has_the_delta_of_join_without_its_zeros(module: str, outputs: int, given: Sequence[LowRank]) -> None:
    found = projections(module, outputs)
    (parts,) = found.sort(given)
    joined, stacked = found.join(parts), found.stack(parts)
    starts = part_starts(module, outputs=outputs, kv_width=KV_WIDTH)
    rank = stacked.up.shape[1]
    assert stacked.down.shape == (len(starts) * rank, INPUTS)
    assert stacked.up.shape == (outputs, rank)
    assert rank <= max(1, joined.rank)
    delta = np.concatenate(
        [
            stacked.up[first:last] @ stacked.down[index * rank : (index + 1) * rank]
            for index, (first, last) in enumerate(pairwise([*starts, outputs]))
        ]
    )
    np.testing.assert_allclose(delta, joined.product(), atol=1e-6)
