"""The loop under a constraint, on toy models: only allowed tokens, the same text with any drafts, exact shares."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedecode.arrays import FloatArray
from edgedecode.decoding.drafting import Drafting
from edgedecode.decoding.drafts import Draft
from edgedecode.decoding.loop import DecodeSetting, decode
from edgedecode.decoding.stats import Stats
from edgedecode.sampling.sampler import Noise, Sampler
from edgedecode.sampling.weights import SamplingOptions
from tests.toys import CallDrafter, toy_model

VOCABULARY = 6
WARM = SamplingOptions(temperature=1.0)


class Steps:
    """A constraint: token t may be followed by the tokens of `after[t]`; with one of them it is forced."""

    structured = True

    def __init__(self, after: Sequence[Sequence[int]], last: int) -> None:
        self.after, self.last, self.done = [frozenset(each) for each in after], last, 0
        self.asked = 0

    def begin(self, prompt: Sequence[int]) -> None:
        pass

    def forced(self) -> Sequence[int]:
        found: list[int] = []
        last = self.last
        while len(self.after[last]) == 1 and len(found) < 20:
            (last,) = self.after[last]
            found.append(last)
        return found

    def allows(self, tokens: Sequence[int]) -> int:
        last = self.last
        for count, token in enumerate(tokens):
            if token not in self.after[last]:
                return count
            last = token
        return len(tokens)

    def masked(self, row: FloatArray, path: Sequence[int]) -> FloatArray:
        self.asked += 1
        last = path[-1] if path else self.last
        result = np.full_like(row, -np.inf)
        for token in self.after[last]:
            result[token] = row[token]
        return result

    def accepts(self, token: int, path: Sequence[int]) -> bool:
        return True

    def extend(self, tokens: Sequence[int]) -> None:
        self.last = tokens[-1]


def generate(
    after: Sequence[Sequence[int]],
    *,
    seed: int,
    drafts: Sequence[int] | None,
    most: int = 24,
    options: SamplingOptions = WARM,
) -> tuple[list[int], Stats, Steps]:
    """Generate after token 0. drafts: what the drafter always proposes; None: plain decoding."""
    model = toy_model(VOCABULARY, seed=7)
    state = model.new_state(64, rows=20)
    noise = Noise(seed)
    drafting = None
    if drafts is not None:
        drafter = CallDrafter(lambda tokens, most, rng: Draft(tuple(drafts)[:most]))
        drafting = Drafting.fixed(drafter, len(drafts), noise=Noise(seed, stream=1))
    steps, stats = Steps(after, 0), Stats()
    sampler = Sampler(options, vocabulary_size=VOCABULARY)
    setting = DecodeSetting(sampler=sampler, noise=noise, drafting=drafting, constraint=steps)
    tokens = [0]
    for _ in decode(model, state, tokens=tokens, max_tokens=most, setting=setting, stats=stats):
        pass
    return tokens[1:], stats, steps


allowed = st.lists(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=4), min_size=6, max_size=6)


processing = st.builds(
    SamplingOptions,
    temperature=st.sampled_from([0.0, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.4]),
    frequency_penalty=st.sampled_from([0.0, 0.5, -0.3]),
    presence_penalty=st.sampled_from([0.0, 0.8]),
    logit_bias=st.sampled_from([(), {1: -100, 2: 1.5}, dict.fromkeys(range(VOCABULARY), -100)]),
)


@settings(max_examples=50, deadline=None)
@given(allowed, st.integers(0, 10**6), st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=6), processing)
def test_any_drafts_give_the_text_of_plain_decoding(
    after: list[list[int]], seed: int, drafts: list[int], options: SamplingOptions
) -> None:
    """Banned tokens come where the constraint allows no others."""
    plain, _, _ = generate(after, seed=seed, drafts=None, options=options)
    drafted, stats, _ = generate(after, seed=seed, drafts=drafts, options=options)
    assert drafted == plain
    assert len(plain) == 24
    banned = {id for id, amount in dict(options.logit_bias).items() if amount == -100}
    for before, token in zip([0, *plain], plain, strict=False):
        assert token in after[before]
        assert token not in banned or banned >= set(after[before])
    forced = stats.drafters.get("forced")
    assert forced is None or forced.accepted == forced.proposed


def test_a_chain_without_choice_is_one_pass() -> None:
    text, stats, _ = generate([[1], [2], [3], [4], [5], [0]], seed=1, drafts=None, most=17)
    assert text == [1, 2, 3, 4, 5, 0] * 2 + [1, 2, 3, 4, 5]
    assert stats.rounds == 2  # the prompt's pass carries no draft


def test_a_mask_is_computed_for_the_emitted_tokens_only() -> None:
    text, _, steps = generate([[0, 1, 2, 3, 4, 5]] * 6, seed=3, drafts=[0, 1, 2, 3])
    assert steps.asked == len(text)


@pytest.mark.slow
@pytest.mark.parametrize("drafts", [None, [1, 1, 1], [2, 3]])
def test_shares_are_the_targets_over_the_allowed_tokens(drafts: list[int] | None) -> None:
    after = [[1, 2, 3], [1, 2], [2, 3, 5], [1, 2, 5], [0], [3, 5]]
    count = 1500
    found = Counter(tuple(generate(after, seed=seed, drafts=drafts, most=2)[0]) for seed in range(count))
    exact = Counter[tuple[int, ...]]()
    model = toy_model(VOCABULARY, seed=7)
    for first in after[0]:
        for second in after[first]:
            state = model.new_state(8, rows=4)
            rows = model.forward([0, first], state, rows=[0, 1]).logits.astype(np.float64)
            chance = 1.0
            for row, token, options in ((rows[0], first, after[0]), (rows[1], second, after[first])):
                weights = np.exp(row[:VOCABULARY])
                chance *= weights[token] / weights[options].sum()
            exact[first, second] = chance  # type: ignore[assignment]
    assert sum(exact.values()) == pytest.approx(1)
    statistic = sum((found[key] - count * p) ** 2 / (count * p) for key, p in exact.items())
    assert statistic < 35  # chi squared with 7 degrees of freedom: one in 100,000
