"""Entropy switching: signals, the switching rule, and the decoding loop."""

import math
from dataclasses import replace

import numpy as np
import pytest

from edgedecode import InputError, SamplingOptions, SwitchOptions
from edgedecode.decoding.drafts import WRITER, Draft
from edgedecode.decoding.stats import Stats, TimeSplit
from edgedecode.decoding.verify import unverified
from edgedecode.pack.entries import SwitchCurve, SwitchPoint
from edgedecode.sampling.row_draw import NumpyRowDraw
from edgedecode.sampling.sampler import Sampler
from edgedecode.sessions import switch_choice
from edgedecode.sessions.switch_choice import with_switch_rule
from edgedecode.switching.rule import SIGNALS, SwitchRule, entropy
from edgedecode.testing import TableModel, toy_pair
from tests.toys import session_options

UP = 2.2
"""Nats that about half of the toy draft model's rows exceed."""


def test_entropy_of_known_distributions() -> None:
    assert entropy(np.zeros(8, np.float32)) == pytest.approx(math.log(8))
    assert entropy(np.array([0, -np.inf, -np.inf], np.float32)) == pytest.approx(0, abs=1e-12)
    p = np.array([0.5, 0.25, 0.25])
    assert entropy(np.log(p).astype(np.float32) + 7) == pytest.approx(-(p * np.log(p)).sum(), rel=1e-6)


@pytest.mark.parametrize("name", SIGNALS)
def test_signal_is_larger_for_a_flatter_row(name: str) -> None:
    rows = [np.array([scale, 0, 0, -1], np.float32) for scale in (9, 3, 1, 0)]
    values = [SIGNALS[name](row, NumpyRowDraw()) for row in rows]
    assert values == sorted(values)
    assert values[0] < values[-1]


@pytest.mark.parametrize(
    "make",
    [
        lambda: SwitchRule(up=-1),
        lambda: SwitchRule(up=math.nan),
        lambda: SwitchRule(up=1, signal="mood"),
        lambda: SwitchOptions(quality=0),
        lambda: SwitchOptions(quality=1.01),
        lambda: SwitchOptions(threshold=-0.1),
        lambda: SwitchOptions(threshold=math.nan),
        lambda: SwitchOptions(quality=0.9, threshold=1),
    ],
)
def test_switch_rule_and_options_refuse_values_out_of_range(make: object) -> None:
    with pytest.raises(InputError):
        make()  # type: ignore[operator]


@pytest.mark.parametrize("sampled", [False, True])
def test_switching_at_threshold_zero_gives_the_targets_text(sampled: bool) -> None:
    sampling = SamplingOptions(temperature=0.9 * sampled)
    texts = []
    for switch in (None, SwitchOptions(threshold=0.0)):
        with toy_pair() as pair, pair.session(session_options(seed=3, sampling=sampling, switch=switch)) as session:
            texts.append(session.generate("hello", max_tokens=60).tokens)
            assert session.stats.unverified_tokens == 0
            assert session.stats.target_share == 1
    assert texts[0] == texts[1]


def test_switching_at_a_huge_threshold_decodes_with_the_draft_model_only() -> None:
    options = session_options(switch=SwitchOptions(threshold=1e9), ignore_eos=True)
    with toy_pair() as pair, pair.session(options) as session:
        stats = session.generate("hello", max_tokens=60).stats
    assert stats.unverified_tokens == 60
    assert stats.rounds == stats.switches == stats.verified_tokens == 0
    assert stats.tokens_per_second > 0


def test_switching_is_reported_in_the_statistics() -> None:
    with toy_pair() as pair, pair.session(session_options(switch=SwitchOptions(threshold=1.0))) as session:
        chunks = [*session.stream("hello", max_tokens=80)]
        stats = session.stats
    assert stats.mode == "switch"
    by_source = {source: sum(len(c.tokens) for c in chunks if c.source == source) for source in ("draft", "target")}
    assert by_source["draft"] == stats.unverified_tokens
    assert stats.tokens == sum(len(chunk.tokens) for chunk in chunks)
    assert stats.as_dict()["switches"] == stats.switches


@pytest.mark.parametrize("threshold", [0.0, 1.0, 1e9])
def test_switching_counts_the_tokens_up_to_a_stop_string(threshold: float) -> None:
    options = session_options(seed=1, switch=SwitchOptions(threshold=threshold), ignore_eos=True)
    with toy_pair() as pair, pair.session(options) as session:
        text = session.generate("hello", max_tokens=60).text
        stop = text[10:12]
        session.reset()
        answer = session.generate("hello", max_tokens=60, stop=[stop])
        assert answer.text == text[: text.index(stop)]
        assert session.stats.tokens == len(answer.tokens)


@pytest.mark.parametrize("after", [1, 3])
def test_an_answer_whose_draft_model_is_released_is_ended_by_the_target(after: int) -> None:
    rule = SwitchRule(up=UP)
    with toy_pair() as pair:
        options = session_options(switch=SwitchOptions(rule=rule), ignore_eos=True)
        with pair.session(options) as session:
            tokens: list[int] = []
            for number, chunk in enumerate(session.stream("hello", max_tokens=40)):
                tokens += chunk.tokens
                if number == after:
                    assert pair.shared.give_back_drafts()
                    known, written = len(tokens), session.stats.unverified_tokens
            assert len(tokens) == 40
            assert session.stats.unverified_tokens == written
            sequence = [*session.tokens[: session.stats.prompt_tokens], *tokens]
            target = pair.target
            assert isinstance(target, TableModel)
            for place in range(len(sequence) - len(tokens) + known, len(sequence)):
                row = target.logits_after(sequence[:place])[: pair.tokenizer.size]
                assert sequence[place] == row.argmax()


def test_next_answer_is_decoded_without_switching_while_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    with toy_pair() as pair, pair.session(session_options(switch=SwitchOptions(threshold=1e9))) as session:
        session.generate("hello", max_tokens=8)
        assert session.stats.unverified_tokens == 8
        monkeypatch.setattr(type(pair.shared.pressure), "short", True)
        assert pair.shared.give_back_drafts()
        session.generate("hello again", max_tokens=8)
        assert session.stats.unverified_tokens == 0
        monkeypatch.setattr(type(pair.shared.pressure), "short", False)
        session.generate("hello again", max_tokens=8)
        assert session.stats.unverified_tokens == 8


def test_rule_decides_whether_a_session_switches_or_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switch_choice, "models_digest", lambda manifest: "these models")
    with toy_pair() as pair:
        never = with_switch_rule(session_options(switch=SwitchOptions(threshold=0)), pair.manifest)
        assert never.details.switch is None, "the target writes every token: verified drafts are faster"
        point = SwitchPoint(0.5, accuracy=0.9, quality=1.0, quality_low=0.99, target_share=0.4, speed=1.0)
        curve = SwitchCurve("doubt", (point,), 100, "p", 0.9, 0.4, "onnx", "these models")
        manifest = replace(pair.manifest, switching=curve)
        found = with_switch_rule(session_options(switch=SwitchOptions(quality=0.9)), manifest).details.switch
        assert found == SwitchOptions(rule=SwitchRule(0.5, signal="doubt"))
        assert pair.drafter_names(session_options(switch=found)) == ()


def test_speed_leaves_out_all_tokens_that_came_first_together() -> None:
    stats = Stats()
    draft = unverified(Draft((5, 6, 7), source=WRITER), Sampler(SamplingOptions(), vocabulary_size=9), ends=frozenset())
    stats.count(draft)
    stats.prefilled(1.0)
    assert (stats.tokens, stats.tokens_per_second) == (3, 0)
    stats.count(draft)
    stats.spend(TimeSplit(draft=0.5))
    assert stats.tokens_per_second == 6


def test_switching_records_the_signal_before_each_token() -> None:
    with toy_pair() as pair, pair.session(session_options(seed=2, switch=SwitchOptions(threshold=1.0))) as session:
        for prompt in ("hello", "again"):
            chunks = [*session.stream(prompt, max_tokens=40)]
            stats, sources = session.stats, [chunk.source for chunk in chunks for _ in chunk.tokens]
            by_draft = [value < stats.handed_over_at for value in stats.signals]
            assert by_draft[: len(sources)] == [source == "draft" for source in sources]
            assert len(stats.signals) - len(sources) in (0, 1), "the last may be of a token beyond the limit"
