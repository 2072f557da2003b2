"""The kept ids: always those needed to encode any text, then by count, ties by id."""

import numpy as np
import pytest

from edgedecode.errors import InputError
from edgedecode.export.trim.id_ranking import always_kept, rank_ids, sweep_sizes
from edgedecode.export.trim.texts import AnsweredText, split_texts
from edgedecode.pack.manifest import Generation
from edgedecode.text.tokenizer import Tokenizer
from tests.export.trim.toy_pack import ALWAYS, VOCABULARY
from tests.small_tokenizers import byte_fallback, byte_level


def test_always_kept_has_byte_special_added_and_end_tokens() -> None:
    tokenizer = Tokenizer(byte_level())
    ordinary = tokenizer.token_to_id("qu")
    assert ordinary is not None
    kept = always_kept(tokenizer, Generation(end_token_ids=(ordinary, 10**6), bos_token="<tool>"))
    named = {tokenizer.token_to_id(token) for token in ("<|end|>", "<tool>", "two é words")}
    assert named <= kept
    assert len(kept) == 256 + 3 + 1
    for character in "aé世🦙\n\0":  # the kept ids can encode any text
        assert all(tokenizer.token_to_id(letter) in kept for letter in _letters(tokenizer, character))


def _letters(tokenizer: Tokenizer, character: str) -> str:
    return "".join(tokenizer.token_text(id) or "" for id in tokenizer.encode(character))


def test_always_kept_has_byte_fallback_tokens() -> None:
    tokenizer = Tokenizer(byte_fallback())
    kept = always_kept(tokenizer, Generation(end_token_ids=()))
    assert {tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in range(256)} <= kept
    assert {tokenizer.token_to_id("<unk>"), tokenizer.token_to_id("<s>")} <= kept
    assert tokenizer.token_to_id("ab") not in kept


def test_rank_ids_orders_by_count_then_by_id() -> None:
    ranking = rank_ids([(7, 5, 7), (5, 3, 9)], always=frozenset({1, 8}), vocabulary_size=10)
    assert ranking.order.tolist() == [1, 8, 5, 7, 3, 9, 0, 2, 4, 6]
    assert ranking.vocabulary(4).ids.tolist() == [1, 5, 7, 8]
    assert ranking.vocabulary(8).ids.tolist() == [0, 1, 2, 3, 5, 7, 8, 9], "of unseen ids the lowest are kept"
    assert ranking.places[ranking.order].tolist() == list(range(10))


@pytest.mark.parametrize("share", [0.2, 0.5, 0.75, 0.99, 1.0])
def test_size_covering_is_the_smallest_sufficient_size(share: float) -> None:
    rng = np.random.default_rng(3)
    text = (rng.zipf(1.3, 5000) % 1000).tolist()
    ranking = rank_ids([text[:2500]], always=frozenset({7}), vocabulary_size=1000)
    size = ranking.size_covering(text[2500:], share)

    def covered(size: int) -> float:
        return float(np.isin(text[2500:], ranking.vocabulary(size).ids).mean())

    if size is None:
        assert covered(960) < share
    else:
        assert size % 64 == 0
        assert covered(size) >= share
        assert size == 64 or covered(size - 64) < share


def test_size_covering_of_an_empty_text_and_at_least_the_required_ids() -> None:
    ranking = rank_ids([], always=frozenset(range(100, 300)), vocabulary_size=1000)
    assert ranking.size_covering([], 0.9) is None
    assert ranking.size_covering([150], 1.0) == 200


def test_rank_ids_refuses_an_id_outside_the_vocabulary() -> None:
    with pytest.raises(InputError, match="ids outside the vocabulary of 10"):
        rank_ids([(3, 10)], always=frozenset(), vocabulary_size=10)


def test_sweep_sizes() -> None:
    assert sweep_sizes(vocabulary_size=8192, always=259) == (512, 1024, 2048, 4096)
    assert sweep_sizes(vocabulary_size=151936, always=300)[-3:] == (37984, 65536, 75968)
    assert sweep_sizes(vocabulary_size=VOCABULARY, always=ALWAYS) == (325, 650, 1024)
    with pytest.raises(InputError, match="too small to be trimmed"):
        sweep_sizes(vocabulary_size=259, always=259)


@pytest.mark.parametrize("count", [2, 3, 5, 40])
def test_split_texts_measures_on_other_prompts_than_it_counts(count: int) -> None:
    texts = [[AnsweredText((1, 2, number), 1), AnsweredText((9, number), 1)] for number in range(count)]
    split = split_texts(texts)
    assert split == split_texts(texts)
    of = {name: {text.tokens[-1] for text in getattr(split, name)} for name in ("counted", "choosing", "measured")}
    assert all(of.values())
    assert not of["counted"] & (of["choosing"] | of["measured"])
    assert set().union(*of.values()) == set(range(count))
    assert len(of["measured"]) == -(-count // 8)
    assert not of["choosing"] & of["measured"] or count < 5


def test_answered_text_cut_drops_tokens_beyond_the_context() -> None:
    text = AnsweredText(tuple(range(10)), 4, ended=True)
    assert text.cut(10) is text
    assert text.cut(6) == AnsweredText(tuple(range(6)), 4)
    assert text.cut(3).answer == ()
