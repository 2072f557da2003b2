"""Which copy of the draft model serves which heads, and how few there are."""

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


def test_one_with_heads_serves_everyone() -> None:
    drafts, loaded = models((("trim",), headed()))
    model = drafts.offering(("trim",))
    assert drafts.offering() is model
    assert loaded == [("trim",)]
    assert not drafts.needs_another(())


def test_one_that_cannot_say_everything_serves_the_trimmed_alone() -> None:
    narrow = toy_model(VOCABULARY)
    narrow.card = replace(narrow.card, token_ids=np.array([1, 2]))
    whole = toy_model(VOCABULARY)
    drafts, loaded = models((("trim",), narrow), ((), whole))
    assert drafts.offering(("trim",)) is narrow
    assert drafts.needs_another(())
    assert drafts.offering() is whole
    assert drafts.offering(("trim",)) is narrow
    assert loaded == [("trim",), ()]


def test_nothing_is_loaded_before_it_is_asked_for() -> None:
    drafts, loaded = models(((), toy_model(VOCABULARY)))
    assert not drafts.needs_another(("trim",))
    assert loaded == []
    assert not drafts.can_offer(("trim",))
    assert drafts.can_offer(())
    with pytest.raises(CapabilityError):
        drafts.offering(("trim",))


def test_a_pack_without_a_draft_model_offers_none() -> None:
    drafts = DraftModels(None)
    assert drafts.offering(("trim",)) is drafts.offering() is None
    assert not drafts.can_offer(())
