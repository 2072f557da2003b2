"""Peak memory of each stage of a job."""

import os

import numpy as np
import pytest

from edgedecode.export.stages import Stages

pytestmark = pytest.mark.export


def test_stage_peak_is_measured_per_stage() -> None:
    stages = Stages()
    with stages.stage("large"):
        np.ones(200_000_000, np.uint8)
    with stages.stage("small"):
        np.ones(1000, np.uint8)
    large, small = stages.records
    assert large.own_peak == small.own_peak == os.access("/proc/self/clear_refs", os.W_OK)
    if not small.own_peak:
        pytest.skip("this system cannot reset the peak")
    assert large.peak_nbytes - small.peak_nbytes > 150_000_000
