"""The statistics line and table name the drafters, the reasons for plain rounds, and a speed-up that was measured."""

from edgedecode import FinishReason, SessionDetails, SessionOptions, Stats
from edgedecode.apps.stats_table import drafts_line, stats_line, stats_table
from edgedecode.decoding.stats import DrafterCount, TimeSplit
from edgedecode.testing import toy_pair


def scheduled(*, plain: int = 6) -> Stats:
    """Return statistics with rounds of 10 ms, the first of them interrupted; `plain` of them had no draft."""
    stats = Stats(
        mode="auto",
        rounds=11,
        proposed=9,
        accepted=6,
        verified_tokens=17,
        drafters={"suffix": DrafterCount(2, 4, 4), "model": DrafterCount(3, 5, 2)},
        plain_rounds={"no speed-up expected": 5, "measuring": 1},
    )
    for index in range(plain):
        stats.spend(TimeSplit(0.001, 0.5 if index == 0 else 0.006, 0.001, 0.002), plain=True)
        stats.spend_host(0.001)
    stats.time = TimeSplit(verify=0.1)
    return stats


def test_drafts_line_names_drafters_plain_rounds_and_the_measured_speed_up() -> None:
    assert drafts_line(scheduled()) == (
        "drafts: model 3x (2 of 5 tokens accepted); suffix 2x (4 of 4 tokens accepted); "
        "no draft in 6 of 10 rounds (no speed-up expected 5, measuring 1); "
        "1.60 times the speed of this answer's rounds without drafts"
    )


def test_drafts_line_has_no_speed_up_that_the_answer_did_not_measure() -> None:
    assert "times the speed" not in drafts_line(scheduled(plain=4))
    few = scheduled()
    few.drafters = {"model": DrafterCount(4, 5, 2)}
    assert few.speed_up is few.as_dict()["speed_up"] is None
    assert "times the speed" not in drafts_line(Stats(mode="auto", rounds=4, plain_rounds={"no speed-up expected": 3}))
    assert drafts_line(Stats(mode="auto")) == "drafts: none yet"


def test_the_line_below_an_answer_tells_a_speed_up_that_is_one() -> None:
    def line(stats: Stats) -> str:
        return stats_line(stats, finish_reason=FinishReason.STOP).split(" tok/s · ")[1]

    stats = scheduled()
    assert line(stats) == "6 of 9 drafted tokens accepted (lookup 4, draft model 2) · 1.60 times plain decoding"
    stats.time = TimeSplit(verify=1.0)
    assert line(stats) == "6 of 9 drafted tokens accepted (lookup 4, draft model 2)"
    none = Stats(mode="auto", rounds=4, plain_rounds={"measuring": 1, "no speed-up expected": 3})
    assert line(none) == "no drafts: no speed-up expected"
    assert line(Stats(mode="auto")) == line(Stats()) == "no drafts"


def test_stats_of_a_scheduled_answer_account_for_every_round() -> None:
    with toy_pair() as pair, pair.session(SessionOptions(seed=1, details=SessionDetails(ignore_eos=True))) as session:
        session.generate("hello", max_tokens=40)
        stats = session.stats
    assert stats.mode == "auto"
    drafted = sum(count.rounds for count in stats.drafters.values())
    assert drafted + sum(stats.plain_rounds.values()) == stats.rounds - 1
    assert sum(count.accepted for count in stats.drafters.values()) == stats.accepted
    assert stats_table(stats, finish_reason=FinishReason.LENGTH).row_count > 8
