"""The public test doubles keep the contracts of the interfaces they replace."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedecode.decoding.drafts import Draft
from edgedecode.decoding.model import AdapterUse
from edgedecode.errors import BudgetExceeded, CapabilityError
from edgedecode.memory.budget import Budget
from edgedecode.options import SessionOptions
from edgedecode.sampling.sampler import Noise
from edgedecode.testing import ScriptedDrafter, TableModel, byte_tokenizer, toy_pair, toy_tables
from tests.toys import path_to, toy_model

VOCABULARY = 12
tokens = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=12)


def model() -> TableModel:
    return TableModel(toy_tables(VOCABULARY, seed=1))


@given(tokens, st.data())
def test_table_model_in_pieces_equals_one_pass(sequence: list[int], data: st.DataObject) -> None:
    table = model()
    state = table.new_state(64)
    start = 0
    while start < len(sequence):
        end = data.draw(st.integers(start + 1, len(sequence)))
        output = table.forward(sequence[start:end], state)
        np.testing.assert_array_equal(output.logits[0], table.logits_after(sequence[:end]))
        if data.draw(st.booleans()):
            state.keep(range(state.pending))
        start = end


@given(tokens, tokens, st.integers(0, 11))
def test_table_model_crop_then_forward_equals_a_fresh_state(sequence: list[int], after: list[int], length: int) -> None:
    table = model()
    state = table.new_state(64)
    table.forward(sequence, state)
    state.keep(range(len(sequence)))
    table.forward(after, state)  # pending rows are dropped by a crop
    length = min(length, len(sequence))
    state.crop(length)
    assert (state.length, state.pending) == (length, 0)
    found = table.forward(after, state).logits[0].copy()
    np.testing.assert_array_equal(found, table.logits_after([*sequence[:length], *after]))


@given(st.data())
def test_table_model_tree_in_one_pass_or_two_equals_each_path_alone(data: st.DataObject) -> None:
    table = model()
    nodes = data.draw(st.integers(1, 10))
    parents = [data.draw(st.integers(-1, index - 1)) for index in range(nodes)]
    ids = [data.draw(st.integers(0, VOCABULARY - 1)) for _ in range(nodes)]
    split = data.draw(st.integers(1, nodes))
    state = table.new_state(64)
    table.forward([3, 4], state)
    state.keep([0, 1])
    rows = [table.forward(ids[:split], state, parents=parents[:split], rows="all").logits.copy()]
    if split < nodes:
        rows.append(table.forward(ids[split:], state, parents=parents[split:], rows="all").logits.copy())
    logits = np.concatenate(rows)
    for node in range(nodes):
        path = path_to(parents, node)
        np.testing.assert_array_equal(logits[node], table.logits_after([3, 4, *(ids[step] for step in path)]))
    leaf = data.draw(st.integers(0, nodes - 1))
    state.keep(path_to(parents, leaf))
    assert state.tokens == [3, 4, *(ids[step] for step in path_to(parents, leaf))]


def test_table_model_with_a_stale_cache_gives_another_answer() -> None:
    """The model reads two tokens and the position; an error in any one of them changes the arg-max somewhere."""
    table = model()
    rng = np.random.default_rng(0)
    changed = {"token": 0, "before": 0, "position": 0}
    for _ in range(100):
        sequence = rng.integers(0, VOCABULARY, size=5).tolist()
        best = table.logits_after(sequence).argmax()
        changed["token"] += best != table.logits_after([*sequence[:-1], (sequence[-1] + 1) % VOCABULARY]).argmax()
        changed["before"] += best != table.logits_after([*sequence[:-2], 0, sequence[-1]]).argmax()
        changed["position"] += best != table.logits_after([0, *sequence]).argmax()
    assert min(changed.values()) > 20


def test_table_model_overwrites_rows_that_are_kept_too_long() -> None:
    table = model()
    state = table.new_state(8)
    view = table.forward([1], state).logits
    table.forward([2], state)
    assert np.isnan(view).all()


@pytest.mark.parametrize("path", [(1,), (0, 2), (0, 0), (5,), (-1,)])
def test_table_state_keeps_only_a_path_from_the_root(path: tuple[int, ...]) -> None:
    table = model()
    state = table.new_state(8)
    table.forward([1, 2, 3], state, parents=[-1, 0, 1])
    with pytest.raises(ValueError, match="is not a path"):
        state.keep(path)


def test_table_model_refusals() -> None:
    table = model()
    state = table.new_state(4)
    with pytest.raises(CapabilityError, match="do not fit"):
        table.forward([1] * 5, state)
    with pytest.raises(CapabilityError, match="cannot crop"):
        state.crop(1)
    with pytest.raises(CapabilityError, match="no adapters"):
        table.forward([1], state, adapter=AdapterUse("a", "b"))
    with pytest.raises(ValueError, match="out of range"):
        table.forward([VOCABULARY], state)
    with pytest.raises(ValueError, match="empty"):
        table.forward([], state)
    with pytest.raises(ValueError, match="has parent"):
        table.forward([1], state, parents=[3])
    with pytest.raises(CapabilityError, match="this model allows 512"):
        table.new_state(513)
    with pytest.raises(BudgetExceeded):
        TableModel(toy_tables(VOCABULARY, seed=1), budget=Budget(10)).new_state(4)


def test_table_model_makes_the_requested_rows() -> None:
    table = model()
    state = table.new_state(32)
    assert table.forward([1, 2, 3], state, rows="none").logits.shape == (0, VOCABULARY)
    assert table.forward([1, 2, 3], state, rows="all").logits.shape == (3, VOCABULARY)
    assert table.forward([1, 2, 3], state, rows=[0, 2]).logits.shape == (2, VOCABULARY)
    assert table.rows_made == 5
    assert table.passes == [3, 3, 3]


def test_toy_tables_with_padding_are_wider_than_the_vocabulary() -> None:
    assert toy_model(VOCABULARY).card.rows > toy_model(VOCABULARY).card.vocabulary_size


def test_scripted_drafter_follows_its_script() -> None:
    scripted = ScriptedDrafter({3: Draft((1, 2))})
    assert scripted.propose([0, 0, 0], 4, Noise(0)).tokens == (1, 2)
    assert len(scripted.propose([0], 4, Noise(0))) == 0


def test_byte_tokenizer_encodes_any_text() -> None:
    tokenizer = byte_tokenizer()
    assert tokenizer.size == 259
    text = "naïve 你好 <|im_end|>"
    assert tokenizer.decode(tokenizer.encode(text), skip_special=False) == text


def test_toy_pair_without_noise_has_a_draft_equal_to_the_target() -> None:
    with toy_pair(draft_noise=0.0) as pair, pair.session(SessionOptions(draft_max=4)) as session:
        session.generate("hello", max_tokens=30)
        assert session.stats.accepted == session.stats.proposed > 0
    with toy_pair(draft_noise=2.0) as pair, pair.session(SessionOptions(draft_max=4)) as session:
        session.generate("hello", max_tokens=30)
        assert session.stats.corrections > 0
