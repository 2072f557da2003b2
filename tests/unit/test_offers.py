"""Offers are scored against the emitted tokens, whichever drafter was used, once enough tokens are emitted."""

from edgedecode.decoding.drafts import Draft
from edgedecode.decoding.offers import OpenOffers
from edgedecode.decoding.policy import Score


def test_settle_scores_an_offer_at_its_first_wrong_token() -> None:
    offers = OpenOffers()
    offers.add("a", Draft((1, 2, 3)), at=0)
    assert offers.settle([1, 7]) == [Score("a", 3, 1)]


def test_settle_scores_a_displaced_offer_up_to_the_emitted_tokens() -> None:
    offers = OpenOffers()
    for at in range(6):
        offers.add("a", Draft(tuple(range(at, at + 50))), at=at)
    assert offers.settle(list(range(7))) == [Score("a", 7, 7), Score("a", 6, 6)]
