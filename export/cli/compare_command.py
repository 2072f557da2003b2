"""`export --compare`: its options, refusals and run."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from edgedecode.errors import ExportError

from ..frameworks import require_frameworks
from .common import refuse_others
from .pack_options import read_span

if TYPE_CHECKING:
    from ..recipes.comparison import Comparison
    from .display import Report

__all__ = ["add_comparison", "run_comparison"]

_TAKEN = ("compare", "compare_text", "plot", "target", "draft", "context", "rope", "calibrate_text")


def add_comparison(parser: ArgumentParser) -> None:
    """Add the options of a comparison."""
    group = parser.add_argument_group("comparing recipes")
    group.add_argument(
        "--compare",
        action="store_true",
        help="make no pack: measure every recipe on this model, and on the draft if there is one",
    )
    group.add_argument(
        "--compare-text",
        type=Path,
        metavar="FILE",
        help="score this .txt, or .jsonl with messages and answer (then the answers), instead of a built-in line",
    )
    group.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw the target's comparison, size by agreement")


def _check(arguments: Namespace) -> None:
    """End with a usage error where options do not go with --compare."""
    refuse_others(arguments, _TAKEN, message="argument --compare: it measures recipes of its own, leave out {}")
    if arguments.plot is not None and arguments.plot.suffix != ".svg":
        arguments.usage_error(f"argument --plot: drawings are SVG, {str(arguments.plot)!r} must end in .svg")
    text, calibration = arguments.compare_text, arguments.calibrate_text
    if text is not None and calibration is not None and text.resolve() == calibration.resolve():
        arguments.usage_error("argument --calibrate-text: scoring the text calibrated on would prove nothing")


def run_comparison(arguments: Namespace) -> Report:
    """Compare the recipes on the target, then on the draft: print tables, write the drawing, return the values."""
    _check(arguments)
    require_frameworks()
    from ..recipes.comparison import compare_model
    from ..stages import Stages
    from .display import LiveDisplay
    from .recipe_tables import comparison_report, show_comparison

    if arguments.plot is not None and not arguments.plot.absolute().parent.is_dir():
        raise ExportError(f"there is no folder {arguments.plot.absolute().parent} for the drawing")
    span = read_span(arguments)
    models = {"target": arguments.target} | ({"draft": arguments.draft} if arguments.draft else {})
    reports: Report = {}
    for role, name in models.items():
        with LiveDisplay() as display:
            stages = Stages(display)
            comparison = compare_model(
                name, text=arguments.compare_text, calibration_text=arguments.calibrate_text, span=span, stages=stages
            )
        show_comparison(comparison, stages.records)
        reports[role] = comparison_report(comparison, stages.records)
        if role == "target" and arguments.plot is not None:
            _draw(comparison, arguments.plot)
    return reports


def _draw(comparison: Comparison, path: Path) -> None:
    from .recipe_tables import Point, scatter_svg

    points = [
        Point(result.nbytes / 1e6, 100 * result.agreement, result.recipe.name, marked=result.recipe.calibrated)
        for result in comparison.results
    ]
    path.write_text(scatter_svg(points, title=f"{comparison.model}: recipes compared"), encoding="utf-8")
