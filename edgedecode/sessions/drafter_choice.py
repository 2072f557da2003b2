"""Choose a session's drafters and its longest draft from its options and the pack's capabilities."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from edgedecode.decoding.model import ModelCard
from edgedecode.decoding.policy import FixedLength
from edgedecode.decoding.verify import Rule
from edgedecode.drafters.model_state import MOST_NODES
from edgedecode.drafters.source import ADD_DRAFT, DrafterSource, Scheduled
from edgedecode.errors import CapabilityError, InputError
from edgedecode.options import SessionOptions

LONGEST_DRAFT = 16
"""Longest draft of the scheduler, in tokens. Half of it for a wide vocabulary."""
WIDE_VOCABULARY = 65536
"""Rows of the head from which a row of logits takes hundreds of kilobytes."""
MOST_SAMPLES = 128
WITHOUT_MODEL = "suffix"
"""The drafter that needs the least memory."""


@dataclass(frozen=True, slots=True)
class DraftingFacts:
    """What a loaded pack can draft with.

    card: the target's. drafts: the drafters with a draft model, the preferred one first. sources: of all drafters
    that can be loaded, by name.
    """

    card: ModelCard
    drafts: tuple[str, ...] = ()
    sources: Mapping[str, DrafterSource] = field(default_factory=dict)


def instead(names: Sequence[str], preferred: Sequence[str]) -> str:
    """Return the drafter to use where the first of `names` cannot be opened; empty: none."""
    return preferred[1] if names[:1] == preferred[:1] and len(preferred) > 1 else ""


@dataclass(frozen=True, slots=True)
class DrafterChoice:
    """The names of a session's drafters (none: decoding without drafts), and their longest draft in tokens.

    branches, samples: as the one drafter declares that the options name.
    """

    names: tuple[str, ...] = ()
    draft_max: int = 0
    branches: bool = False
    samples: bool = False


def choose_drafters(options: SessionOptions, facts: DraftingFacts) -> DrafterChoice:
    """Return no drafter for draft length 0, the named one if any, otherwise all that may gain speed.

    Raises CapabilityError if the target would have to roll back rejected drafts and cannot, or for switching between
    models with options that exclude it.
    """
    check_switching(options, has_draft="model" in facts.drafts)
    if options.details.samples > 1:  # a row for each answer, instead of drafts
        return DrafterChoice((), options.details.samples - 1, branches=True)
    names = _names(options, facts) if _speculates(options) else ()
    if not names:
        return DrafterChoice()
    longest = LONGEST_DRAFT if facts.card.rows <= WIDE_VOCABULARY else LONGEST_DRAFT // 2
    if options.draft_max is not None:
        longest = options.draft_max
    only = facts.sources.get(names[0]) if len(names) == 1 else None
    if only is None:
        return DrafterChoice(names, longest)
    return DrafterChoice(names, longest, branches=only.branches, samples=only.samples)


def _speculates(options: SessionOptions) -> bool:
    """Return whether the target writes several tokens in a row. Raises InputError for drafts where it does not."""
    if options.details.switch is None:
        return True
    if options.drafter not in (None, "none") or options.draft_max:
        raise InputError(
            "with --mode switch the target writes single tokens, which no drafter drafts: leave out --drafter and "
            "--draft-max, or --mode switch"
        )
    return False


def _names(options: SessionOptions, facts: DraftingFacts) -> tuple[str, ...]:
    if not _rolls_back(options, facts.card) or options.draft_max == 0 or options.drafter == "none":
        return ()
    if options.drafter is not None:
        return (options.drafter,)
    if options.fixed or options.details.rule is Rule.RATIO:
        return ("model",) if "model" in facts.drafts else facts.drafts[:1] or (WITHOUT_MODEL,)
    return (*facts.drafts[:1], *(name for name, source in facts.sources.items() if _is_scheduled(source, facts)))


def _is_scheduled(source: DrafterSource, facts: DraftingFacts) -> bool:
    """Return whether the scheduler may choose this drafter beside the pack's own draft model."""
    if source.branches or (source.needs_model and not facts.drafts):
        return False
    return source.scheduled is Scheduled.ALWAYS or (source.scheduled is Scheduled.WITHOUT_DRAFT and not facts.drafts)


def _rolls_back(options: SessionOptions, card: ModelCard) -> bool:
    """Return whether the target can roll back a rejected draft. Raises CapabilityError if it must and cannot."""
    if card.rollback:
        return True
    if options.drafter != "none" and (options.drafter is not None or options.draft_max):
        if card.top_rows:
            raise CapabilityError(
                f"{card.name} verifies no drafts: decode without them (--drafter none), or let the device's model "
                f"write where it is sure (--mode switch)"
            )
        raise CapabilityError(
            "drafts are rows that this target's recurrent layers cannot roll back: decode without drafts "
            "(--drafter none)"
        )
    return False


def check_samples(count: int, options: SessionOptions, card: ModelCard) -> None:
    """Raise InputError or CapabilityError for a count or options with which no answers are decoded together."""
    if not 1 <= count <= MOST_SAMPLES:
        raise InputError(f"{count} answers at once are out of range: 1 to {MOST_SAMPLES}")
    if not card.tree:
        raise CapabilityError(
            f"several answers at once are branches of a tree and {card.name} reads chains only: use --runtime onnx "
            f"--provider cpu, or ask for one answer at a time, with seeds that count up"
        )
    if options.details.switch is not None or options.details.rule is Rule.RATIO:
        raise CapabilityError(
            "several answers at once are the target's alone: leave out --mode switch and --rule ratio, or --samples"
        )


def check_options(options: SessionOptions, choice: DrafterChoice, *, card: ModelCard) -> None:
    """Raise InputError or CapabilityError for conflicting or out-of-range options. card: the target's."""
    if (samples := options.details.samples) != 1:
        check_samples(samples, options, card)
        if options.drafter not in (None, "none") or options.draft_max:
            raise InputError("several answers at once have no drafter: leave out --drafter and --draft-max")
    _check(options, choice)
    if options.details.reproducible and not card.row_invariant:
        raise CapabilityError(
            "the same text whatever is drafted needs our kernels for the target, and here an engine's own run it: use "
            "--runtime onnx (`edgedecode devices -m PACK` says why our kernels do not run), or leave out --reproducible"
        )
    if options.fixed:
        FixedLength(choice.draft_max)


def most_rows(options: SessionOptions, choice: DrafterChoice) -> int:
    """Return the most rows of logits that a pass of the target computes."""
    if options.grammar is None:
        return choice.draft_max + 1
    from edgedecode.decoding.constraint import MOST_FORCED  # late: few sessions have a grammar

    return max(choice.draft_max, MOST_FORCED) + 1


def check_switching(options: SessionOptions, *, has_draft: bool) -> None:
    """Raise CapabilityError for options that exclude switching, or a pack without a draft model."""
    if options.details.switch is None:
        return
    if not has_draft:
        raise CapabilityError(f"switching needs a draft model and there is none: leave out --mode switch; {ADD_DRAFT}")
    if options.details.reproducible:
        raise CapabilityError(
            "reproducible text is the target's own and switching lets the draft model write: leave out --reproducible "
            "or --mode switch"
        )
    if options.details.rule is Rule.RATIO:
        raise CapabilityError("switching verifies with the match rule: leave out --rule ratio or --mode switch")


def _check_grammar(options: SessionOptions, choice: DrafterChoice) -> None:
    """Raise CapabilityError or InputError for options that exclude a grammar."""
    if options.details.switch is not None:
        raise CapabilityError("a grammar needs verified tokens: leave out switching")
    if options.details.ignore_eos:
        raise InputError("a grammar decides where an answer ends: leave out --ignore-eos")
    if choice.branches and choice.names:
        raise InputError("a grammar follows one path of tokens: leave out trees")


def _check_tree(options: SessionOptions) -> None:
    """Raise CapabilityError or InputError for options that exclude trees."""
    if options.details.rule is Rule.RATIO:
        raise CapabilityError(
            f"the ratio rule checks one sampled chain: with --drafter {options.drafter}, use the match rule"
        )
    if options.draft_max is None or options.draft_max > MOST_NODES:
        raise InputError(f"--drafter {options.drafter} needs a fixed size: give --draft-max N, 1 to {MOST_NODES} nodes")


def _check(options: SessionOptions, choice: DrafterChoice) -> None:
    if options.grammar is not None:
        _check_grammar(options, choice)
    if choice.branches and choice.names:
        _check_tree(options)
    if options.details.rule is Rule.RATIO and (not choice.samples or options.details.reproducible):
        wanted = "--reproducible" if options.details.reproducible else f"--drafter {' '.join(choice.names) or 'none'}"
        raise CapabilityError(f"the ratio rule samples from the draft model: with {wanted}, use the match rule")
