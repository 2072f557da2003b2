"""Runs the measurement that the arguments of `bench` choose."""

from argparse import Namespace
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict

from edgedecode.apps.terminal import progress, show_notices
from edgedecode.apps.verb_options import open_pair
from edgedecode.commands import print_json
from edgedecode.text.prompts import Prompt

from .choices import read_choices, settings_of
from .lock import one_at_a_time
from .measure.cost_meter import CostMeter, Costs
from .measure.families import measure_family
from .measure.structured import EXTRACTIONS, WAYS, measure_structured
from .measure.timed_answers import Requests
from .peers.against import against, check_names
from .report.bench_tables import Report
from .report.conditions import Conditions
from .scale.scaled import scaled_pack
from .settings import arms_of
from .sweep.memory_sweep import memory_sweep

COST_SAMPLES, QUICK_SAMPLES = 9, 2
"""Samples of the cost of forward passes."""
QUICK_EXTRACTIONS = 4

Json = dict[str, object]


def run(arguments: Namespace) -> int:
    """Measure, print the results, and return the exit code."""
    check_names(arguments.against)
    prompts = read_choices(arguments)
    if arguments.scale is not None:
        show_notices()  # `scaled_pack` may wait for another bench, and says so
        arguments.model, arguments.draft = str(scaled_pack(arguments)), None
    if arguments.memory_sweep is not None:
        return memory_sweep(arguments)
    with open_pair(arguments) as pair:
        pair.keep_experience(None)  # start without saved experience, and do not save what a bench's prompts teach
        settings = settings_of(arguments, pair, prompts)
        with one_at_a_time():
            conditions = Conditions.of(pair, settings, arguments=arguments, warm_up=len(prompts.others))
            report = Report(conditions)
            report.conditions()
            if arguments.against:
                figures = against(arguments, pair, settings=settings, report=report)
            else:
                measure = _structured if arguments.structured else _families
                figures = measure(arguments, Requests(pair, settings), prompts.others, report)
    if arguments.json:
        print_json({"conditions": asdict(conditions), **figures})
    return 0


def _families(arguments: Namespace, requests: Requests, others: Sequence[Prompt], report: Report) -> Json:
    settings = requests.settings
    costs = _costs(requests, quick=arguments.quick)
    _warm_up(requests, others)
    runs = len(settings.prompts) * len(arms_of(settings)) * settings.repetitions
    with progress("measuring", runs) as advance:
        families = [measure_family(requests, family, advance=advance) for family in settings.families]
    if not arguments.quick:
        report.costs(costs)
    report.scheduled(families)
    if settings.fixed:
        report.arms(families)
    report.equality(families)
    curve = {"c": {n: costs.c(n) for n in costs.target_seconds}, "d": {name: costs.d(name) for name in costs.drafts}}
    found = [{**asdict(each), "best": None if each.best is None else each.best.name} for each in families]
    return {"costs": asdict(costs) | curve, "families": found}


def _costs(requests: Requests, *, quick: bool) -> Costs:
    """Measure the cost of passes, which changes what the next ones cost, before the runs."""
    encode, settings = requests.pair.tokenizer.encode, requests.settings
    tokens = [token for prompt in settings.prompts for token in encode(prompt.turns[0])]
    with closing(CostMeter(requests.pair, tokens=tokens)) as meter:
        meter.sample(min(settings.repetitions, QUICK_SAMPLES if quick else COST_SAMPLES))
        return meter.costs()


def _warm_up(requests: Requests, others: Sequence[Prompt]) -> None:
    with progress("warming up", len(others)) as advance:
        requests.warm_up(others, advance=advance)


def _structured(arguments: Namespace, requests: Requests, others: Sequence[Prompt], report: Report) -> Json:
    _warm_up(requests, others)
    extractions = EXTRACTIONS[:QUICK_EXTRACTIONS] if arguments.quick else EXTRACTIONS
    with progress("structured answers", len(extractions) * len(WAYS) * requests.settings.repetitions) as advance:
        ways = measure_structured(requests.pair, requests.settings, extractions, advance=advance)
    report.structured(ways, prompts=len(extractions))
    return {"structured": [asdict(way) for way in ways]}
