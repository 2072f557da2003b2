"""Predicted speed-ups from known costs, the choice of a size, and warnings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgedecode.export.trim.forced_acceptance import LENGTHS, Acceptance
from edgedecode.export.trim.sweep import Costs, Sweep, SweepRow, bytes_ratio, predict
from edgedecode.export.trim.timing import PassTimes
from edgedecode.pack.manifest import Manifest
from tests.export.trim.toy_pack import write_toy_pack

FLAT = PassTimes({width: 2.0 * (1 + 0.1 * (width - 1)) for width in range(1, 10)})
MAIN = "calibration"


def acceptance(rate: float, *, coverage: float = 1.0) -> Acceptance:
    """Return the acceptance of drafts in which each token is accepted with probability `rate`."""
    per_round = {k: sum(rate**j for j in range(k + 1)) for k in LENGTHS}
    return Acceptance(1000, coverage, per_round)


def row(size: int, step: float, **categories: Acceptance) -> SweepRow:
    costs = Costs(step, step / 10)
    return SweepRow(size, costs, {name: predict(found, costs, FLAT) for name, found in categories.items()})


def sweep(*rows: SweepRow, whole: SweepRow, bound: float = 0.99) -> Sweep:
    return Sweep(rows, whole, FLAT, bound, MAIN)


WHOLE = row(8192, 1.0, calibration=acceptance(0.8))


def test_predict_is_tokens_over_costs_at_the_best_length() -> None:
    found = predict(acceptance(0.5), Costs(1.0, 0.05), FLAT)
    speeds = {k: sum(0.5**j for j in range(k + 1)) / (1 + 0.1 * k + 0.5 * k) for k in LENGTHS}
    assert found.speed_up == pytest.approx(max(speeds.values()))
    assert found.length == max(speeds, key=speeds.__getitem__)
    mbsu = {k: sum(0.5**j for j in range(k + 1)) / (0.05 * k + 1) for k in LENGTHS}
    assert found.mbsu == pytest.approx(max(mbsu.values()))


def test_sweep_best_needs_enough_coverage() -> None:
    small = row(512, 0.1, calibration=acceptance(0.79, coverage=0.9))
    middle = row(1024, 0.3, calibration=acceptance(0.79, coverage=0.995))
    large = row(4096, 0.7, calibration=acceptance(0.8, coverage=0.999))
    assert sweep(small, middle, large, whole=WHOLE).best is middle
    assert sweep(small, middle, large, whole=WHOLE, bound=0.9).best is small
    assert sweep(small, middle, large, whole=WHOLE, bound=0.999).best is large


def test_sweep_best_must_beat_the_full_draft() -> None:
    too_slow = row(4096, 1.0, calibration=acceptance(0.8))
    found = sweep(too_slow, whole=WHOLE)
    assert found.best is None
    assert found.reason() == "the best size, 4096 ids, is predicted 1.12x over plain decoding, the full draft 1.12x"
    uncovered = sweep(row(512, 0.1, calibration=acceptance(0.8, coverage=0.5)), whole=WHOLE)
    assert uncovered.best is None
    assert uncovered.reason() == "no size covers 99.0% of the held-out tokens; 512 ids cover 50.0%"


def test_sweep_warns_of_a_category_that_loses() -> None:
    categories = {"calibration": acceptance(0.8), "code": acceptance(0.8), "multilingual": acceptance(0.6)}
    whole = row(8192, 1.0, **categories)
    lossy = {**categories, "multilingual": acceptance(0.3, coverage=0.78)}
    found = sweep(row(1024, 0.6, **lossy), whole=whole)
    (warning,) = found.warnings(found.rows[0])
    entry = found.entries(found.rows[0])["multilingual"]
    assert entry.speed_up is not None
    assert entry.speed_up_full is not None
    assert warning == (
        f"multilingual has 22.0% of its tokens outside the vocabulary, falls from {entry.acceptance_full:.2f} to "
        f"{entry.acceptance:.2f} tokens per round, falls from {entry.speed_up_full:.2f}x to {entry.speed_up:.2f}x over "
        "plain decoding"
    )
    assert found.warnings(replace(found.rows[0], categories=row(1024, 0.6, **categories).categories)) == ()


def test_sweep_warns_of_categories_with_few_tokens() -> None:
    categories = {"calibration": acceptance(0.8), "code": replace(acceptance(0.8), tokens=122)}
    found = sweep(row(1024, 0.6, **categories), whole=row(8192, 1.0, **categories))
    assert found.warnings(found.rows[0]) == ("categories with fewer than 200 tokens are unreliable: code (122)",)


def test_sweep_entries_compare_both_heads_at_one_draft_length() -> None:
    found = sweep(row(1024, 0.2, calibration=acceptance(0.7)), whole=WHOLE)
    length = found.length(found.rows[0])
    entry = found.entries(found.rows[0])[MAIN]
    assert entry.acceptance == acceptance(0.7).per_round[length]
    assert entry.acceptance_full == acceptance(0.8).per_round[length]


def test_bytes_ratio_counts_the_removed_rows(tmp_path) -> None:  # type: ignore[no-untyped-def]
    manifest = Manifest.load(write_toy_pack(tmp_path))
    draft = replace(manifest.models["draft"], hidden_size=64, block_size=32, head_bits=8, rows=20)
    manifest = replace(manifest, models={**manifest.models, "draft": draft})
    assert bytes_ratio(manifest, size=20) == 1.0
    assert bytes_ratio(manifest, size=10) == pytest.approx((1000 - 10 * (64 + 2 * 4)) / 1000)
