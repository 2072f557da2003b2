"""Budgets of exploration: an account per drafter, in baseline rounds.

Every emitted token adds a small income; a drafter's measured gains are added and its losses subtracted. A drafter
without funds is not chosen. So over any text its losses are at most the grant, the income and its own gains, plus one
overshoot each time that it runs out: conservative exploration (Wu et al., 1602.04282).
"""

from __future__ import annotations

from collections.abc import Mapping

GRANT = 4.0
"""Baseline rounds in a new account. Higher: a new pair is learnt sooner, and one whose drafts fail costs more."""
INCOME = 0.0075
"""Baseline rounds that each emitted token adds to every account: the share of the time that exploration may cost."""
MOST = 3 * GRANT
"""Largest balance. Higher: a drafter is dropped later when the text changes."""
OVERDRAFT = 0.25
"""Baseline rounds that an account may owe; larger losses are forgiven. Higher: a drafter returns later after a long
draft that failed."""

PROBE = GRANT / 2
"""Least balance after a doubt: a draft of a few tokens by a draft model, with the prefill of a window."""


class Ledger:
    """Balances by account, and the ledgers of other kinds of answers (see `Policy.begin`), in which drafts may pay
    although they do not in this one."""

    def __init__(self, balances: Mapping[str, float] | None = None, kinds: Mapping[str, Ledger] | None = None) -> None:
        self.balances, self.kinds = dict(balances or {}), dict(kinds or {})
        self.empty_rounds = 0
        """Consecutive rounds in which drafters were asked and no draft was planned; not saved."""

    def under(self, kind: str) -> Ledger:
        """Return the ledger of a kind of answers, which is created if it does not exist."""
        return self.kinds.setdefault(kind, Ledger()) if kind else self

    def funds(self, account: str) -> float:
        """Return the balance of an account; that of a new one is GRANT."""
        return self.balances.setdefault(account, GRANT)

    def doubt(self, *, most: float = MOST) -> None:
        """Let every account pay for a probe, and none hold more than `most`."""
        self.balances = {account: min(most, max(PROBE, balance)) for account, balance in self.balances.items()}
        for ledger in self.kinds.values():
            ledger.doubt(most=most)

    def earn(self, tokens: int) -> None:
        """Add the income of these tokens to every account."""
        for account, balance in self.balances.items():
            self.balances[account] = min(MOST, balance + INCOME * tokens)

    def settle(self, account: str, gain: float) -> None:
        """Add a round's gain over plain decoding; negative: its loss."""
        self.balances[account] = max(-OVERDRAFT, min(MOST, self.funds(account) + gain))
