"""Statistics of a generation."""

import json
from dataclasses import fields

import numpy as np
import pytest

from edgedecode.decoding.drafts import Draft
from edgedecode.decoding.stats import Stats, TimeSplit
from edgedecode.decoding.verify import Outcome, TargetRows, Verdict
from edgedecode.sampling.sampler import Sampler
from edgedecode.sampling.weights import SamplingOptions

ROWS = TargetRows(np.zeros((1, 4), dtype=np.float32), Sampler(SamplingOptions(), vocabulary_size=4))

RATES = {
    *("target_share", "acceptance_length", "speed_up", "prefill_tokens_per_second", "tokens_per_second"),
    "plain_tokens_per_second",
}


def verdict(draft: Draft, *, path: tuple[int, ...], added: int, outcome: Outcome) -> Verdict:
    tokens = tuple(draft.tokens[node] for node in path) + (0,) * added
    return Verdict(draft, tokens, path, outcome, ROWS)


def counted() -> Stats:
    stats = Stats()
    stats.count(verdict(Draft(), path=(), added=1, outcome=Outcome.BONUS))
    stats.count(verdict(Draft((1, 2, 3)), path=(0, 1), added=1, outcome=Outcome.CORRECTION))
    stats.count(verdict(Draft((1, 2, 3), parents=(-1, -1, 1)), path=(1,), added=1, outcome=Outcome.CORRECTION))
    stats.count(verdict(Draft((1, 2)), path=(0, 1), added=0, outcome=Outcome.ENDED))
    return stats


def test_stats_add_up_rounds_and_tokens() -> None:
    stats = counted()
    assert (stats.rounds, stats.proposed, stats.accepted) == (4, 8, 5)
    assert (stats.bonuses, stats.corrections, stats.ended) == (1, 2, 1)
    assert stats.verified_tokens == 1 + 3 + 2 + 2
    assert stats.acceptance_length == pytest.approx(8 / 4)


def test_stats_survival_counts_depths_not_nodes() -> None:
    stats = counted()
    assert stats.reached == [3, 3, 1]
    assert stats.survival == [3, 2, 0]


def test_stats_of_an_empty_generation_are_zero() -> None:
    stats = Stats()
    assert stats.acceptance_length == stats.tokens_per_second == stats.prefill_tokens_per_second == 0


def test_stats_speeds() -> None:
    stats = counted()
    stats.time = TimeSplit(draft=0.5, verify=1.0, sample=0.25, host=0.25)
    stats.prompt_tokens, stats.cached_tokens, stats.prefill_seconds = 30, 10, 0.5
    assert stats.tokens_per_second == pytest.approx(7 / 2)  # the first token comes from the prefill pass
    assert stats.prefill_tokens_per_second == pytest.approx(40)


def test_stats_to_json_has_every_field_and_rate() -> None:
    stats = counted()
    stats.dropped_turns, stats.reread_tokens, stats.context_full = 2, 30, True
    stats.signals = [1 / 3]
    shown = json.loads(stats.to_json())
    public = {each.name for each in fields(Stats) if not each.name.startswith("_")}
    assert set(shown) == public - {"time"} | {"time_seconds"} | RATES
    assert set(shown["time_seconds"]) == {each.name for each in fields(TimeSplit)}
    assert (shown["dropped_turns"], shown["reread_tokens"]) == (2, 30)
    assert shown["context_full"] is True
    assert shown["signals"] == [0.333333]
    assert shown["corrections"] + shown["bonuses"] + shown["ended"] == shown["rounds"]
