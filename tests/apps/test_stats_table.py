"""The statistics line and table name the drafters, the reasons for plain rounds, and the estimate as such."""

from __future__ import annotations

from edgedecode import FinishReason, SessionOptions, Stats
from edgedecode.apps.stats_table import drafts_line, stats_line, stats_table
from edgedecode.decoding.stats import DrafterCount, TimeSplit
from edgedecode.testing import toy_pair


def scheduled() -> Stats:
    return Stats(
        mode="scheduled",
        rounds=11,
        proposed=9,
        accepted=6,
        verified_tokens=17,
        drafters={"suffix": DrafterCount(1, 4, 4), "model": DrafterCount(3, 5, 2)},
        plain_rounds={"no speed-up expected": 5, "measuring": 1},
        plain_seconds=0.01,
        time=TimeSplit(verify=0.1),
    )


def test_drafts_line_names_drafters_plain_rounds_and_the_estimate() -> None:
    assert drafts_line(scheduled()) == (
        "drafts: model 3x (2 of 5 tokens accepted); suffix 1x (4 of 4 tokens accepted); "
        "no draft in 6 of 10 rounds (no speed-up expected 5, measuring 1); "
        "estimated speed-up 1.60x (`edgedecode bench` measures it)"
    )


def test_drafts_line_without_drafts_has_no_estimate() -> None:
    assert "estimated" not in drafts_line(Stats(mode="scheduled", rounds=4, plain_rounds={"no speed-up expected": 3}))
    assert drafts_line(Stats(mode="scheduled")) == "drafts: none yet"
    assert "no drafts" in stats_line(Stats(), finish_reason=FinishReason.STOP)


def test_stats_of_a_scheduled_answer_account_for_every_round() -> None:
    with toy_pair() as pair, pair.session(SessionOptions(seed=1, ignore_eos=True)) as session:
        session.generate("hello", max_tokens=40)
        stats = session.stats
    assert stats.mode == "scheduled"
    drafted = sum(count.rounds for count in stats.drafters.values())
    assert drafted + sum(stats.plain_rounds.values()) == stats.rounds - 1
    assert sum(count.accepted for count in stats.drafters.values()) == stats.accepted
    assert stats_table(stats, finish_reason=FinishReason.LENGTH).row_count > 8
