"""Kernel noise, measured on models of known noise."""

from collections.abc import Sequence

import numpy as np
import pytest

from edgedecode.decoding.model import AdapterUse, Output, RowRequest, State
from edgedecode.engines.kernel_noise import measure_noise
from edgedecode.testing import TableModel, toy_tables

PROMPTS = [(1, 2, 3), (4,)]


class WideNoise(TableModel):
    """A table model that adds a known amount to logit 0 in passes of several rows."""

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
    wide = WideNoise(toy_tables(8, seed=2), context=400)
    wide.shift = shift
    return wide


def test_measure_noise_is_zero_for_equal_kernels() -> None:
    noise = measure_noise(model(0.0), PROMPTS, ends=(), positions=300)
    assert (noise.percentile, noise.largest, noise.positions) == (0.0, 0.0, 300)


def test_measure_noise_finds_the_size_of_a_shifted_logit() -> None:
    noise = measure_noise(model(0.25), PROMPTS, ends=(), positions=300)
    assert noise.percentile == pytest.approx(0.25, abs=1e-5)
    assert noise.largest == pytest.approx(0.25, abs=1e-5)


def test_measure_noise_ends_a_text_at_an_end_token() -> None:
    progress: list[int] = []
    ends = range(4)
    noise = measure_noise(model(0.1), PROMPTS, ends=ends, positions=200, progress=progress.append)
    assert noise.positions == sum(progress) == 200
    assert np.mean(progress) < 20


@pytest.mark.parametrize(
    ("positions", "ends"), [(3, ()), (20, range(8))], ids=["a remainder of one row", "segments of one row"]
)
def test_measure_noise_compares_no_row_with_itself(positions: int, ends: tuple[int, ...]) -> None:
    wide = model(0.1)
    assert measure_noise(wide, [(4,)], ends=ends, positions=positions).positions == positions
    assert wide.passes.count(1) == positions  # every row is sampled and none is read again


def test_measure_noise_is_deterministic() -> None:
    assert measure_noise(model(0.1), PROMPTS, ends=(2,), positions=90) == measure_noise(
        model(0.1), PROMPTS, ends=(2,), positions=90
    )
