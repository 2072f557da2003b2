"""Emitted tokens are distributed exactly as in plain sampling: all sequences of a tiny vocabulary, enumerated.

The expected probabilities come from `reference_row`, a slow direct computation, and never from the code under test.
"""

import itertools
import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest

from edgedecode.decoding.drafter import Drafter
from edgedecode.decoding.drafting import Drafting
from edgedecode.decoding.drafts import Draft, DraftMode
from edgedecode.decoding.loop import DecodeSetting, decode
from edgedecode.decoding.policy import FixedLength
from edgedecode.decoding.stats import Stats
from edgedecode.decoding.verify import Outcome, Rule, TargetRows, Verdict, verify
from edgedecode.drafters.model_drafter import ModelDrafter
from edgedecode.drafters.recycle import RecycleSource
from edgedecode.drafters.source import DrafterSource
from edgedecode.drafters.suffix import SuffixSource
from edgedecode.drafters.tree_drafter import TreeSource
from edgedecode.drafters.trim import TrimSource
from edgedecode.sampling.probs import Probs, UniformSource
from edgedecode.sampling.sampler import Noise, Sampler
from edgedecode.sampling.weights import SamplingOptions
from edgedecode.testing import TableModel, toy_tables
from tests.toys import CallDrafter, draft_setting, near_model, padded, quick_draw, reference_row, trimmed_model

VOCABULARY = 4
LENGTH = 4
"""The first token comes from the prefill pass, which carries no draft; drafts are made for the other three."""
PROMPT = (1, 2)
DRAWS = int(os.environ.get("EDGEDECODE_DRAWS", "1500"))
"""Generations for each distribution; more of them find smaller errors."""
SCALE = 0.6
SEED = 3
SHARED = Noise(0)
"""The noise of drafters that share the target's: each answer restarts it with its own seed."""

PLAIN = SamplingOptions(temperature=0.9)
PENALTY = SamplingOptions(
    temperature=0.9, repetition_penalty=1.5, frequency_penalty=0.5, presence_penalty=0.4, logit_bias={3: 0.6}
)
TRUNCATED = SamplingOptions(temperature=1.1, top_k=3, repetition_penalty=1.3)
CHANCE = SamplingOptions(temperature=0.9, xtc_probability=0.5, xtc_threshold=0.2)

Sequences = Counter[tuple[int, ...]]


def target() -> TableModel:
    """Return a model with mostly positive logits, so that a penalty has an effect."""
    first, second, third = toy_tables(VOCABULARY, seed=SEED, scale=SCALE)
    return TableModel(padded((first + np.float32(2.0), second, third)))


def exact(options: SamplingOptions) -> dict[tuple[int, ...], float]:
    """Return the probability of every sequence of LENGTH tokens after the prompt."""
    model = target()
    found: dict[tuple[int, ...], float] = {}
    for sequence in itertools.product(range(VOCABULARY), repeat=LENGTH):
        probability = 1.0
        for step, token in enumerate(sequence):
            tokens = [*PROMPT, *sequence[:step]]
            row = reference_row(
                model.logits_after(tokens),
                vocabulary=VOCABULARY,
                options=options,
                seen=PROMPT,
                generated=tokens[len(PROMPT) :],
            )
            probability *= row[token]
        found[sequence] = probability
    assert math.isclose(sum(found.values()), 1.0, abs_tol=1e-9)
    return found


@dataclass
class Drawn:
    """Many short generations with different seeds."""

    sequences: Sequences
    rejections: int
    accepted: int
    bonuses: int


def draw(
    drafter: Callable[[], Drafter],
    *,
    options: SamplingOptions,
    rule: Rule = Rule.MATCH,
    draft_max: int = 2,
    draws: int = DRAWS,
    share: bool = False,
    sampled_by: Callable[..., Sampler] = Sampler,
) -> Drawn:
    """Generate `draws` times through the real loop, one seed each, and keep the first LENGTH tokens.

    share: sample with the drafter's noise, `SHARED`.
    sampled_by: makes the sampler.
    """
    model, proposer, drawing_rows = target(), drafter(), quick_draw()
    sequences: Sequences = Counter()
    rejections = accepted = bonuses = 0
    policy = FixedLength(draft_max)
    for seed in range(draws):
        tokens, state = list(PROMPT), model.new_state(32)
        noise = SHARED if share else Noise(seed)
        noise.begin(seed)
        setting = DecodeSetting(
            sampler=sampled_by(options, vocabulary_size=VOCABULARY, row_draw=drawing_rows),
            noise=noise,
            drafting=Drafting([proposer], policy, noise=Noise(seed, stream=1)),
            rule=rule,
        )
        stats = Stats()
        for verdict in decode(model, state, tokens=tokens, max_tokens=LENGTH + 8, setting=setting, stats=stats):
            rejections += verdict.outcome is Outcome.CORRECTION
            accepted += verdict.accepted
            bonuses += verdict.outcome is Outcome.BONUS and len(verdict.draft) > 0
            if len(tokens) >= len(PROMPT) + LENGTH:
                break
        sequences[tuple(tokens[len(PROMPT) : len(PROMPT) + LENGTH])] += 1
        state.close()
    return Drawn(sequences, rejections, accepted, bonuses)


def chi_square(found: Sequences, expected: dict[tuple[int, ...], float]) -> tuple[float, float]:
    """Return the statistic and the value it exceeds once in ten thousand (Wilson and Hilferty's approximation).

    Cells of fewer than five expected draws are merged.
    """
    draws = sum(found.values())
    assert all(expected[sequence] > 0 for sequence in found), "an impossible sequence was emitted"
    cells = [(found[sequence], draws * expected[sequence]) for sequence in expected]
    rare = [cell for cell in cells if cell[1] < 5]
    rest = (sum(count for count, _ in rare), sum(mean for _, mean in rare))
    cells = [cell for cell in [*cells, rest] if cell[1] >= 5]
    statistic = sum((count - mean) ** 2 / mean for count, mean in cells)
    freedom = len(cells) - 1
    assert freedom > 20
    spread = 2 / (9 * freedom)
    return statistic, freedom * (1 - spread + 3.719 * math.sqrt(spread)) ** 3


def assert_exact(drawn: Drawn, expected: dict[tuple[int, ...], float]) -> None:
    statistic, limit = chi_square(drawn.sequences, expected)
    assert min(drawn.rejections, drawn.accepted, drawn.bonuses) > 100
    assert statistic < limit


# -- drafters: proposals never depend on the target's draws ----------------------------------------------------------


def near(distance: float = 0.3) -> TableModel:
    """Return a model that differs from the target."""
    return near_model(VOCABULARY, seed=SEED, noise=distance, scale=SCALE)


def likely_chain() -> Drafter:
    """Return a drafter of arg-max chains."""
    return ModelDrafter(near(), draft_setting(VOCABULARY))


def sharing_model(options: SamplingOptions) -> Drafter:
    """Return a model drafter that samples with the target's noise, set by `draw`."""
    return ModelDrafter(near(), draft_setting(VOCABULARY, sampling=options, noise=SHARED))


def lookup(source: DrafterSource) -> Callable[[], Drafter]:
    """Return a factory of drafters that learn likely tokens from generation to generation."""
    return lambda: source.open(draft_setting(VOCABULARY))


def grown_tree(options: SamplingOptions) -> Drafter:
    """Return a tree drafter; it learns which guesses are right."""
    setting = draft_setting(VOCABULARY, model=near(), sampling=options, noise=None if options.greedy else SHARED)
    return TreeSource().open(replace(setting, tree=True))


def random_tree() -> Drafter:
    """Return a drafter of six nodes with random shape and tokens from the drafters' stream; siblings may be equal."""

    def propose(context: Sequence[int], limit: int, rng: UniformSource) -> Draft:
        parents = tuple(int(rng.random() * (index + 1)) - 1 for index in range(limit))
        return Draft(tuple(int(rng.random() * VOCABULARY) for _ in parents), parents=parents)

    return CallDrafter(propose)


def sampling_model(options: SamplingOptions) -> Drafter:
    """Return a model drafter that samples from its own processed rows, as the ratio rule requires."""
    return ModelDrafter(near(0.4), draft_setting(VOCABULARY, sampling=options, sampled=True))


def trimmed_draft(options: SamplingOptions, *, sampled: bool = False) -> Drafter:
    """Return a trimmed drafter that lacks token 3, which the target emits often enough.

    sampled: it samples from the distribution of its ids and reports it.
    """
    model = trimmed_model(VOCABULARY, (0, 1, 2), seed=SEED, noise=0.3, scale=SCALE)
    setting = draft_setting(VOCABULARY, model=model, sampling=options, sampled=sampled)
    return TrimSource().open(setting if sampled else replace(setting, noise=SHARED))


def narrow_sampler(_: SamplingOptions) -> Drafter:
    """Return a drafter that samples from a distribution without one token, like a trimmed vocabulary."""
    q = Probs.dense(np.array([0.5, 0.2, 0.0, 0.3]))

    def propose(context: Sequence[int], limit: int, rng: UniformSource) -> Draft:
        tokens = tuple(q.draw(rng.random()) for _ in range(min(limit, 3)))
        return Draft(tokens, probs=(q,) * len(tokens), mode=DraftMode.SAMPLED)

    return CallDrafter(propose)


# -- the rules ---------------------------------------------------------------------------------------------------------


EACH = pytest.mark.parametrize("options", [PLAIN, TRUNCATED, CHANCE], ids=["plain", "top-k and penalty", "XTC"])


@pytest.mark.slow
@EACH
def test_shared_noise_is_exact(options: SamplingOptions) -> None:
    """Many more tokens are accepted than with arg-max, and the distribution of the text is unchanged."""
    drawn = draw(lambda: sharing_model(options), options=options, share=True)
    assert_exact(drawn, exact(options))
    assert drawn.accepted > 1.3 * 4 * draw(likely_chain, options=options, draws=DRAWS // 4).accepted


@pytest.mark.slow
@EACH
def test_shared_noise_with_a_trimmed_draft_is_exact(options: SamplingOptions) -> None:
    """Tokens that the draft lacks are emitted at their usual rate."""
    drawn = draw(lambda: trimmed_draft(options), options=options, share=True)
    assert_exact(drawn, exact(options))
    assert any(3 in sequence[1:] for sequence in drawn.sequences)


@pytest.mark.slow
@EACH
@pytest.mark.parametrize(
    "drafter",
    [sampling_model, partial(trimmed_draft, sampled=True), narrow_sampler],
    ids=["draft model", "trimmed draft model", "draft that lacks a token"],
)
def test_ratio_is_exact(drafter: Callable[[SamplingOptions], Drafter], options: SamplingOptions) -> None:
    assert_exact(draw(lambda: drafter(options), options=options, rule=Rule.RATIO), exact(options))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "share"), [(PLAIN, True), (TRUNCATED, False)], ids=["target's noise", "most likely, top-k and penalty"]
)
def test_tree_drafter_is_exact(options: SamplingOptions, share: bool) -> None:
    """With the target's noise and by probability only; four nodes have more accepted tokens than a chain of two."""
    ranked = options if share else replace(options, temperature=0.0)
    drawn = draw(lambda: grown_tree(ranked), options=options, draft_max=4, share=share)
    assert_exact(drawn, exact(options))
    chains = (lambda: sharing_model(options)) if share else likely_chain
    assert drawn.accepted > 4 * draw(chains, options=options, share=share, draws=DRAWS // 4).accepted


@pytest.mark.slow
@pytest.mark.parametrize("make", [lookup(SuffixSource()), lookup(RecycleSource())], ids=["suffix", "recycle"])
def test_lookup_drafters_are_exact(make: Callable[[], Drafter]) -> None:
    drawn = draw(make, options=PENALTY)
    statistic, limit = chi_square(drawn.sequences, exact(PENALTY))
    assert statistic < limit
    assert min(drawn.rejections, drawn.accepted) > 100


@pytest.mark.parametrize(("drafter", "draft_max"), [(likely_chain, 2), (random_tree, 6)], ids=["chain", "tree"])
@pytest.mark.parametrize(
    "options", [PLAIN, pytest.param(TRUNCATED, marks=pytest.mark.slow)], ids=["plain", "top-k and penalty"]
)
def test_match_is_exact(drafter: Callable[[], Drafter], draft_max: int, options: SamplingOptions) -> None:
    assert_exact(draw(drafter, options=options, draft_max=draft_max), exact(options))


@pytest.mark.slow
def test_plain_decoding_is_exact() -> None:
    """Check the baseline itself."""
    drawn = draw(lambda: CallDrafter(lambda context, limit, rng: Draft()), options=PENALTY)
    statistic, limit = chi_square(drawn.sequences, exact(PENALTY))
    assert statistic < limit
    assert drawn.accepted == 0


# -- wrong verifiers must fail -----------------------------------------------------------------------------------------


def lenient_verifier(draft: Draft, target: TargetRows, rng: UniformSource, **rest: object) -> Verdict:
    """Wrong: accept a drafted token whenever the target finds it likely enough (typical acceptance)."""
    tokens: list[int] = []
    for index, token in enumerate(draft.tokens):
        if target.at(index - 1, tokens).of(token) < 0.3:
            break
        tokens.append(token)
    accepted = len(tokens)
    tokens.append(target.at(accepted - 1, tokens).draw(rng.random()))
    outcome = Outcome.BONUS if accepted == len(draft) else Outcome.CORRECTION
    return Verdict(draft, tuple(tokens), tuple(range(accepted)), outcome, target)


def second_chance(draft: Draft, target: TargetRows, rng: UniformSource, **rest: object) -> Verdict:
    """Wrong: sample once more where the first sample was not the drafted token."""
    tokens: list[int] = []
    for index, token in enumerate(draft.tokens):
        p = target.at(index - 1, tokens)
        tokens.append(p.draw(rng.random()))
        if tokens[-1] != token:
            tokens[-1] = p.draw(np.random.default_rng(int(rng.random() * 2**32)).random())
        if tokens[-1] != token:
            return Verdict(draft, tuple(tokens), tuple(range(index)), Outcome.CORRECTION, target)
    tokens.append(target.at(len(draft) - 1, tokens).draw(rng.random()))
    return Verdict(draft, tuple(tokens), tuple(range(len(draft))), Outcome.BONUS, target)


def ratio_like(
    draft: Draft, target: TargetRows, rng: UniformSource, correct: Callable[[Probs, Probs, float, float], int]
) -> Verdict:
    """Apply the ratio rule with a custom correction."""
    tokens: list[int] = []
    for index, (token, q) in enumerate(zip(draft.tokens, draft.probs or (), strict=True)):
        p = target.at(index - 1, tokens)
        uniform, accept = rng.random(), min(1.0, p.of(token) / q.of(token))
        if uniform >= accept:
            tokens.append(correct(p, q, uniform, accept))
            return Verdict(draft, tuple(tokens), tuple(range(index)), Outcome.CORRECTION, target)
        tokens.append(token)
    tokens.append(target.at(len(draft) - 1, tokens).draw(rng.random()))
    return Verdict(draft, tuple(tokens), tuple(range(len(draft))), Outcome.BONUS, target)


def no_residual(draft: Draft, target: TargetRows, rng: UniformSource, **rest: object) -> Verdict:
    """Wrong: correct from p instead of norm(max(p - q, 0))."""
    return ratio_like(draft, target, rng, lambda p, q, uniform, accept: p.draw((uniform - accept) / (1 - accept)))


def same_uniform(draft: Draft, target: TargetRows, rng: UniformSource, **rest: object) -> Verdict:
    """Wrong: sample the correction with the uniform that rejected, not rescaled: it is never small."""
    return ratio_like(draft, target, rng, lambda p, q, uniform, accept: (p.minus(q) or p).draw(uniform))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        (lenient_verifier, Rule.MATCH),
        (second_chance, Rule.MATCH),
        (no_residual, Rule.RATIO),
        (same_uniform, Rule.RATIO),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_chi_square_detects_a_wrong_verifier(
    wrong: Callable[..., Verdict], rule: Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["edgedecode.decoding.loop"], "verify", wrong)
    drafter = likely_chain if rule is Rule.MATCH else partial(sampling_model, PLAIN)
    drawn = draw(drafter, options=PLAIN, rule=rule)
    assert min(drawn.rejections, drawn.accepted) > 100
    statistic, limit = chi_square(drawn.sequences, exact(PLAIN))
    assert statistic > 1.3 * limit


@pytest.mark.slow
def test_chi_square_detects_a_stale_penalty() -> None:
    """The correct verifier on rows whose penalty ignores the drafted path."""

    class Forgetful(Sampler):
        def probs(self, row, path=()):  # type: ignore[no-untyped-def, override]
            return super().probs(row)

        def draw(self, row, path=(), *, key, ids=None):  # type: ignore[no-untyped-def, override]
            return super().draw(row, key=key, ids=ids)

    drawn = draw(random_tree, options=PENALTY, draft_max=6, sampled_by=Forgetful)
    statistic, limit = chi_square(drawn.sequences, exact(PENALTY))
    assert statistic > 1.3 * limit


def test_noise_advances_one_position_per_token() -> None:
    """The noise advances with the tokens and never with the drafts, so that a seed gives the same text."""
    row = np.zeros((4, VOCABULARY), dtype=np.float32)
    for drafted in ((), (1,), (0, 1, 2), (3, 3, 3)):
        noise = Noise(5)
        rows = TargetRows(row, Sampler(PLAIN, vocabulary_size=VOCABULARY))
        verdict = verify(Draft(drafted), rows, noise)
        assert noise.position == len(verdict.tokens)
