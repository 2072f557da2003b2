"""What looking at drafters may cost: an account for each, in plain rounds.

Every token pays a little in, a drafter's gains pay in, its losses are paid out, by the clock. A drafter without funds
is not taken up. So over any text its losses are at most the grant, the income, and what it gained itself, but for the
overshoot of each time that it ran out: conservative exploration (Wu et al., 1602.04282).
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["Ledger"]

GRANT = 4.0
"""Plain rounds in a new account. More: a new pair is known sooner, and a hostile one costs more."""
INCOME = 0.0075
"""Plain rounds that each emitted token pays into every account: the share of the time that looking may cost."""
MOST = 3 * GRANT
"""Balance beyond which gains count no more. More: a text that changes is given up later."""
OVERDRAFT = 0.25
"""Plain rounds that an account may owe; what a round cost beyond is forgiven. More: back later after a long draft that
failed."""


class Ledger:
    """Balances by account."""

    def __init__(self, balances: Mapping[str, float] | None = None) -> None:
        self.balances = dict(balances or {})

    def funds(self, account: str) -> float:
        """Return a balance; a new account's is the grant."""
        return self.balances.setdefault(account, GRANT)

    def earn(self, tokens: int) -> None:
        """Pay in the income of these tokens."""
        for account, balance in self.balances.items():
            self.balances[account] = min(MOST, balance + INCOME * tokens)

    def settle(self, account: str, gain: float) -> None:
        """Pay in what a round gained against plain ones, or pay out what it lost."""
        self.balances[account] = max(-OVERDRAFT, min(MOST, self.funds(account) + gain))
