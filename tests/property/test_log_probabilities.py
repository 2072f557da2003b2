"""Log probabilities of emitted tokens on toy models: those of the target's raw rows, with any drafts and rules.

The targets have padding that would win, and the next pass overwrites every view.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from edgedecode import CapabilityError, InputError, Rule, SamplingOptions, SessionOptions, SwitchOptions, TokenLogprob
from edgedecode.decoding.drafter import Drafter
from edgedecode.decoding.drafting import Drafting
from edgedecode.decoding.drafts import Draft
from edgedecode.decoding.loop import DecodeSetting, decode
from edgedecode.decoding.stats import Stats
from edgedecode.decoding.verify import Outcome, Verdict
from edgedecode.drafters.model_drafter import ModelSource
from edgedecode.sampling.log_probabilities import token_logprob
from edgedecode.sampling.sampler import Noise, Sampler
from edgedecode.testing import TableModel
from tests.property.test_constraint import Steps
from tests.property.test_lossless import KINDS, LENGTHS, drafter
from tests.toys import (
    END,
    GREEDY,
    CallDrafter,
    ascii_pair,
    draft_setting,
    near_model,
    quick_draw,
    session_options,
    toy_model,
)

VOCABULARY = 24
PROMPT = [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]
NEW = 40
TARGET_SEED = 7  # that of the drafters of test_lossless
SEED = 11
TOP = 5
WARM = SamplingOptions(temperature=0.9, top_k=6, repetition_penalty=1.2)


def generated(
    options: SamplingOptions,
    *,
    proposer: Drafter | None = None,
    draft_max: int = 0,
    rule: Rule = Rule.MATCH,
    constraint: Steps | None = None,
    ends: frozenset[int] = frozenset(),
) -> tuple[TableModel, list[TokenLogprob], list[Verdict]]:
    """Generate, taking each round's log probabilities before the next pass."""
    model = toy_model(VOCABULARY, seed=TARGET_SEED)
    setting = DecodeSetting(
        sampler=Sampler(options, vocabulary_size=VOCABULARY, row_draw=quick_draw()),
        noise=Noise(SEED),
        drafting=None if proposer is None else Drafting.fixed(proposer, draft_max, noise=Noise(SEED, stream=1)),
        rule=rule,
        constraint=constraint,
        ends=ends,
    )
    tokens, state = list(PROMPT), model.new_state(model.card.context)
    found: list[TokenLogprob] = []
    verdicts: list[Verdict] = []
    for verdict in decode(model, state, tokens=tokens, max_tokens=NEW, setting=setting, stats=Stats()):
        found += verdict.logprobs(TOP)
        verdicts.append(verdict)
    assert [each.token for each in found] == tokens[len(PROMPT) :]
    return model, found, verdicts


def assert_rows(model: TableModel, found: Sequence[TokenLogprob]) -> None:
    """Compare with the model's rows one by one, in float64."""
    tokens = [*PROMPT, *(each.token for each in found)]
    for place, each in enumerate(found):
        row = model.logits_after(tokens[: len(PROMPT) + place])[:VOCABULARY].astype(np.float64)
        wanted = row - np.log(np.exp(row).sum())
        assert each.logprob == pytest.approx(wanted[each.token], abs=1e-5)
        ids = np.argsort(-wanted, kind="stable")[:TOP]
        assert [id for id, _ in each.top] == ids.tolist()
        assert [value for _, value in each.top] == pytest.approx(wanted[ids], abs=1e-5)


@pytest.mark.parametrize("options", [GREEDY, WARM], ids=["greedy", "warm"])
@pytest.mark.parametrize("kind", KINDS)
def test_log_probabilities_are_those_of_plain_decoding(kind: str, options: SamplingOptions) -> None:
    model, plain, _ = generated(options)
    assert_rows(model, plain)
    truth = [*PROMPT, *(each.token for each in plain)]
    accepted = rejected = 0
    for length in LENGTHS[::2]:
        proposer = drafter(kind, quality="differs", truth=truth, options=options)
        _, found, verdicts = generated(options, proposer=proposer, draft_max=length)
        assert found == plain, length
        accepted += sum(verdict.accepted for verdict in verdicts)
        rejected += sum(verdict.outcome is Outcome.CORRECTION for verdict in verdicts)
    assert rejected > 0
    assert accepted > 0 or kind in ("suffix", "recycle")


def test_log_probabilities_of_the_ratio_rule_are_the_targets() -> None:
    warm = SamplingOptions(temperature=1.0)
    setting = draft_setting(VOCABULARY, model=near_model(VOCABULARY, seed=TARGET_SEED, noise=0.8), sampling=warm)
    proposer = ModelSource().open(replace(setting, sampled=True))
    model, found, verdicts = generated(warm, proposer=proposer, draft_max=4, rule=Rule.RATIO)
    assert_rows(model, found)
    assert sum(verdict.accepted for verdict in verdicts) > 0
    assert any(verdict.outcome is Outcome.CORRECTION for verdict in verdicts)


def test_log_probabilities_ignore_a_constraint_which_forces_tokens() -> None:
    after = [[(token + 1) % VOCABULARY] if token % 3 else list(range(VOCABULARY)) for token in range(VOCABULARY)]
    model, found, verdicts = generated(GREEDY, constraint=Steps(after, PROMPT[-1]))
    assert_rows(model, found)
    assert any(verdict.draft.source == "forced" for verdict in verdicts)
    assert any(each.token != each.top[0][0] for each in found)


def test_an_end_token_in_a_draft_has_its_log_probability() -> None:
    _, plain, _ = generated(GREEDY)
    truth = [each.token for each in plain]
    end = truth[12]
    place = truth.index(end)

    def right(context: Sequence[int], limit: int, rng: object) -> Draft:
        start = len(context) - len(PROMPT)
        return Draft(tuple(truth[start : start + limit]), source="right")

    _, found, verdicts = generated(GREEDY, proposer=CallDrafter(right), draft_max=8, ends=frozenset({end}))
    assert found == plain[: place + 1]
    assert verdicts[-1].outcome is Outcome.ENDED
    assert verdicts[-1].accepted == len(verdicts[-1].tokens)


@pytest.mark.parametrize("size", [3, 20, 16384, 40_000, 151_936])
def test_a_row_of_any_size_has_normalised_log_probabilities(size: int) -> None:
    row = (6 * np.random.default_rng(size).standard_normal(size + 8)).astype(np.float32)
    row[size:] = 100.0  # padding
    sampler = Sampler(GREEDY, vocabulary_size=size, row_draw=quick_draw())
    wide = row[:size].astype(np.float64)
    wanted = wide - np.log(np.exp(wide).sum())
    found = sampler.logprob(row, size - 1, top=20)
    assert found.logprob == pytest.approx(wanted[-1], abs=1e-6)
    assert [id for id, _ in found.top] == np.argsort(-wanted, kind="stable")[:20].tolist()
    assert [value for _, value in found.top] == pytest.approx(np.sort(wanted)[::-1][:20], abs=1e-6)


def test_impossible_tokens_have_infinite_log_probabilities_and_equal_ones_come_by_id() -> None:
    row = np.array([0.0, -np.inf, 0.0, 1.0], np.float32)
    found = token_logprob(row, 1, np.array([2, 0, 3]))
    assert found.logprob == -np.inf
    assert [id for id, _ in found.top] == [3, 0, 2]


OPTIONS = [
    SessionOptions(drafter="none"),
    SessionOptions(drafter="model", draft_max=4),
    SessionOptions(drafter="suffix", draft_max=3),
    SessionOptions(drafter="recycle", draft_max=6),
    SessionOptions(drafter="tree", draft_max=8),
    SessionOptions(),
]


@pytest.mark.parametrize(
    "options", OPTIONS, ids=lambda each: f"{each.drafter} {each.draft_max} {not each.details.switch}"
)
def test_chunks_have_one_log_probability_per_token(options: SessionOptions) -> None:
    with ascii_pair(seed=3, ending=-50.0) as pair, pair.session(SessionOptions(drafter="none")) as plain:
        whole = plain.generate("Hello", max_tokens=60, top_logprobs=3)
        stop = whole.text[20:23]
        with pair.session(options) as session:
            chunks = list(session.stream("Hello", max_tokens=60, stop=[stop], top_logprobs=3))
            assert all([each.token for each in chunk.logprobs] == list(chunk.tokens) for chunk in chunks)
            found = [each for chunk in chunks for each in chunk.logprobs]
            assert found == list(whole.logprobs[: len(found)])
            assert len(found) == whole.text.index(stop) + len(stop)  # every token is one character
            assert all(chunk.logprobs == () for chunk in session.stream("Hello", max_tokens=5))
            bare = session.collect(session.complete("He", max_tokens=4, top_logprobs=0))
            assert [each.token for each in bare.logprobs] == list(bare.tokens)


def test_the_end_token_of_a_session_has_its_log_probability() -> None:
    with ascii_pair(seed=3, ending=6.0) as pair, pair.session() as session:
        reply = session.generate("Hello", top_logprobs=0)
        assert reply.tokens[-1] == END
        assert [each.token for each in reply.logprobs] == list(reply.tokens)
        assert all(each.top == () for each in reply.logprobs)


def test_log_probabilities_that_do_not_exist_are_refused() -> None:
    with ascii_pair() as pair:
        with pair.session() as session:
            for wrong in (-1, 21):
                with pytest.raises(InputError, match="0 to 20"):
                    session.stream("Hello", top_logprobs=wrong)
        with pair.session(session_options(switch=SwitchOptions(threshold=0.5))) as session:
            with pytest.raises(CapabilityError, match=r"leave out switching"):
                session.generate("Hello", top_logprobs=0)
            assert session.messages == ()
            assert session.generate("Hello", max_tokens=4).logprobs == ()
