"""One bench run from its arguments to its last line. Knows the order of things; measures and shows nothing itself."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from edgedecode import CapabilityError, Pair
from edgedecode.registry import drafter_names, find_drafter

from ..options import open_pair
from .conditions import Conditions
from .costs import WIDEST, CostMeter
from .families import measure_family
from .lock import one_at_a_time
from .loops import open_loops
from .overhead import compare_loops, measure_host_work
from .peers.against import against
from .peers.opening import check_names
from .prompts import Prompt, bundled_prompts, choose, read_prompts
from .report import Report
from .results import FamilyResult
from .settings import Settings, arms_of
from .timed import TimedPair, TimedRuntime

__all__ = ["run"]

CONTEXT = 1024
QUICK_FAMILIES = ("story", "extract_json", "edit")
COMPARED_TEXT_TOKENS = 64

Json = dict[str, object]


def run(arguments: Namespace) -> int:
    """Measure, show, and return the exit code."""
    prompts = _prompts(arguments)
    for name in arguments.drafters or ():
        find_drafter(name)
    check_names(arguments.against)
    with open_pair(arguments, wrap=TimedRuntime) as pair:
        settings = _settings(arguments, pair, prompts)
        timed = TimedPair(pair, with_draft="model" in settings.drafters)
        with one_at_a_time():
            conditions = Conditions.of(timed, settings, arguments=arguments)
            report = Report(conditions)
            report.conditions()
            if arguments.against:
                figures = against(arguments, pair, settings=settings, report=report, progress=_progress)
            else:
                measure = _overhead if arguments.overhead else _families
                figures = measure(arguments, timed, settings=settings, report=report)
    if arguments.json:
        print(json.dumps({"conditions": asdict(conditions), **figures}))
    return 0


def _families(arguments: Namespace, timed: TimedPair, *, settings: Settings, report: Report) -> Json:
    tokens = [token for prompt in settings.prompts for token in timed.pair.tokenizer.encode(prompt.turns[0])]
    meter = CostMeter(timed, tokens=tokens, widest=max(WIDEST, *(length + 1 for length in settings.lengths)))
    runs = len(settings.prompts) * len(arms_of(settings)) * settings.repetitions
    with _progress("measuring", runs) as advance:
        families = [
            measure_family(timed, family, settings=settings, meter=meter, advance=advance)
            for family in settings.families
        ]
    costs = meter.costs()
    meter.close()
    if not arguments.quick:
        report.costs(costs)
        report.acceptance(families)
    report.best(families)
    report.arms(families)
    report.equality(families)
    return {
        "costs": {
            **asdict(costs),
            "c": {n: costs.c(n) for n in costs.target_seconds},
            "c_model": {n: costs.c(n, "model") for n in costs.target_seconds},
            "d": costs.d("model"),
        },
        "families": [_family_json(family) for family in families],
    }


def _overhead(arguments: Namespace, timed: TimedPair, *, settings: Settings, report: Report) -> Json:
    runs = len(settings.prompts) * len(arms_of(settings)) * settings.repetitions
    with _progress("host work", runs) as advance:
        works = measure_host_work(timed, settings=settings, advance=advance)
    report.host_work(works)
    loops, reasons = open_loops(arguments, timed.pair, settings=settings)
    text = _long_text(timed.pair, settings)
    with _progress("bare loops", settings.repetitions + 1) as advance:
        ratios = compare_loops(timed, loops, text=text, settings=settings, advance=advance) if loops else []
    report.loops(ratios, reasons)
    return {
        "host_work": [asdict(work) for work in works],
        "loops": [asdict(ratio) for ratio in ratios],
        "not_compared": reasons,
    }


def _family_json(family: FamilyResult) -> Json:
    arms = [{**asdict(arm), "measured_over_predicted": arm.measured_over_predicted} for arm in family.arms]
    return {**asdict(family), "best": None if family.best is None else family.best.name, "arms": arms}


def _prompts(arguments: Namespace) -> list[Prompt]:
    prompts = bundled_prompts() if arguments.prompts is None else read_prompts(Path(arguments.prompts))
    families = arguments.families or ()
    short = arguments.quick or arguments.overhead
    if short and not families and arguments.prompts is None:
        families = QUICK_FAMILIES
    per_family = (2 if short else 5) if arguments.per_family is None else arguments.per_family
    return choose(prompts, families=families, per_family=per_family)


def _settings(arguments: Namespace, pair: Pair, prompts: list[Prompt]) -> Settings:
    has_draft = "draft" in pair.manifest.models
    if "model" in (arguments.drafters or ()) and not has_draft:
        raise CapabilityError("this pack has no draft model: --drafters ngram measures without one")
    drafters = arguments.drafters or [name for name in drafter_names() if name != "model" or has_draft]
    short = arguments.quick or arguments.overhead
    lengths = arguments.lengths or ([2, 4] if short else [1, 2, 4, 8])
    most_tokens = 48 if short else 128
    return Settings(
        prompts=tuple(prompts),
        drafters=tuple(dict.fromkeys(drafters)),
        lengths=tuple(sorted(set(lengths))),
        repetitions=arguments.repetitions,
        max_tokens=most_tokens if arguments.max_tokens is None else arguments.max_tokens,
        context=min(CONTEXT, pair.target.card.context) if arguments.ctx_size is None else arguments.ctx_size,
    )


def _long_text(pair: Pair, settings: Settings) -> str:
    """Return prompts, one after the other, until they make a text worth reading."""
    text = ""
    for prompt in settings.prompts * COMPARED_TEXT_TOKENS:
        text += prompt.turns[0] + "\n"
        if len(pair.tokenizer.encode(text)) >= COMPARED_TEXT_TOKENS:
            break
    return text


@contextmanager
def _progress(what: str, total: int) -> Iterator[Callable[[], None]]:
    """Show a bar on standard error while the block runs; it redraws only between runs, never during one."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    bar = Progress(*columns, console=console, transient=True, auto_refresh=False, disable=not sys.stderr.isatty())
    with bar:
        task = bar.add_task(what, total=total)

        def advance() -> None:
            bar.advance(task)
            bar.refresh()

        yield advance
