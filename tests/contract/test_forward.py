"""Forward passes over chains: pieces equal one pass, rows as requested, positions and capacity respected."""

import numpy as np
import pytest

from edgedecode.decoding.model import AdapterUse, LanguageModel
from edgedecode.errors import CapabilityError
from tests.contract.reference import assert_close, assert_moved, logits_of, settled


@pytest.mark.parametrize("pieces", [[1], [2], [7, 1, 3], [64]], ids=str)
@pytest.mark.parametrize("keep", [False, True], ids=["pending", "settled"])
def test_forward_in_pieces_equals_one_pass(
    model: LanguageModel, tokens: list[int], pieces: list[int], keep: bool
) -> None:
    state, found, start = model.new_state(len(tokens)), [], 0
    while start < len(tokens):
        piece = tokens[start : start + pieces[len(found) % len(pieces)]]
        found.append(model.forward(piece, state, rows="all").logits.copy())
        if keep:
            state.keep(range(len(piece)))
        start += len(piece)
    assert_close(np.concatenate(found), logits_of(model, tokens))
    assert (state.length, state.pending) == ((len(tokens), 0) if keep else (0, len(tokens)))


def test_forward_returns_the_requested_rows(model: LanguageModel, tokens: list[int]) -> None:
    whole = logits_of(model, tokens)
    for rows, wanted in (("last", [63]), ("all", range(64)), ("none", []), ([5], [5]), ([9, 2, 40], [9, 2, 40])):
        logits = model.forward(tokens, model.new_state(64), rows=rows).logits
        assert logits.shape == (len(wanted), model.card.rows)
        assert logits.dtype == np.float32
        assert_close(logits, whole[list(wanted)])


def test_forward_row_counts_may_change_between_passes(model: LanguageModel, tokens: list[int]) -> None:
    whole, state = logits_of(model, tokens), model.new_state(64)
    for start, rows in enumerate(("all", "none", "last", [0], [1, 0], "all", "none", [1])):
        piece = tokens[2 * start : 2 * start + 2]
        logits = model.forward(piece, state, rows=rows).logits
        wanted = {"all": [0, 1], "none": [], "last": [1]}.get(rows) if isinstance(rows, str) else rows
        assert wanted is not None
        assert_close(logits, whole[[2 * start + row for row in wanted]])


def test_forward_on_two_states_is_independent(model: LanguageModel, tokens: list[int]) -> None:
    other = tokens[::-1]
    first, second = model.new_state(64), model.new_state(64)
    for start in range(0, 64, 4):
        left = model.forward(tokens[start : start + 4], first).logits.copy()
        right = model.forward(other[start : start + 4], second).logits.copy()
    assert_close(left[0], logits_of(model, tokens)[-1])
    assert_close(right[0], logits_of(model, other)[-1])


def test_forward_depends_on_the_context(model: LanguageModel, tokens: list[int]) -> None:
    changed = [*tokens[:-2], (tokens[-2] + 1) % 61, tokens[-1]]
    assert_moved(logits_of(model, tokens)[-1], logits_of(model, changed)[-1])


def test_forward_beyond_the_capacity_is_refused_and_changes_nothing(model: LanguageModel, tokens: list[int]) -> None:
    state = settled(model, tokens[:10], capacity=12)
    with pytest.raises(CapabilityError):
        model.forward(tokens[10:13], state)
    assert (state.length, state.pending, state.capacity) == (10, 0, 12)
    found = model.forward(tokens[10:12], state, rows="all").logits.copy()
    assert_close(found, logits_of(model, tokens[:12])[10:])
    with pytest.raises(CapabilityError):
        model.forward(tokens[:1], state)


def test_new_state_refuses_more_than_the_context(model: LanguageModel) -> None:
    with pytest.raises(CapabilityError):
        model.new_state(model.card.context + 1)


@pytest.mark.parametrize("bad", [[], [-1], [3, 10**6]], ids=str)
def test_forward_refuses_bad_tokens(model: LanguageModel, tokens: list[int], bad: list[int]) -> None:
    state = settled(model, tokens[:5], capacity=20)
    with pytest.raises(ValueError, match=r"token|id"):
        model.forward(bad, state)
    assert (state.length, state.pending) == (5, 0)


def test_forward_refuses_an_adapter(model: LanguageModel, tokens: list[int]) -> None:
    with pytest.raises(CapabilityError):
        model.forward(tokens, model.new_state(64), adapter=AdapterUse(name="formal", digest="0"))


def test_card_reports_sizes(model: LanguageModel) -> None:
    assert 0 < model.card.vocabulary_size <= model.card.rows
    assert model.card.tree
    assert model.card.token_ids is None
