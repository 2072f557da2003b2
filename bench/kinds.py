"""Runs the measurement that the arguments of `bench` choose."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from edgedecode import CapabilityError
from edgedecode.apps.terminal import progress, show_notices
from edgedecode.apps.verb_options import open_pair
from edgedecode.commands import print_json
from edgedecode.engines.selection import EngineRequest
from edgedecode.engines.wrappers.kept_placement import keep_placement
from edgedecode.library.find import find_pack
from edgedecode.pack.manifest import Manifest
from edgedecode.text.prompts import Prompt

from .choices import Prompts, read_choices, settings_of
from .lock import one_at_a_time
from .measure.cost_meter import WIDEST, CostMeter, Costs
from .measure.device_costs import bucket_contexts, learn, measure_buckets, measure_host
from .measure.extraction import EXTRACTIONS, GRAMMARS, measure_right
from .measure.families import measure_family
from .measure.family_results import ArmResult, FamilyResult
from .measure.placements import candidates, measure_placements
from .measure.structured import SCHEMA, WAYS, measure_structured
from .measure.timed import TimedPair, TimedRuntime
from .measure.timed_answers import Requests
from .peers.against import against, check_names
from .report.bench_tables import Report
from .report.conditions import Conditions
from .report.placement_table import placement_table
from .scale.scaled import scaled_pack
from .settings import Settings, arms_of
from .sweep.memory_sweep import memory_sweep

COST_SAMPLES = 9
"""Samples of the cost of forward passes, taken before the runs if there are no fixed arms."""
QUICK_SAMPLES = 2

Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class _Bench:
    """The inputs that all kinds of measurement share."""

    arguments: Namespace
    timed: TimedPair
    settings: Settings
    requests: Requests
    others: Sequence[Prompt]
    report: Report


def run(arguments: Namespace) -> int:
    """Measure, print the results, and return the exit code."""
    check_names(arguments.against)
    prompts = read_choices(arguments)
    if arguments.scale is not None:
        show_notices()  # `scaled_pack` may wait for another bench, and says so
        arguments.model, arguments.draft = str(scaled_pack(arguments)), None
    if arguments.memory_sweep is not None:
        return memory_sweep(arguments)
    if arguments.place is not None:
        return _place(arguments, prompts)
    with open_pair(arguments, wrap=TimedRuntime) as pair:
        if not arguments.calibrate:  # start without saved experience, and do not save what a bench's prompts teach
            pair.keep_experience(None)
        settings = settings_of(arguments, pair, prompts)
        timed = TimedPair(pair, with_draft="draft" in pair.manifest.models, drafters=settings.drafters)
        with one_at_a_time():
            conditions = Conditions.of(timed, settings, arguments=arguments, warm_up=len(prompts.others))
            report = Report(conditions)
            report.conditions()
            requests = Requests(timed, settings)
            bench = _Bench(arguments, timed, settings, requests, prompts.others, report)
            figures = _measure(bench)
    if arguments.json:
        print_json({"conditions": asdict(conditions), **figures})
    return 0


def _measure(bench: _Bench) -> Json:
    if bench.arguments.against:
        pair, settings = bench.timed.pair, bench.settings
        return against(bench.arguments, pair, settings=settings, report=bench.report, progress=progress)
    if bench.arguments.structured:
        return _structured(bench)
    return _calibrate(bench) if bench.arguments.calibrate else _families(bench)


def _families(bench: _Bench) -> Json:
    settings, report, quick = bench.settings, bench.report, bench.arguments.quick
    widest = max(WIDEST, *(length + 1 for length in settings.lengths))
    meter = CostMeter(bench.timed, tokens=_tokens(bench), widest=widest)
    if not settings.fixed:
        meter.sample(min(settings.repetitions, QUICK_SAMPLES if quick else COST_SAMPLES))
    with progress("warming up", len(bench.others)) as advance:
        bench.requests.warm_up(bench.others, advance=advance)
    runs = len(settings.prompts) * len(arms_of(settings)) * settings.repetitions
    with progress("measuring", runs) as advance:
        families = [
            measure_family(bench.requests, family, meter=meter, advance=advance) for family in settings.families
        ]
    costs = meter.costs()
    meter.close()
    if not quick:
        report.costs(costs)
    report.scheduled(families)
    report.served(families)
    if settings.fixed:
        if not quick:
            report.acceptance(families)
        report.best(families)
        report.arms(families)
    report.equality(families)
    if bench.arguments.plot is not None:
        report.chart(families, bench.arguments.plot)
    return {"costs": _costs_json(costs), "families": [_family_json(family) for family in families]}


def _calibrate(bench: _Bench) -> Json:
    settings, pair = bench.settings, bench.timed.pair
    contexts = bucket_contexts(settings.context)
    with progress("forward passes", len(contexts) * settings.repetitions) as advance:
        costs = measure_buckets(
            bench.timed,
            tokens=_tokens(bench),
            contexts=contexts,
            repetitions=settings.repetitions,
            advance=advance,
        )
    with progress("host overhead", len(settings.prompts) * (1 + len(settings.drafters))) as advance:
        host = measure_host(bench.requests, settings.prompts, advance=advance)
    learn(pair, costs, host=host)
    pair.save_experience()
    for measured in costs:
        bench.report.costs(measured)
    bench.report.host(host, step_seconds=costs[0].step_seconds)
    return {"calibration": [_costs_json(measured) for measured in costs], "host_seconds": host}


def _structured(bench: _Bench) -> Json:
    settings = bench.settings
    with progress("structured answers", len(settings.prompts) * len(WAYS) * settings.repetitions) as advance:
        speeds = measure_structured(bench.timed, settings, others=bench.others, advance=advance)
    with progress("values", len(EXTRACTIONS) * len(GRAMMARS)) as advance:
        values = measure_right(bench.timed, settings, advance=advance)
    bench.report.structured(speeds, prompts=len(settings.prompts))
    bench.report.right(values, prompts=len(EXTRACTIONS))
    figures = {"structured": [asdict(speed) for speed in speeds], "values": [asdict(each) for each in values]}
    return {"schema": SCHEMA, **figures}


def _place(arguments: Namespace, prompts: Prompts) -> int:
    """Measure every placement, keep the fastest for --runtime auto, and return 0; 1 if none can run the pack."""
    manifest = Manifest.load(find_pack(arguments.model, arguments.draft))
    show_notices()
    with one_at_a_time():
        placements = candidates(draft="draft" in manifest.models)
        with progress("placements", len(placements) * arguments.repetitions) as advance:
            measured = measure_placements(arguments, prompts, placements, advance=advance)
    best = measured[0]
    placement_table(measured)
    if not best.tokens_per_second:
        raise CapabilityError("no engine of this machine can run the pack")
    if arguments.scale is None:
        keep_placement(manifest, EngineRequest(threads=arguments.threads, kv_type=arguments.kv_type), best.placement)
        print(f"Kept for --runtime auto on this device: {best.placement}.")
    if arguments.json:
        print_json({"placements": [asdict(each) for each in measured]})
    return 0


def _costs_json(costs: Costs) -> Json:
    return {
        **asdict(costs),
        "c": {n: costs.c(n) for n in costs.target_seconds},
        "d": {drafter: costs.d(drafter) for drafter in costs.drafters},
    }


def _family_json(family: FamilyResult) -> Json:
    return {
        **asdict(family),
        "best": None if family.best is None else family.best.name,
        "scheduled": _arm_json(family.scheduled),
        "arms": [_arm_json(arm) for arm in family.arms],
    }


def _arm_json(arm: ArmResult) -> Json:
    return {**asdict(arm), "wasted": arm.wasted, "measured_over_predicted": arm.measured_over_predicted}


def _tokens(bench: _Bench) -> list[int]:
    tokenizer = bench.timed.pair.tokenizer
    return [token for prompt in bench.settings.prompts for token in tokenizer.encode(prompt.turns[0])]
