"""Fixtures of the tests with threads."""

import sys
from collections.abc import Iterator

import pytest

from edgedecode.memory.budget import Budget
from edgedecode.pair import Pair
from tests.property.workers import DRAFTERS, options
from tests.toys import ascii_pair


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Yield a pair whose lazily made parts exist, so that leases can be compared."""
    made = ascii_pair(noise=0.4, context=2048, budget=Budget())
    for drafter in DRAFTERS:
        made.session(options(drafter)).close()
    with made:
        yield made


@pytest.fixture
def hasty() -> Iterator[None]:
    """Make threads alternate every few lines."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
