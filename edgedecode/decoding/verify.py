"""Verification: which drafted tokens are accepted, and which token the target adds. Preserves its distribution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from edgedecode.arrays import FloatArray, IntArray
from edgedecode.errors import CapabilityError
from edgedecode.sampling.probs import NoiseSource, Probs
from edgedecode.sampling.sampler import Sampler

from .drafts import FORCED, Draft, DraftMode, chain, children

if TYPE_CHECKING:  # few answers have either
    from edgedecode.sampling.log_probabilities import TokenLogprob

    from .constraint import Constraint

__all__ = ["Outcome", "Rule", "TargetRows", "Verdict", "unverified", "verify"]


class Outcome(Enum):
    """How a round ended. Every round ends in exactly one of these, so their counts add up to the rounds."""

    CORRECTION = "correction"
    """The target's token was not among the drafted continuations."""
    BONUS = "bonus"
    """Every drafted token on the path was accepted, and the target added one (also if nothing was drafted)."""
    UNVERIFIED = "unverified"
    """The draft model wrote the tokens and continues, or hands over to the target. Not a round of the target."""
    ENDED = "ended"
    """The target's token was an end-of-sequence token."""


class Rule(Enum):
    """How a draft is checked. Both emit tokens distributed exactly as the target alone would."""

    MATCH = "match"
    """Sample from the target; accept the draft while its tokens are the same. Any tree. The text equals that of plain
    decoding with the same seed."""
    RATIO = "ratio"
    """Accept a sampled draft token with probability min(1, p/q), else sample from the residual. One chain, sampled
    from q."""


class TargetRows:
    """The target's logits for one draft; a row is processed when verification reaches it.

    Row 0 follows the context's last token, row i + 1 draft token i. A view: valid until the model's next forward.
    """

    __slots__ = ("_constraint", "_sampler", "logits")

    def __init__(
        self, logits: FloatArray | Sequence[FloatArray], sampler: Sampler, constraint: Constraint | None = None
    ) -> None:
        self.logits = logits
        self._sampler = sampler
        self._constraint = constraint

    def at(self, node: int, path: Sequence[int]) -> Probs:
        """Return the processed distribution after draft node `node` (-1: the context), reached by `path` tokens."""
        return self._sampler.probs(self._row(node, path), path)

    def draw(self, node: int, path: Sequence[int], rng: NoiseSource) -> int:
        """Sample the token after draft node `node`, reached by `path`, with the noise of the current position."""
        row, key = self._row(node, path), rng.take()
        token = self._sampler.draw(row, path, key=key)
        if self._constraint is None or self._constraint.accepts(token, path):
            return token
        from .constraint import next_accepted

        return next_accepted(self._constraint, self._sampler, row, path, key=key, refused=token)

    def _row(self, node: int, path: Sequence[int]) -> FloatArray:
        row: FloatArray = self.logits[node + 1]
        return row if self._constraint is None else self._constraint.masked(row, path)

    def top(self, k: int, row: int) -> IntArray:
        """Return the ids of the k largest raw logits of a row, likeliest first; fewer if the vocabulary is smaller."""
        return self._sampler.top(self.logits[row], k)

    def logprob(self, node: int, token: int, *, top: int) -> TokenLogprob:
        """Return the raw log probability of a token after draft node `node` (-1: the context), and the `top` ones."""
        return self._sampler.logprob(self.logits[node + 1], token, top=top)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A round's result: `tokens` are the emitted tokens, `path` the accepted draft nodes, root first."""

    draft: Draft
    tokens: tuple[int, ...]
    path: tuple[int, ...]
    outcome: Outcome
    rows: TargetRows
    verified: bool = True
    """False: the draft model wrote the tokens, and the target did not verify them."""

    @property
    def accepted(self) -> int:
        """Number of drafted tokens that were accepted."""
        return len(self.path)

    def top(self, k: int, row: int) -> IntArray:
        """Return the k likeliest ids after an input row, lazily; valid until the model's next forward.

        Row 0 follows the context's last token, row i + 1 draft token i.
        """
        return self.rows.top(k, row)

    def logprobs(self, top: int) -> tuple[TokenLogprob, ...]:
        """Return the raw log probability of each emitted token; valid until the model's next forward.

        top: the number of likeliest tokens to report with each. Raises CapabilityError for unverified tokens, which
        the target has not processed.
        """
        if not self.verified:
            raise CapabilityError("the draft model wrote these tokens: the target's log probabilities are unknown")
        nodes = (-1, *self.path)
        return tuple(self.rows.logprob(nodes[place], token, top=top) for place, token in enumerate(self.tokens))


def verify(
    draft: Draft,
    target: TargetRows,
    rng: NoiseSource,
    *,
    ends: frozenset[int] = frozenset(),
    rule: Rule = Rule.MATCH,
) -> Verdict:
    """Walk the draft from its root, one position of the noise per emitted token; stop after a token in `ends`.

    MATCH (sample and match): sample y from the processed target row by Gumbel-max; if y is a child, go there, else
    stop. RATIO (speculative sampling, Leviathan 2211.17192, Chen 2302.01318) needs one chain in mode SAMPLED, else
    raises CapabilityError.
    """
    if rule is Rule.MATCH or not len(draft) or draft.source == FORCED:  # any rule accepts what has probability 1
        return _match(draft, target, rng, ends=ends)
    if draft.mode is not DraftMode.SAMPLED:
        raise CapabilityError(
            f"the ratio rule needs drafts sampled from a known distribution, and {draft.source!r} proposes "
            f"deterministic ones: use the match rule"
        )
    return _ratio(draft, target, rng, ends=ends)


def unverified(draft: Draft, sampler: Sampler, *, ends: frozenset[int] = frozenset()) -> Verdict:
    """Return the verdict of tokens that the draft model wrote and the target does not verify."""
    outcome = Outcome.ENDED if draft.tokens[-1] in ends else Outcome.UNVERIFIED
    rows = TargetRows(np.empty((0, 0), np.float32), sampler)
    return Verdict(draft, draft.tokens, tuple(range(len(draft))), outcome, rows, verified=False)


def _match(draft: Draft, target: TargetRows, rng: NoiseSource, *, ends: frozenset[int]) -> Verdict:
    branches = children(chain(len(draft)) if draft.parents is None else draft.parents)
    tokens: list[int] = []
    path: list[int] = []
    node = -1
    while True:
        token = target.draw(node, tokens, rng)
        tokens.append(token)
        child = next((child for child in branches[node] if draft.tokens[child] == token), None)
        if child is not None:
            path.append(child)
        if token in ends:
            return Verdict(draft, tuple(tokens), tuple(path), Outcome.ENDED, target)
        if child is None:
            outcome = Outcome.CORRECTION if branches[node] else Outcome.BONUS
            return Verdict(draft, tuple(tokens), tuple(path), outcome, target)
        node = child


def _ratio(draft: Draft, target: TargetRows, rng: NoiseSource, *, ends: frozenset[int]) -> Verdict:
    """Check one sampled chain with one uniform per token: a rejecting uniform, rescaled, samples the residual."""
    if draft.parents is not None or draft.probs is None or len(draft.probs) != len(draft):
        raise CapabilityError("the ratio rule needs one chain with the distribution of every token")
    tokens: list[int] = []
    for index, (token, q) in enumerate(zip(draft.tokens, draft.probs, strict=True)):
        p = target.at(index - 1, tokens)
        uniform = rng.random()
        accept = min(1.0, p.of(token) / q.of(token))
        if uniform >= accept:
            residual = p.minus(q) or p
            tokens.append(residual.draw((uniform - accept) / (1.0 - accept)))
            outcome = Outcome.ENDED if tokens[-1] in ends else Outcome.CORRECTION
            return Verdict(draft, tuple(tokens), tuple(range(index)), outcome, target)
        tokens.append(token)
        if token in ends:
            return Verdict(draft, tuple(tokens), tuple(range(index + 1)), Outcome.ENDED, target)
    tokens.append(target.draw(len(draft) - 1, tokens, rng))
    outcome = Outcome.ENDED if tokens[-1] in ends else Outcome.BONUS
    return Verdict(draft, tuple(tokens), tuple(range(len(draft))), outcome, target)
