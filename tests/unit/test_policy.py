"""The fixed-length policy: deterministic, and never longer than the remaining tokens allow."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedecode.decoding.policy import MAX_DRAFT, FixedLength, Plan, Signals
from edgedecode.errors import InputError


@given(st.integers(0, MAX_DRAFT), st.integers(1, 200))
def test_fixed_length_leaves_room_for_the_token_after_the_draft(draft_max: int, remaining: int) -> None:
    plan = FixedLength(draft_max).plan(Signals(context_tokens=10, remaining_tokens=remaining))
    assert plan == Plan(min(draft_max, remaining - 1), reason="fixed")


def test_fixed_length_is_constant_until_the_end_is_near() -> None:
    trace = [Signals(context_tokens=5 + n, remaining_tokens=9 - n) for n in range(9)]
    assert [FixedLength(4).plan(signals).draft_max for signals in trace] == [4, 4, 4, 4, 4, 3, 2, 1, 0]


@pytest.mark.parametrize("draft_max", [-1, MAX_DRAFT + 1])
def test_fixed_length_refuses_lengths_out_of_range(draft_max: int) -> None:
    with pytest.raises(InputError, match=f"draft length {draft_max} is out of range: 0 .* to {MAX_DRAFT}"):
        FixedLength(draft_max)
