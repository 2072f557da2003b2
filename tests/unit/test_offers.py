"""Offers are scored by what was emitted, whoever had proposed it, and only when their tokens are there."""

from __future__ import annotations

from edgedecode.decoding.counterfactual import OpenOffers
from edgedecode.decoding.drafts import Draft
from edgedecode.decoding.policy import Score


def test_an_offer_waits_for_its_tokens() -> None:
    offers = OpenOffers()
    offers.add("a", Draft((1, 2, 3), match=4), at=2)
    assert offers.settle([9, 9]) == []
    assert offers.settle([9, 9, 1, 2]) == []
    assert offers.settle([9, 9, 1, 2, 3]) == [Score("a", 3, 3, match=4)]
    assert offers.settle([9, 9, 1, 2, 3, 4]) == []


def test_the_first_wrong_token_decides() -> None:
    offers = OpenOffers()
    offers.add("a", Draft((1, 2, 3)), at=0)
    assert offers.settle([1, 7]) == [Score("a", 3, 1)]


def test_what_is_crowded_out_counts_as_far_as_it_went() -> None:
    offers = OpenOffers()
    for at in range(6):
        offers.add("a", Draft(tuple(range(at, at + 50))), at=at)
    assert offers.settle(list(range(7))) == [Score("a", 7, 7), Score("a", 6, 6)]


def test_drafters_wait_apart_and_clear_forgets_all() -> None:
    offers = OpenOffers()
    offers.add("a", Draft((1,)), at=0)
    offers.add("b", Draft((2,)), at=0)
    assert offers.settle([2]) == [Score("a", 1, 0), Score("b", 1, 1)]
    offers.add("a", Draft((1,)), at=1)
    offers.clear()
    assert offers.settle([2, 1]) == []
