"""Which drafters a session has, and the longest draft: a pure function of its options and of what the pack can do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgedecode.decoding.model import ModelCard
from edgedecode.decoding.policy import FixedLength, FixedTree, Policy
from edgedecode.decoding.verify import Rule
from edgedecode.errors import CapabilityError, InputError
from edgedecode.options import BRANCHING, TREE, SessionOptions, wants_trees

__all__ = ["WITHOUT_MODEL", "DrafterChoice", "DraftingFacts", "check_options", "choose_drafters", "fixed_policy"]

FIXED_DRAFT = 2
"""Tokens of a fixed length that was not given: `--reproducible` may not choose by the clock."""
LONGEST_DRAFT = 16
"""Tokens a scheduler may draft at most; half of it where a row of logits takes hundreds of kilobytes."""
WIDE_VOCABULARY = 65536
WITHOUT_MODEL = "suffix"
"""The drafter that costs least memory."""
SCHEDULED = ("model", WITHOUT_MODEL)
"""The drafters the scheduler chooses among beside a draft model; the first has the first right to memory."""
ALONE = (WITHOUT_MODEL, "recycle")
"""The same without a draft model: beside one, recycled logits gained less than they cost the host."""

_SAMPLING = (("model",), ("trim",))
"""Drafters that can draw from their own distribution, and tell it."""


@dataclass(frozen=True, slots=True)
class DraftingFacts:
    """What a loaded pack has to draft with.

    card: the target's. has_draft: whether there is a draft model. heads: drafters with smaller heads of that model that
    the scheduler chooses among. lookups: installed drafters that are a function; the scheduler asks these too.
    """

    card: ModelCard
    has_draft: bool
    heads: tuple[str, ...] = ()
    lookups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DrafterChoice:
    """The drafters of a session by name, none for plain decoding, and the most tokens they may draft."""

    names: tuple[str, ...] = ()
    draft_max: int = 0


def choose_drafters(options: SessionOptions, facts: DraftingFacts) -> DrafterChoice:
    """Return what these options mean: no drafter for length 0, the named one, otherwise all that may gain speed.

    Raises CapabilityError where the target would have to drop rejected drafts and cannot.
    """
    names = _names(options, facts)
    if not names:
        return DrafterChoice()
    if options.draft_max is not None:
        return DrafterChoice(names, options.draft_max)
    if options.fixed:
        return DrafterChoice(names, FIXED_DRAFT)
    return DrafterChoice(names, LONGEST_DRAFT if facts.card.rows <= WIDE_VOCABULARY else LONGEST_DRAFT // 2)


def _names(options: SessionOptions, facts: DraftingFacts) -> tuple[str, ...]:
    if not _drops_drafts(options, facts.card) or options.draft_max == 0 or options.drafter == "none":
        return ()
    if options.drafter is not None:
        return (options.drafter,)
    branching = options.tree and facts.card.tree
    if options.fixed or options.rule is Rule.RATIO:
        if branching:
            return (TREE,) if facts.has_draft else ("recycle",)
        return ("model",) if facts.has_draft else ("suffix",)
    if not facts.has_draft:
        return (*ALONE, *facts.lookups)
    return (*facts.heads, *SCHEDULED, *facts.lookups, *(("recycle", TREE) if branching else ()))


def _drops_drafts(options: SessionOptions, card: ModelCard) -> bool:
    """Tell whether the target can drop a rejected draft. Raises CapabilityError where it must and cannot."""
    if card.rollback:
        return True
    drafts = options.drafter != "none" and (options.drafter is not None or options.draft_max)
    if drafts or (options.reproducible and not card.row_invariant):
        wanted = "--reproducible pads its passes with rows" if options.reproducible else "drafts are rows"
        raise CapabilityError(
            f"{wanted} that this target's recurrent layers cannot drop again: decode it plainly (--drafter none)"
        )
    return False


def check_options(options: SessionOptions, choice: DrafterChoice, *, card: ModelCard) -> None:
    """Raise InputError or CapabilityError for options that exclude each other, or are out of range.

    card: the target's.
    """
    _check(options, choice.names)
    if options.fixed:
        fixed_policy(choice.draft_max, trees=wants_trees(options) and card.tree)


def fixed_policy(longest: int, *, trees: bool) -> Policy:
    """Return the policy of one draft length. Raises InputError for one out of range."""
    return FixedTree(longest) if trees and longest else FixedLength(longest)


def _check_tree(options: SessionOptions) -> None:
    """Refuse what trees do not go with. Raises CapabilityError or InputError."""
    wanted = "--tree" if options.tree else f"--drafter {TREE}"
    if options.reproducible:
        raise CapabilityError(
            f"reproducible text needs chains, since trees change the order of sums: leave out {wanted}"
        )
    if options.rule is Rule.RATIO:
        raise CapabilityError(f"the ratio rule checks one sampled chain: with {wanted}, use the match rule")
    if options.draft_max == 0 or options.drafter not in (None, *BRANCHING):
        chains = "--draft-max 0" if options.draft_max == 0 else f"--drafter {options.drafter}"
        raise InputError(f"--tree with {chains}: leave one of the two out")


def _check(options: SessionOptions, names: Sequence[str]) -> None:
    if wants_trees(options):
        _check_tree(options)
    if options.rule is Rule.RATIO and (tuple(names) not in _SAMPLING or options.reproducible):
        wanted = "--reproducible" if options.reproducible else f"--drafter {' '.join(names) or 'none'}"
        raise CapabilityError(f"the ratio rule samples from the draft model: with {wanted}, use the match rule")
    if options.trace is not None and (options.fixed or not names):
        raise InputError("a trace records what the scheduler chooses: leave out the fixed draft length or drafter")
