"""Chances per position start from a prior, follow what happens, and forget."""

from __future__ import annotations

import json

import pytest

from edgedecode.decoding.policy import Score
from edgedecode.schedule.acceptance import MATCH_BUCKETS, Survival, match_bucket


def test_curves_fall_and_longer_matches_are_trusted_more() -> None:
    survival = Survival()
    first = [survival.curve("suffix", 8, match)[0] for match in (1, 2, 3, 6, 12, 40)]
    assert first == sorted(first)
    curve = survival.curve("suffix", 20, 3)
    assert len(curve) == 20
    assert curve == sorted(curve, reverse=True)


def test_a_wholly_accepted_draft_is_no_failure() -> None:
    survival = Survival()
    for _ in range(30):
        survival.add(Score("a", 2, 2))
    assert survival.curve("a", 8)[-1] > 0.8


def test_positions_learn_apart() -> None:
    survival = Survival()
    for _ in range(30):
        survival.add(Score("a", 4, 2))
    curve = survival.curve("a", 4)
    assert curve[1] > 0.8
    assert curve[2] < 0.25


def test_a_change_is_noticed_soon_and_drafters_do_not_mix() -> None:
    survival = Survival()
    for _ in range(50):
        survival.add(Score("a", 1, 1))
    before = survival.curve("b", 1)
    for _ in range(10):
        survival.add(Score("a", 1, 0))
    assert survival.curve("a", 1)[0] < 0.2
    assert survival.curve("b", 1) == before


def test_a_new_generation_believes_old_ones_less() -> None:
    survival = Survival()
    for _ in range(50):
        survival.add(Score("a", 1, 0))
    survival.begin()
    for _ in range(8):
        survival.add(Score("a", 1, 1))
    assert survival.curve("a", 1)[0] > 0.5


def test_buckets_cover_every_length() -> None:
    assert [match_bucket(match) for match in MATCH_BUCKETS] == list(range(len(MATCH_BUCKETS)))
    assert match_bucket(10**6) == len(MATCH_BUCKETS)


def test_it_survives_json_and_refuses_anything_else() -> None:
    survival = Survival()
    survival.add(Score("a", 3, 1, match=5))
    text = json.dumps(survival.as_dict())
    assert Survival.from_dict(json.loads(text)).as_dict() == survival.as_dict()
    for broken in ('{"a:1": {}}', '{"a": 3}', '{"a:99": {"accepted": [], "tried": []}}'):
        with pytest.raises((KeyError, TypeError, ValueError, IndexError)):
            Survival.from_dict(json.loads(broken))
