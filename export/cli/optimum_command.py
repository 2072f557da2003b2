"""`export --exporter optimum`: its options, refusals and run."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from .common import refuse_others

if TYPE_CHECKING:
    from .display import Report

__all__ = ["add_optimum", "run_optimum"]

_TAKEN = ("exporter", "make_environment", "target", "draft", "out", "name", "license", "noise_positions")


def add_optimum(parser: ArgumentParser) -> None:
    """Add the options."""
    group = parser.add_argument_group("other architectures")
    group.add_argument(
        "--exporter",
        choices=("builder", "optimum"),
        default="builder",
        help="optimum: more architectures, in float, chains only, in an environment of its own (default builder)",
    )
    group.add_argument(
        "--make-environment",
        action="store_true",
        help="let --exporter optimum make its environment in the cache folder: downloads some 300 MB",
    )


def run_optimum(arguments: Namespace) -> Report:
    """Export with optimum, whose graphs hold floats, and import what it made."""
    from ..frameworks import require_frameworks

    refuse_others(arguments, _TAKEN, message="argument --exporter: optimum does not take {}")
    if arguments.out is None:
        arguments.usage_error("the following arguments are required: --out")
    require_frameworks("import")
    from ..imports.imported_pack import ImportRequest
    from ..imports.optimum import OptimumRequest, export_with_optimum
    from .pack_tables import shown

    importing = ImportRequest(
        target=Path(),
        draft=None,
        out=arguments.out,
        name=arguments.name,
        license=arguments.license,
        noise_positions=arguments.noise_positions,
    )
    request = OptimumRequest(arguments.target, arguments.draft, arguments.make_environment, importing)
    return shown(lambda stages: export_with_optimum(request, stages), out=arguments.out)
