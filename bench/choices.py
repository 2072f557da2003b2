"""Turns the arguments of a bench run into its prompts and settings."""

from argparse import Namespace
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from edgedecode import CapabilityError, InputError, Pair, SamplingOptions
from edgedecode.apps.bundled_prompts import bundled_prompts
from edgedecode.engines.registry import drafter_names, find_drafter
from edgedecode.sessions.draft_models import role_of
from edgedecode.text.prompts import Prompt, interleaved, read_prompts

from .settings import Settings

CONTEXT = 1024
QUICK_FAMILIES = ("story", "extract_json", "edit")
WARM_UP = 12
"""Warm-up prompts, which the scheduler answers before anything is measured."""


class Prompts(NamedTuple):
    """The prompts to measure, and others for the scheduler's warm-up."""

    measured: tuple[Prompt, ...]
    others: tuple[Prompt, ...]


def read_choices(arguments: Namespace) -> Prompts:
    """Read and choose the prompts, before any engine is opened. Raises InputError or OSError."""
    for name in arguments.drafters or ():
        find_drafter(name)
    prompts = bundled_prompts() if arguments.prompts is None else read_prompts(Path(arguments.prompts))
    families = arguments.families or ()
    short = arguments.quick
    if short and not families and arguments.prompts is None:
        families = QUICK_FAMILIES
    per_family = arguments.per_family
    if per_family is None:
        per_family = 5 if not short else 2 if arguments.scale is None else 1
    measured = choose(prompts, families=families, per_family=per_family)
    return Prompts(tuple(measured), tuple(_others(measured, prompts)))


def choose(prompts: Sequence[Prompt], *, families: Iterable[str] = (), per_family: int) -> list[Prompt]:
    """Return the first `per_family` prompts of each of `families` (default: all families). Raises InputError."""
    known = list(dict.fromkeys(prompt.family for prompt in prompts))
    wanted = list(families) or known
    if missing := [family for family in wanted if family not in known]:
        raise InputError(f"there are no prompts of family {', '.join(missing)}; there are: {', '.join(known)}")
    return [prompt for family in wanted for prompt in [p for p in prompts if p.family == family][:per_family]]


def settings_of(arguments: Namespace, pair: Pair, prompts: Prompts) -> Settings:
    """Return the settings for this pair. Raises CapabilityError for a drafter that it cannot run."""
    return Settings(
        prompts=prompts.measured,
        drafters=_drafters(arguments, pair),
        lengths=tuple(sorted(set(arguments.lengths or ((2, 4) if arguments.quick else (1, 2, 4, 8))))),
        repetitions=arguments.repetitions,
        max_tokens=arguments.max_tokens or (48 if arguments.quick else 128),
        context=arguments.ctx_size or min(CONTEXT, pair.target.card.context),
        fixed=bool(arguments.fixed or arguments.drafters or arguments.lengths),
        sampling=SamplingOptions(
            temperature=arguments.temp or 0.0, top_p=1.0 if arguments.top_p is None else arguments.top_p
        ),
        seed=arguments.seed,
        adapter=arguments.adapter,
    )


def _others(measured: Sequence[Prompt], prompts: Sequence[Prompt]) -> list[Prompt]:
    """Return warm-up prompts: unmeasured ones, interleaved by family, or bundled prompts if the file has no others."""
    families = dict.fromkeys(prompt.family for prompt in measured)
    taken = set(measured)
    rest = [prompt for name in families for prompt in prompts if prompt.family == name and prompt not in taken]
    found = interleaved(rest, name=lambda prompt: prompt.family)
    return (found or [prompt for prompt in bundled_prompts() if prompt not in taken])[:WARM_UP]


def _drafters(arguments: Namespace, pair: Pair) -> tuple[str, ...]:
    for name in arguments.drafters or ():
        if pair.drafter_source(name).needs_model and not pair.drafts.can_load(role_of(name)):
            raise CapabilityError(f"this pack has no draft model for {name}: --drafters suffix needs none")
    if arguments.drafters:
        return tuple(dict.fromkeys(arguments.drafters))
    return tuple(
        name
        for name in drafter_names()
        if not pair.drafter_source(name).needs_model or pair.drafts.can_load(role_of(name))
    )
