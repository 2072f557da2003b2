"""The reference of the contract tests: full sequences on fresh states, which every other way must equal."""

from collections.abc import Sequence

import numpy as np

from edgedecode.arrays import FloatArray
from edgedecode.decoding.model import LanguageModel, State

TOLERANCE = 1e-4  # float weights: kernels for one row and for many differ by rounding only


def logits_of(model: LanguageModel, tokens: Sequence[int], *, capacity: int | None = None) -> FloatArray:
    """Return every row's logits of one chain on a fresh state."""
    state = model.new_state(capacity or max(len(tokens), 1))
    logits = model.forward(tokens, state, rows="all").logits.copy()
    state.close()
    return logits


def settled(model: LanguageModel, tokens: Sequence[int], *, capacity: int) -> State:
    """Return a fresh state on which `tokens` are settled."""
    state = model.new_state(capacity)
    model.forward(tokens, state, rows="none")
    state.keep(range(len(tokens)))
    return state


def assert_close(found: FloatArray, wanted: FloatArray) -> None:
    np.testing.assert_allclose(found, wanted, rtol=0, atol=TOLERANCE)


def assert_moved(first: FloatArray, second: FloatArray) -> None:
    """Assert that two rows differ by far more than rounding, so that the comparison around it is meaningful."""
    assert np.abs(first - second).max() > 100 * TOLERANCE
