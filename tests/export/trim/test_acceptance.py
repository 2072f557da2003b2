"""One teacher-forced pass gives the acceptance of every size and length, equal to a real trimmed draft's by round."""

from collections.abc import Sequence

import numpy as np
import pytest

from edgedecode.arrays import IntArray
from edgedecode.decoding.verify import Outcome
from edgedecode.drafters.model_drafter import ModelDrafter
from edgedecode.export.trim.forced_acceptance import (
    LENGTHS,
    accepted_by_round,
    forced_hits,
    likeliest,
    measure_acceptance,
)
from edgedecode.export.trim.id_ranking import Ranking, rank_ids
from edgedecode.export.trim.texts import AnsweredText
from edgedecode.testing import TableModel, toy_tables
from tests.toys import TrimmedTable, draft_setting, padded, run, toy_model

VOCABULARY = 40
SIZES = (8, 20, 33)
PROMPT = (5, 9, 3)
LIMIT = 60


def draft_tables(seed: int) -> TableModel:
    """Return the draft of `toy_model(VOCABULARY, seed=seed)`, with padding rows that have the highest logits."""
    base = toy_tables(VOCABULARY, seed=seed)
    return TableModel(padded(toy_tables(VOCABULARY, seed=seed + 1, scale=0.7, near=base)))


def ranking_of(seed: int, *, always: frozenset[int] = frozenset()) -> Ranking:
    counted = [run(toy_model(VOCABULARY, seed=seed), (token, 2, 6), max_tokens=40).tokens for token in range(4)]
    return rank_ids(counted, always=always, vocabulary_size=VOCABULARY)


def vocabularies_of(ranking: Ranking, sizes: Sequence[int] = SIZES) -> list[IntArray]:
    return [*(ranking.vocabulary(size).ids for size in sizes), np.arange(ranking.vocabulary_size)]


def drafted(seed: int, ids: np.ndarray | None, *, length: int, ends: frozenset[int]) -> tuple[list[int], list[int]]:
    """Decode with a real drafter and these ids; return the new tokens and the accepted counts from round 2 on."""
    full = draft_tables(seed)
    model = full if ids is None else TrimmedTable(full, ids.tolist())
    drafter = ModelDrafter(model, draft_setting(VOCABULARY, ends=ends))
    target = toy_model(VOCABULARY, seed=seed)
    found = run(target, PROMPT, max_tokens=LIMIT, drafter=drafter, draft_max=length, ends=ends)
    return found.tokens, [verdict.accepted for verdict in found.verdicts[1:]]


@pytest.mark.parametrize("ends", [frozenset[int](), frozenset({17}), frozenset({3})], ids=["no end", "17", "3"])
@pytest.mark.parametrize("seed", range(4))
def test_forced_hits_match_a_real_drafter_for_every_size_and_length(seed: int, ends: frozenset[int]) -> None:
    ranking = ranking_of(seed, always=ends)
    answer = run(toy_model(VOCABULARY, seed=seed), PROMPT, max_tokens=LIMIT, ends=ends).tokens
    ended = answer[-1] in ends and len(answer) < LIMIT
    text = AnsweredText((*PROMPT, *answer), len(PROMPT), ended=ended)
    hits = forced_hits(draft_tables(seed), text, vocabularies_of(ranking))
    accepted = 0
    for column, size in enumerate([*SIZES, None]):
        ids = None if size is None else ranking.vocabulary(size).ids
        for length in LENGTHS:
            tokens, real = drafted(seed, ids, length=length, ends=ends)
            assert tokens == answer
            forced = list(accepted_by_round(hits[:, column], length=length, ended=ended))
            assert forced == real, f"size {size}, drafts of {length}"
            accepted += sum(real)
    assert accepted > 0


def test_toy_answers_end_in_both_ways() -> None:
    """The test above covers answers with an end token and answers that were cut."""
    ends = {
        run(toy_model(VOCABULARY, seed=seed), PROMPT, max_tokens=LIMIT, ends=frozenset({end})).verdicts[-1].outcome
        for seed in range(4)
        for end in (3, 17)
    }
    assert Outcome.ENDED in ends
    assert len(ends) > 1


def test_likeliest_takes_the_lowest_id_of_a_tie() -> None:
    ranking = rank_ids([(6, 6, 6, 2, 2, 4)], always=frozenset({7}), vocabulary_size=8)
    assert ranking.order.tolist()[:4] == [7, 6, 2, 4]
    logits = np.array([[0, 5, 3, 0, 3, 0, 3, 1], [0, 0, 0, 0, 0, 0, 0, 0]], np.float32)
    assert likeliest(logits, vocabularies_of(ranking, (2, 4))).tolist() == [[6, 2, 1], [6, 2, 0]]


def test_forced_hits_read_long_texts_in_chunks() -> None:
    tokens = run(toy_model(VOCABULARY, seed=0), PROMPT, max_tokens=400).tokens
    text = AnsweredText((*PROMPT, *tokens), 200)
    model = draft_tables(0)
    hits = forced_hits(model, text, vocabularies_of(ranking_of(0)))
    assert model.passes == [199, 64, 64, 64, 11]
    expected = [int(np.argmax(model.logits_after(text.tokens[:place])[:VOCABULARY])) for place in range(200, 403)]
    assert hits[:, -1].tolist() == [guess == token for guess, token in zip(expected, text.answer, strict=True)]


def test_measure_acceptance_counts_all_tokens_and_covers_all_with_the_full_vocabulary() -> None:
    text = AnsweredText((*PROMPT, *run(toy_model(VOCABULARY, seed=0), PROMPT, max_tokens=50).tokens), 3)
    small, *_, whole = measure_acceptance(draft_tables(0), [text], vocabularies_of(ranking_of(0)))
    assert small.tokens == whole.tokens == 50
    assert small.coverage < whole.coverage == 1.0


def test_measure_acceptance_of_one_token_has_no_round() -> None:
    (found, *_) = measure_acceptance(draft_tables(0), [AnsweredText((1, 2), 1)], vocabularies_of(ranking_of(0)))
    assert found.per_round == dict.fromkeys(LENGTHS, 1.0)
