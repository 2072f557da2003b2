"""RankSurvival: hit rates of each rank per depth, with decay, replaced only when they changed."""

from __future__ import annotations

import pytest

from edgedecode.drafters.rank_rates import RankSurvival, stable_rates


def test_rates_follow_the_hits_at_each_depth() -> None:
    survival = RankSurvival()
    for index in range(400):
        survival.score(0, (0, 0, 1, None)[index % 4])
        survival.score(1, (2, None)[index % 2])
    first, second, *_ = survival.rates()
    assert first[0] == pytest.approx(0.5, abs=0.06)
    assert first[1] == pytest.approx(0.25, abs=0.06)
    assert second[2] == pytest.approx(0.5, abs=0.08)
    assert second[0] < 0.15
    assert all(sum(depth) <= 1 for depth in survival.rates())


def test_rates_of_deep_levels_start_from_the_level_above_and_share_the_last_counts() -> None:
    survival = RankSurvival()
    for _ in range(100):
        survival.score(0, 1)
    assert all(depth[1] > 0.8 for depth in survival.rates())
    for _ in range(100):
        survival.score(9, None)
    assert survival.rates()[-1][1] < 0.2
    assert survival.rates()[0][1] > 0.8


def test_rates_are_the_same_object_until_one_changes() -> None:
    survival = RankSurvival()
    before = survival.rates()
    assert survival.rates() is before
    seen = {id(before)}
    kept = [before]
    for _ in range(300):
        survival.score(0, 0)
        kept.append(survival.rates())
        seen.add(id(kept[-1]))
    assert 3 < len(seen) < 40
    assert stable_rates(((0.5,),), ((0.52,),)) == ((0.5,),)
    assert stable_rates(((0.5,),), ((0.54,),)) == ((0.54,),)
