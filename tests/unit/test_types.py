"""Value types of the interfaces: frozen, slotted, JSON-serialisable where a trace records them."""

import dataclasses
import json

import msgspec
import pytest

from edgedecode.decoding.drafts import EMPTY_DRAFT, Draft, DraftMode
from edgedecode.decoding.model import AdapterUse, ModelCard
from edgedecode.decoding.policy import Offer, Plan, RoundCost, Score, Signals
from edgedecode.decoding.stats import FinishReason


@pytest.mark.parametrize(
    "value",
    [Draft((1,)), AdapterUse("a", "d"), ModelCard("m", 8, 8, 16), Plan(2), Signals(1, 2)],
    ids=lambda value: type(value).__name__,
)
def test_values_are_frozen_and_slotted(value: object) -> None:
    assert dataclasses.is_dataclass(value)
    assert not hasattr(value, "__dict__")
    name = dataclasses.fields(value)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, name, None)


def test_empty_draft_is_a_chain() -> None:
    assert len(EMPTY_DRAFT) == 0
    assert EMPTY_DRAFT.parents is None
    assert EMPTY_DRAFT.mode is DraftMode.DETERMINISTIC
    assert len(Draft((4, 5, 6), parents=(-1, -1, 0))) == 3


def test_signals_and_plans_survive_json() -> None:
    signals = Signals(
        context_tokens=40, remaining_tokens=7, offers=(Offer("suffix", 5, match=3),), unread=(("model", 12),)
    )
    cost = RoundCost(width=3, pass_seconds=0.01, drafter="suffix", drafted=2, accepted=1)
    for value in (signals, cost, Plan(5, "model"), Plan(5), Score("suffix", 4, 2, match=3)):
        assert msgspec.json.decode(msgspec.json.encode(value), type=type(value)) == value


def test_finish_reasons_are_plain_strings_in_json() -> None:
    assert json.dumps([*FinishReason]) == '["stop", "length", "cancelled"]'
