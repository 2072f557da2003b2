"""The public test doubles keep the contracts of the interfaces they replace."""

import numpy as np
from hypothesis import strategies as st

from edgedecode.decoding.drafts import Draft
from edgedecode.options import SessionOptions
from edgedecode.sampling.sampler import Noise
from edgedecode.testing import ScriptedDrafter, TableModel, byte_tokenizer, toy_pair, toy_tables

VOCABULARY = 12
tokens = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=12)


def model() -> TableModel:
    return TableModel(toy_tables(VOCABULARY, seed=1))


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
