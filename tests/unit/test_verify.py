"""Verification of one draft: the rows it processes, the accepted tokens, the outcome."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedecode.arrays import FloatArray
from edgedecode.decoding.drafts import Draft, DraftMode
from edgedecode.decoding.verify import Outcome, Rule, TargetRows, Verdict, verify
from edgedecode.errors import CapabilityError
from edgedecode.sampling.probs import NoiseSource, Probs
from edgedecode.sampling.sampler import Sampler
from edgedecode.sampling.weights import SamplingOptions
from tests.toys import path_to

VOCABULARY = 6


class Uniforms:
    """Replay given uniforms and count them."""

    def __init__(self, values: Sequence[float]) -> None:
        self.values = list(values)
        self.drawn = 0

    def random(self) -> float:
        self.drawn += 1
        return self.values[self.drawn - 1]

    def take(self) -> int:
        raise AssertionError("the rows of these tests sample with uniforms")


class CountingRows(TargetRows):
    """Record which rows were processed; sample by inverting the cumulative sum."""

    __slots__ = ("reached",)

    def __init__(self, logits: FloatArray, sampler: Sampler) -> None:
        super().__init__(logits, sampler)
        self.reached: list[int] = []

    def at(self, node: int, path: Sequence[int]) -> Probs:
        self.reached.append(node)
        return super().at(node, path)

    def draw(self, node: int, path: Sequence[int], rng: NoiseSource) -> int:
        return self.at(node, path).draw(rng.random())


def rows_choosing(*tokens: int) -> CountingRows:
    """Return rows whose arg-max is the given token: the context's row first, then one per draft node."""
    logits = np.zeros((len(tokens), VOCABULARY + 2), dtype=np.float32)
    logits[:, VOCABULARY:] = 9.0
    for row, token in enumerate(tokens):
        logits[row, token] = 5.0
    return CountingRows(logits, Sampler(SamplingOptions(), vocabulary_size=VOCABULARY))


def random_rows(count: int, *, seed: int) -> CountingRows:
    logits = np.random.default_rng(seed).standard_normal((count, VOCABULARY)).astype(np.float32)
    return CountingRows(logits, Sampler(SamplingOptions(temperature=1.0), vocabulary_size=VOCABULARY))


def check(draft: Draft, rows: CountingRows, *, ends: frozenset[int] = frozenset()) -> Verdict:
    uniforms = Uniforms([0.5] * 20)
    verdict = verify(draft, rows, uniforms, ends=ends)
    assert uniforms.drawn == len(verdict.tokens) == len(rows.reached)
    return verdict


@pytest.mark.parametrize(
    ("draft", "choices", "tokens", "path"),
    [
        (Draft((4, 1, 3)), (4, 1, 3, 0), (4, 1), (0, 1)),  # an accepted draft token ends it
        (Draft((4, 2, 3)), (4, 1, 3, 0), (4, 1), (0,)),  # a correction ends it
        (Draft((4,)), (4, 1), (4, 1), (0,)),  # the bonus ends it
        (Draft(), (1,), (1,), ()),
    ],
)
def test_verify_adds_nothing_after_an_end_token(
    draft: Draft, choices: tuple[int, ...], tokens: tuple[int, ...], path: tuple[int, ...]
) -> None:
    verdict = check(draft, rows_choosing(*choices), ends=frozenset({1}))
    assert (verdict.tokens, verdict.path, verdict.outcome) == (tokens, path, Outcome.ENDED)


@given(st.data())
def test_verify_of_any_tree_equals_sampling_from_the_rows(data: st.DataObject) -> None:
    length = data.draw(st.integers(0, 10))
    parents = tuple(data.draw(st.integers(-1, index - 1)) for index in range(length))
    draft = Draft(tuple(data.draw(st.integers(0, 2)) for _ in parents), parents=parents)
    uniforms = data.draw(st.lists(st.floats(0, 1, exclude_max=True), min_size=12, max_size=12))
    rows = random_rows(length + 1, seed=data.draw(st.integers(0, 50)))
    rows._sampler.options = SamplingOptions(temperature=1.0, top_k=3)
    verdict = verify(draft, rows, Uniforms(uniforms))
    assert list(verdict.path) == (path_to(parents, verdict.path[-1]) if verdict.path else [])
    assert tuple(draft.tokens[node] for node in verdict.path) == verdict.tokens[: verdict.accepted]
    assert len(verdict.tokens) == verdict.accepted + 1
    node = -1
    for step, token in enumerate(verdict.tokens):
        assert TargetRows.at(rows, node, ()).draw(uniforms[step]) == token
        if step < verdict.accepted:
            node = verdict.path[step]
    followers = [index for index, parent in enumerate(parents) if parent == node]
    assert (verdict.outcome is Outcome.CORRECTION) == bool(followers)
    assert all(draft.tokens[index] != verdict.tokens[-1] for index in followers)


def sampled(tokens: Sequence[int], q: Probs) -> Draft:
    return Draft(tuple(tokens), probs=(q,) * len(tokens), mode=DraftMode.SAMPLED, source="model")


def test_ratio_rule_accepts_below_the_ratio_and_corrects_above_it() -> None:
    rows = random_rows(2, seed=1)
    p = rows.at(-1, ())
    q = Probs.dense(np.full(VOCABULARY, 1 / VOCABULARY))
    token = int(p.ids[p.p.argmin()])
    ratio = p.of(token) * VOCABULARY
    below = verify(sampled([token], q), rows, Uniforms([ratio - 1e-6, 0.3]), rule=Rule.RATIO)
    assert (below.tokens[0], below.path, below.outcome) == (token, (0,), Outcome.BONUS)
    above = verify(sampled([token], q), rows, Uniforms([ratio + 1e-6, 0.3]), rule=Rule.RATIO)
    assert (above.path, above.outcome) == ((), Outcome.CORRECTION)
    residual = p.minus(q)
    assert above.tokens == (int(residual.ids[0]),)  # the rescaled uniform is just above 0


def test_ratio_rule_ends_at_an_end_token() -> None:
    rows = rows_choosing(4, 1, 2)
    q = Probs.dense(np.full(VOCABULARY, 1.0))
    for tokens in ([4, 1], [4], [3]):
        verdict = verify(sampled(tokens, q), rows, Uniforms([0.0] * 3), ends=frozenset({1, 4}), rule=Rule.RATIO)
        assert verdict.outcome is Outcome.ENDED
        assert verdict.tokens == (4,)


def test_ratio_rule_refuses_drafts_that_were_not_sampled() -> None:
    rows = random_rows(3, seed=2)
    with pytest.raises(CapabilityError, match="'suffix' proposes deterministic"):
        verify(Draft((1,), source="suffix"), rows, Uniforms([0.5]), rule=Rule.RATIO)
    q = Probs.point(1)
    for broken in (
        Draft((1, 1), parents=(-1, -1), probs=(q, q), mode=DraftMode.SAMPLED),
        Draft((1,), mode=DraftMode.SAMPLED),
        Draft((1, 1), probs=(q,), mode=DraftMode.SAMPLED),
    ):
        with pytest.raises(CapabilityError, match="one chain"):
            verify(broken, rows, Uniforms([0.5]), rule=Rule.RATIO)
