"""Kernel noise, on models whose noise is known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from edgedecode.decoding.model import AdapterUse, Output, RowRequest, State
from edgedecode.engines.kernel_noise import measure_noise
from edgedecode.testing import TableModel, toy_tables

PROMPTS = [(1, 2, 3), (4,)]


class WideNoise(TableModel):
    """A table whose passes of several rows move logit 0 up by a known amount."""

    shift = 0.0

    def forward(
        self,
        tokens: Sequence[int],
        state: State,
        *,
        parents: Sequence[int] | None = None,
        rows: RowRequest = "last",
        adapter: AdapterUse | None = None,
    ) -> Output:
        output = super().forward(tokens, state, parents=parents, rows=rows, adapter=adapter)
        logits = output.logits.copy()
        if len(tokens) > 1:
            logits[:, 0] += self.shift
        return Output(logits)


def model(shift: float) -> WideNoise:
    made = WideNoise(toy_tables(8, seed=2), context=400)
    made.shift = shift
    return made


def test_equal_kernels_have_no_noise() -> None:
    noise = measure_noise(model(0.0), PROMPTS, ends=(), positions=300)
    assert (noise.percentile, noise.largest, noise.positions) == (0.0, 0.0, 300)


def test_a_moved_logit_is_seen_as_large_as_it_is() -> None:
    noise = measure_noise(model(0.25), PROMPTS, ends=(), positions=300)
    assert noise.percentile == pytest.approx(0.25, abs=1e-5)
    assert noise.largest == pytest.approx(0.25, abs=1e-5)


def test_the_text_ends_where_the_model_ends_it() -> None:
    told: list[int] = []
    ends = range(4)
    noise = measure_noise(model(0.1), PROMPTS, ends=ends, positions=200, progress=told.append)
    assert noise.positions == sum(told) == 200
    assert np.mean(told) < 20


@pytest.mark.parametrize(("positions", "ends"), [(3, ()), (20, range(8))], ids=["a row left over", "segments of one"])
def test_no_row_is_compared_with_itself(positions: int, ends: tuple[int, ...]) -> None:
    wide = model(0.1)
    assert measure_noise(wide, [(4,)], ends=ends, positions=positions).positions == positions
    assert wide.passes.count(1) == positions  # all of them sampled, none read again


def test_it_is_the_same_every_time() -> None:
    assert measure_noise(model(0.1), PROMPTS, ends=(2,), positions=90) == measure_noise(
        model(0.1), PROMPTS, ends=(2,), positions=90
    )
