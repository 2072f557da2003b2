"""Drafting with smaller heads: their drafts, the shared KV state and the statistics."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edgedecode.decoding.drafter import Drafter
from edgedecode.decoding.drafts import Draft
from edgedecode.decoding.model import ModelCard
from edgedecode.decoding.stats import Stats
from edgedecode.decoding.verify import Outcome, Verdict
from edgedecode.drafters.model_drafter import ModelDrafter, ModelSource
from edgedecode.drafters.model_state import ModelStates
from edgedecode.drafters.source import DrafterSource
from edgedecode.drafters.trim import TrimSource
from edgedecode.errors import CapabilityError
from edgedecode.sampling.sampler import Noise
from tests.toys import HeadedTable, draft_setting, headed_model, toy_model

VOCABULARY = 20
KEPT = (0, 2, 3, 5, 8, 9, 13, 17)
CONTEXT = [1, 2, 3, 4]


def model() -> HeadedTable:
    return headed_model(VOCABULARY, KEPT, seed=4, noise=0.3)


def opened(source: DrafterSource, made: HeadedTable, states: ModelStates | None = None) -> Drafter:
    return source.open(draft_setting(VOCABULARY, model=made, states=states, ends=frozenset({0})))


def best_of(made: HeadedTable, context: list[int], ids: tuple[int, ...], *, length: int) -> tuple[int, ...]:
    """Return the arg-max chain among these ids, ended by an end token."""
    tokens = list(context)
    while len(tokens) - len(context) < length:
        row = made.logits_after(tokens)[list(ids)]
        tokens.append(ids[int(row.argmax())])
        if tokens[-1] == 0:
            break
    return tuple(tokens[len(context) :])


def test_trim_draft_is_the_arg_max_of_the_kept_ids() -> None:
    made = model()
    drafter = opened(TrimSource(), made)
    drafter.begin(CONTEXT)
    draft = drafter.propose(CONTEXT, 6, Noise(0))
    assert draft.tokens == best_of(made, CONTEXT, KEPT, length=6)
    assert draft.tokens != best_of(made, CONTEXT, tuple(range(VOCABULARY)), length=6)
    assert draft.source == "trim"
    assert draft.vocabulary is not None
    assert draft.vocabulary.ids.tolist() == list(KEPT)


def test_trim_of_a_model_with_only_kept_rows_drafts_the_same() -> None:
    """On llama.cpp the rows are the kept ids only."""
    made = model()
    head = made.trimmed
    assert head is not None

    class Narrow:
        card: ModelCard = replace(made.card, rows=len(KEPT), token_ids=np.array(KEPT))
        new_state, forward, close = made.new_state, head.forward, made.close

    narrow = TrimSource().open(replace(draft_setting(VOCABULARY), draft_model=Narrow(), ends=frozenset({0})))
    whole = opened(TrimSource(), made)
    for drafter in (narrow, whole):
        drafter.begin(CONTEXT)
    assert narrow.propose(CONTEXT, 6, Noise(0)) == whole.propose(CONTEXT, 6, Noise(0))


def test_heads_of_one_model_prefill_a_context_once() -> None:
    made, states = model(), ModelStates()
    full = opened(ModelSource(), made, states)
    trim = opened(TrimSource(), made, states)
    context = [1, 2] * 20
    for drafter in (full, trim):
        drafter.begin(context)
    full.propose(context, 1, Noise(0))
    assert made.passes == [len(context)]
    assert trim.unread(context) == 0
    trim.propose([*context, 5], 2, Noise(0))
    full.propose([*context, 5, 6], 1, Noise(0))
    assert made.passes[1:] in ([1, 1, 1], [1, 1, 2])  # the rows of a wrong draft are rolled back and read again
    assert trim.nbytes == 0 < full.nbytes
    for drafter in (full, trim):
        drafter.close()


def test_trim_without_the_full_head_has_its_own_state() -> None:
    made, states = model(), ModelStates()
    trim = opened(TrimSource(), made, states)
    full = opened(ModelSource(), made, states)
    assert trim.nbytes > 0 == full.nbytes
    assert isinstance(trim, ModelDrafter)
    assert isinstance(full, ModelDrafter)
    assert trim.state is full.state


def test_trim_on_a_pack_without_a_trimmed_head_names_the_command() -> None:
    with pytest.raises(CapabilityError, match="edgedecode trim PACK"):
        TrimSource().open(draft_setting(VOCABULARY, model=toy_model(VOCABULARY)))
    with pytest.raises(CapabilityError, match="no draft model"):
        TrimSource().open(draft_setting(VOCABULARY))


def test_stats_count_rounds_cut_short_by_the_trimmed_vocabulary() -> None:
    drafter = opened(TrimSource(), model())
    drafter.begin(CONTEXT)
    draft = drafter.propose(CONTEXT, 2, Noise(0))
    stats = Stats()

    def count(drafted: Draft, token: int, outcome: Outcome) -> None:
        stats.count(Verdict(drafted, (token,), (), outcome, rows=None))  # type: ignore[arg-type]

    count(draft, 1, Outcome.CORRECTION)
    count(draft, 2, Outcome.CORRECTION)  # a kept one
    count(draft, 1, Outcome.BONUS)
    count(Draft((5, 6), source="trim"), 1, Outcome.CORRECTION)  # a draft of the full vocabulary
    assert stats.drafters["trim"].cut_short == 1
    assert stats.as_dict()["drafters"] == {"trim": {"rounds": 4, "proposed": 8, "accepted": 0, "cut_short": 1}}
