"""Quality of a KV type against the reference, on known scores."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from edgedecode.apps.eval.kv_quality import TextScores, quality_of, ratio_bounds
from edgedecode.engines.text_scores import Scores


def text(losses: Sequence[float], leading: Sequence[int], *, divergence: float = 0.0, answer: str = "a") -> TextScores:
    scores = Scores(np.array(losses, np.float32), np.array(leading, np.int64))
    return TextScores(scores, divergence, [ord(letter) for letter in answer])


def test_quality_of_a_type_against_the_reference() -> None:
    reference = [text([1, 2], [5, 6], answer="ab"), text([3], [7], answer="c")]
    found = [text([1.5, 2.5], [5, 9], divergence=0.3, answer="ab"), text([3.5], [7], divergence=0.6, answer="cd")]
    quality = quality_of(found, reference, kv_type="int8", kv_nbytes=64)
    assert (quality.kv_type, quality.kv_nbytes, quality.positions, quality.texts) == ("int8", 64, 3, 2)
    assert quality.perplexity == pytest.approx(math.exp(7.5 / 3))
    assert quality.ratio == pytest.approx(math.exp(0.5))
    assert (quality.ratio_low, quality.ratio_high) == (pytest.approx(math.exp(0.5)), pytest.approx(math.exp(0.5)))
    assert (quality.leading_rate.count, quality.leading_rate.total) == (2, 3)
    assert quality.divergence == pytest.approx(0.3)
    assert (quality.identical_rate.count, quality.identical_rate.total) == (1, 2)


def test_quality_of_the_reference_against_itself_is_exact() -> None:
    texts = [text([0.1, 0.7, 3.3], [1, 2, 3]), text([2.1], [4])]
    quality = quality_of(texts, texts, kv_type="float32", kv_nbytes=4)
    assert (quality.ratio, quality.ratio_low, quality.ratio_high, quality.divergence) == (1, 1, 1, 0)
    assert (quality.leading, quality.identical) == (4, 2)


def test_ratio_bounds_contain_the_ratio_and_shrink_with_more_texts() -> None:
    rng = np.random.default_rng(1)
    widths = []
    for count in (20, 2000):
        lengths = rng.integers(10, 100, count)
        worse = lengths * (0.01 + 0.02 * rng.standard_normal(count))
        found = ratio_bounds(worse, lengths)
        assert found is not None
        low, high = found
        assert low < math.exp(worse.sum() / lengths.sum()) < high
        assert found == ratio_bounds(worse, lengths)  # the bootstrap samples are seeded
        widths.append(high - low)
    assert widths[1] < widths[0] / 5


def test_ratio_bounds_weigh_texts_by_their_tokens() -> None:
    found = ratio_bounds([0.0] * 50 + [10.0] * 50, [1] * 50 + [999] * 50)
    assert found == pytest.approx((math.exp(500 / 50_000), math.exp(500 / 50_000)), rel=1e-3)


def test_ratio_bounds_of_one_text_are_none() -> None:
    assert ratio_bounds([0.5], [3]) is None
    quality = quality_of([text([1], [1])], [text([1], [1])], kv_type="int8", kv_nbytes=0)
    assert (quality.ratio_low, quality.ratio_high) == (None, None)
