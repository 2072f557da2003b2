"""Rounding with error feedback: less error of the products, in any pieces, and blocks that other formats hold."""

import numpy as np
import pytest

from edgedecode.arrays import FloatArray
from edgedecode.export.graph.error_feedback import Moments, pieces_of
from edgedecode.export.graph.quantize import Scheme, dequantize, quantize


def moments_of(inputs: FloatArray) -> Moments:
    """Return the second moments of inputs [rows, columns]."""
    pieces = (inputs[:, piece.start : piece.stop] for piece in pieces_of(inputs.shape[1]))
    return Moments(tuple(np.asarray(piece.T @ piece / len(inputs), np.float32) for piece in pieces))


def correlated(rows: int, columns: int, seed: int) -> FloatArray:
    """Return inputs [rows, columns] of which each depends on a few hidden ones, as activations do."""
    rng = np.random.default_rng(seed)
    mixture = rng.standard_normal((columns // 8, columns))
    return np.asarray(
        rng.standard_normal((rows, columns // 8)) @ mixture + 0.1 * rng.standard_normal((rows, columns)), np.float32
    )


@pytest.mark.parametrize("scheme", [Scheme(4, 32), Scheme(4, 128)], ids=lambda scheme: scheme.name)
@pytest.mark.parametrize("columns", [256, 1536])
def test_products_of_correlated_inputs_have_half_the_error(scheme: Scheme, columns: int) -> None:
    weights = np.random.default_rng(1).standard_normal((48, columns)).astype(np.float32)
    inputs, others = np.split(correlated(4 * columns, columns, 2), 2)
    errors = [
        float(((others @ (dequantize(quantize(weights, scheme, factors=factors), scheme) - weights).T) ** 2).mean())
        for factors in ((), moments_of(inputs).factors())
    ]
    assert errors[1] < 0.5 * errors[0]


@pytest.mark.parametrize("columns", [32, 96, 576, 1024, 1056, 1536, 8192, 11008])
def test_pieces_cover_all_columns_and_end_between_blocks(columns: int) -> None:
    pieces = pieces_of(columns)
    assert [column for piece in pieces for column in piece] == [*range(columns)]
    assert all(len(piece) <= 1024 + 128 and piece.start % 128 == 0 for piece in pieces)


def test_columns_that_the_text_never_activates_are_rounded_to_nearest() -> None:
    weights = np.random.default_rng(3).standard_normal((16, 128)).astype(np.float32)
    nothing = Moments((np.zeros((128, 128), np.float32),))
    found = dequantize(quantize(weights, Scheme(4, 32), factors=nothing.factors()), Scheme(4, 32))
    assert np.abs(found - weights).max() <= np.abs(weights).max() / 8
    half = correlated(512, 128, 4)
    half[:, 64:] = 0
    blocks = quantize(weights, Scheme(4, 32), factors=moments_of(half).factors())
    assert np.isfinite(blocks.scales).all()
    assert np.abs(dequantize(blocks, Scheme(4, 32)) - weights)[:, 64:].max() <= np.abs(weights).max() / 4


def test_8_bits_are_rounded_to_nearest() -> None:
    weights = np.random.default_rng(6).standard_normal((4, 128)).astype(np.float32)
    plain, found = (
        quantize(weights, Scheme(8, 32), factors=each) for each in ((), moments_of(correlated(64, 128, 7)).factors())
    )
    assert np.array_equal(plain.packed, found.packed)
