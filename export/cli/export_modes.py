"""The mode `export --compare`, which makes no pack."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from ..frameworks import require_frameworks
from .common import refuse_others
from .pack_options import read_span

if TYPE_CHECKING:
    from .display import Report

_COMPARING = ("compare", "compare_text", "target", "draft", "context", "rope", "calibrate_text")
"""The options that it accepts; others are refused."""


def add_comparison(parser: ArgumentParser) -> None:
    """Add the options of a comparison."""
    group = parser.add_argument_group("comparing recipes")
    group.add_argument(
        "--compare",
        action="store_true",
        help="make no pack: measure every recipe on the target, and on the draft if there is one",
    )
    group.add_argument(
        "--compare-text",
        type=Path,
        metavar="FILE",
        help="score this .txt, or the answers of this .jsonl with messages and answer, instead of a built-in line",
    )


def run_comparison(arguments: Namespace) -> Report:
    """Compare the recipes on the target, then on the draft: print tables, return JSON values."""
    refuse_others(arguments, _COMPARING, message="argument --compare: it measures a fixed set of recipes, leave out {}")
    text, calibration = arguments.compare_text, arguments.calibrate_text
    if text is not None and calibration is not None and text.resolve() == calibration.resolve():
        arguments.usage_error("argument --calibrate-text: it is also the scored text, which would bias the result")
    require_frameworks()
    from ..recipes.comparison import compare_model
    from ..stages import Stages
    from .display import LiveDisplay
    from .recipe_tables import comparison_report, show_comparison

    span = read_span(arguments)
    models = {"target": arguments.target} | ({"draft": arguments.draft} if arguments.draft else {})
    reports: Report = {}
    for role, name in models.items():
        with LiveDisplay() as display:
            stages = Stages(display)
            comparison = compare_model(name, text=text, calibration_text=calibration, span=span, stages=stages)
        show_comparison(comparison, stages.records)
        reports[role] = comparison_report(comparison, stages.records)
    return reports
