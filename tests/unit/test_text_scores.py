"""Scores of texts, on tables and on rows with known values."""

import numpy as np
import pytest

from edgedecode.arrays import FloatArray
from edgedecode.engines.text_scores import LIKELY, PIECE, RowScores, ScoredText, Scores, score_rows
from edgedecode.testing import TableModel, toy_tables


def test_text_scores_are_those_of_the_model() -> None:
    model = TableModel(toy_tables(32, seed=1))
    text = ScoredText((3, 4, 5, 6, 7, 8), 2)
    rows = np.array([model.logits_after(text.tokens[:at]) for at in range(6)[1:]], np.float64)
    expected = [np.log(np.exp(rows[at - 1]).sum()) - rows[at - 1][text.tokens[at]] for at in range(2, 6)]
    found = Scores.joined(score_rows(model, text))
    assert found.losses == pytest.approx(expected, rel=1e-5)
    assert found.leading.tolist() == [int(rows[at - 1].argmax()) for at in range(2, 6)]
    assert found.perplexity == pytest.approx(np.exp(np.mean(expected)), rel=1e-5)
    other = Scores(found.losses, found.leading + np.array([0, 0, 0, 1]))
    assert found.agreement(other) == 0.75


def test_text_scores_of_a_long_text_count_every_token_once() -> None:
    model = TableModel(toy_tables(32, seed=1))
    tokens = tuple(int(token) for token in np.random.default_rng(0).integers(0, 32, 2 * PIECE + 11))
    text = ScoredText(tokens, 10)
    found = Scores.joined(score_rows(model, text))
    assert model.passes == [9, PIECE, PIECE, 1]
    assert len(found.losses) == text.scored == 2 * PIECE + 1
    leading = [int(model.logits_after(tokens[:at]).argmax()) for at in range(10, len(tokens))]
    assert found.leading.tolist() == leading


def test_divergence_over_classes_is_a_lower_bound_of_the_full_one() -> None:
    """With more ids than are kept: exactly 0 against itself, otherwise below the exact value."""
    rng = np.random.default_rng(0)
    rows = np.asarray(3 * rng.standard_normal((20, 40 * LIKELY)), np.float32)
    moved = np.asarray(rows + 0.2 * rng.standard_normal(rows.shape), np.float32)
    reference, other = (RowScores.of(each, [0] * 20) for each in (rows, moved))
    likely = reference.likely()
    assert likely.ids.shape == (20, LIKELY)
    assert likely.ids.nbytes + likely.shares.nbytes + likely.rest.nbytes == likely.nbytes(20)
    assert (likely.shares.sum(axis=1) + likely.rest).tolist() == pytest.approx([1.0] * 20)
    assert not reference.divergence(likely).any()
    whole = (softmax(rows) * (np.log(softmax(rows)) - np.log(softmax(moved)))).sum(axis=1)
    found = other.divergence(likely)
    assert (found > 0).all()
    assert (found <= whole).all()


def softmax(rows: FloatArray) -> np.ndarray:
    exps = np.exp(rows.astype(np.float64))
    return np.asarray(exps / exps.sum(axis=1, keepdims=True))


def test_row_scores_accept_a_probability_of_zero() -> None:
    far = RowScores.of(np.array([[0, -200, -300]], np.float32), [0])
    near = RowScores.of(np.array([[0, -1, -300]], np.float32), [0])
    for reference, other in ((far, near), (near, far)):
        assert 0 < float(other.divergence(reference.likely())[0]) < 100


def test_row_scores_of_a_broken_row_are_nan() -> None:
    broken = RowScores.of(np.array([[np.nan, 0]], np.float32), [1])
    assert np.isnan(broken.losses).all()
