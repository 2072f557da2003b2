"""The speed that a head's acceptance and the costs of its rounds promise, on given counts."""

from edgedecode.export.distil.acceptance import MOST_DEPTH, Acceptance
from edgedecode.export.distil.speed import RoundCosts

ACCEPTED = (0, 3, 0, 0, 1, 0, 2, 2)
"""Of a draft from each position: those behind an accepted token begin no round."""


def test_rounds_begin_where_the_last_one_ended() -> None:
    found = Acceptance.of(ACCEPTED)
    assert (found.begun, found.reached[:4]) == (8, [4, 3, 1, 0])
    # Drafts of one: from 0, 1 (one of three), 3, 4, 6. Of two: 0, 1, 4, 6. Of three: 0, 1, 5, 6.
    assert found.rounds == [5, 4, *[4] * (MOST_DEPTH - 2)]
    assert found.emitted == [8] * MOST_DEPTH, "the last round of longer drafts would go beyond the end"
    assert (found.length(1), found.length(2)) == (8 / 5, 8 / 4)


def test_the_predicted_speed_is_that_of_the_best_length() -> None:
    found = Acceptance.of(ACCEPTED)
    assert RoundCosts(1.0, (1.25, 2.0)).speed_up(found) == (8 / 5) / 1.25
    assert RoundCosts(1.0, (1.25, 1.5)).speed_up(found) == (8 / 4) / 1.5
    found.add(Acceptance.of([0, 0]))
    assert RoundCosts(1.0, (1.25, 2.0)).speed_up(found) == (10 / 7) / 1.25
