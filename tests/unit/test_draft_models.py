"""Which copy of the draft model serves which heads, with as few copies as possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from edgedecode.decoding.model import LanguageModel
from edgedecode.errors import CapabilityError
from edgedecode.sessions.draft_models import DraftModels
from edgedecode.testing import TableModel
from tests.toys import headed_model, toy_model

VOCABULARY = 12


def models(*offered: tuple[tuple[str, ...], LanguageModel]) -> tuple[DraftModels, list[tuple[str, ...]]]:
    loaded: list[tuple[str, ...]] = []

    def load(needs: Sequence[str]) -> LanguageModel:
        loaded.append(tuple(needs))
        for heads, model in offered:
            if heads == tuple(needs):
                return model
        raise CapabilityError("none")

    return DraftModels(load), loaded


def headed() -> TableModel:
    return headed_model(VOCABULARY, (1, 2), seed=0, noise=0.1)


def test_draft_models_serve_every_drafter_from_one_model_with_heads() -> None:
    drafts, loaded = models((("trim",), headed()))
    model = drafts.offering(("trim",))
    assert drafts.offering() is model
    assert loaded == [("trim",)]
    assert not drafts.needs_another(())


def test_draft_models_use_a_model_without_the_full_vocabulary_for_trim_only() -> None:
    narrow = toy_model(VOCABULARY)
    narrow.card = replace(narrow.card, token_ids=np.array([1, 2]))
    full = toy_model(VOCABULARY)
    drafts, loaded = models((("trim",), narrow), ((), full))
    assert drafts.offering(("trim",)) is narrow
    assert drafts.needs_another(())
    assert drafts.offering() is full
    assert drafts.offering(("trim",)) is narrow
    assert loaded == [("trim",), ()]


def test_draft_models_load_nothing_in_advance() -> None:
    drafts, loaded = models(((), toy_model(VOCABULARY)))
    assert not drafts.needs_another(("trim",))
    assert loaded == []
    assert not drafts.can_offer(("trim",))
    assert drafts.can_offer(())
    with pytest.raises(CapabilityError):
        drafts.offering(("trim",))


def test_draft_models_of_a_pack_without_a_draft_model_offer_none() -> None:
    drafts = DraftModels(None)
    assert drafts.offering(("trim",)) is drafts.offering() is None
    assert not drafts.can_offer(())
