"""`export --exporter optimum`: its options, refusals and run."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from .common import quiet

if TYPE_CHECKING:
    from .display import Report

__all__ = ["add_optimum", "run_optimum"]

_OURS: Mapping[str, object] = {
    "bits": None,
    "activations": "auto",
    "block_size": None,
    "head_bits": None,
    "mixed": False,
    "calibrated": False,
    "calibrate_text": None,
    "graphs": "base",
    "formats": ("onnx",),
    "gguf_type": None,
    "imatrix_text": None,
    "imatrix": None,
    "adapter": [],
    "lora_rank": None,
    "lora_modules": "",
    "context": None,
    "rope": "short",
    "dry_run": False,
    "no_cache": False,
    "compare": False,
    "compare_text": None,
    "plot": None,
    "trim_vocab": None,
    "prepare": False,
}
"""Options of our own exporter, with their defaults: refused where they are given, not dropped."""


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

    for option, default in _OURS.items():
        if getattr(arguments, option) != default:
            arguments.usage_error(f"argument --{option.replace('_', '-')}: --exporter optimum does not take it")
    if arguments.out is None:
        arguments.usage_error("the following arguments are required: --out")
    require_frameworks("import")
    from edgedecode.engines.kernel_noise import POSITIONS

    from ..imports.onnx_import import ImportRequest
    from ..imports.optimum import OptimumRequest, export_with_optimum
    from ..stages import Stages
    from .display import LiveDisplay
    from .pack_tables import pair_report, show_pair

    importing = ImportRequest(
        target=Path(),
        draft=None,
        out=arguments.out,
        name=arguments.name,
        license=arguments.license,
        noise_positions=POSITIONS if arguments.noise_positions is None else arguments.noise_positions,
    )
    request = OptimumRequest(arguments.target, arguments.draft, arguments.make_environment, importing)
    with quiet(debug=arguments.debug), LiveDisplay() as display:
        stages = Stages(display)
        manifest = export_with_optimum(request, stages)
    show_pair(manifest, stages.records, out=arguments.out)
    return pair_report(manifest, stages.records, out=arguments.out)
