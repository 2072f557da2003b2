"""The verb `export`: arguments and output. Heavy modules are imported only when it runs."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from edgedecode.commands import Command, add_json, count, print_json
from edgedecode.library.find import find_head
from edgedecode.memory.sizes import format_nbytes

from ..graph.graph_request import GraphRequest, Span
from .common import pack_is_there, quiet
from .pack_options import add_graphs, add_recipe, read_recipe
from .trim_command import add_trim, check_trim, trim_exported

if TYPE_CHECKING:
    from ..pair_export import PairRequest
    from .display import Report


class ExportCommand:
    """Makes a pack from Hugging Face models."""

    name = "export"
    help = "make a pack of a target model and a draft model"

    def configure(self, parser: ArgumentParser) -> None:
        parser.add_argument("--target", required=True, metavar="MODEL", help="folder or hub id of the large model")
        parser.add_argument("--draft", metavar="MODEL", help="folder or hub id of a small one with the same tokenizer")
        parser.add_argument(
            "-o",
            "--out",
            type=Path,
            metavar="PACK",
            help="folder to create; must not exist yet (required unless --dry-run)",
        )
        parser.add_argument("--name", help="the pack's name (default: the folder's name)")
        parser.add_argument("--license", help="licence of the base models, overriding the one that their folders name")
        parser.add_argument(
            "--noise-positions",
            type=count,
            default=0,
            metavar="N",
            help="measure how far the engine's own kernels round apart, on N positions (default 0: edgedecode's, which "
            "run where they can, round alike)",
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="run the checks that need no weights, and make nothing"
        )
        parser.add_argument(
            "--no-cache", action="store_true", help="do not keep slow steps for a run after an interruption"
        )
        add_json(parser)
        add_recipe(parser)
        add_graphs(parser)
        add_trim(parser)
        parser.add_argument("--head", type=Path, metavar="SOURCE", help="add a drafting head, as `head add` does")
        parser.set_defaults(usage_error=parser.error)

    def run(self, arguments: Namespace) -> int:
        with quiet(debug=arguments.debug):
            report = _make(arguments)
        if arguments.json:
            print_json(report)
        return 0


def _make(arguments: Namespace) -> "Report":
    """Make a pack, or check with --dry-run whether it can be made."""
    from ..frameworks import require_frameworks

    recipe, graphs = read_recipe(arguments), GraphRequest.of(arguments.graphs, lora_rank=arguments.lora_rank)
    check_trim(arguments)
    require_frameworks()
    if arguments.head is not None:
        from ..heads.layouts import read_head
        from .head_command import put_head

        read_head(find_head(arguments.head))  # before the export, which takes long
    from ..pair_export import PairRequest, export_pair
    from .pack_tables import shown

    request = PairRequest(
        target=arguments.target,
        draft=arguments.draft,
        out=arguments.out or Path(),  # a dry run may have none
        recipe=recipe,
        calibration_text=arguments.calibrate_text,
        importance=arguments.imatrix,
        importance_out=arguments.write_imatrix,
        activations=arguments.activations,
        name=arguments.name,
        license=arguments.license,
        span=Span(arguments.context),
        noise_positions=arguments.noise_positions,
        graphs=graphs,
        gguf="gguf" in arguments.formats,
        cache=not arguments.no_cache,
    )
    if arguments.dry_run:
        return _dry_run(request, arguments.out)
    report = shown(lambda stages: export_pair(request, stages), out=request.out)
    if arguments.trim_vocab is not None:
        report["trim"] = trim_exported(request.out, arguments.trim_vocab)
    if arguments.head is not None:
        with pack_is_there(f"the pack {request.out} is made, without the head"):
            report["head"] = put_head(request.out, arguments.head)
    return report


def _dry_run(request: "PairRequest", out: Path | None) -> "Report":
    from ..pair_export import check_pair

    plan = check_pair(request, out=out)
    models: Report = {}
    for job in plan.jobs:
        source, notes = job.source, plan.notes_on(job)
        download = f", download of {format_nbytes(source.download_nbytes)}" if source.download_nbytes else ""
        print(f"{job.role}: {source.shape.parameters / 1e6:.1f}M parameters, context of {job.context}{download}")
        for note in notes:
            print(f"{job.role}: {note}")
        models[job.role] = {
            "source": source.origin,
            "parameters": source.shape.parameters,
            "context": job.context,
            "download_nbytes": source.download_nbytes,
            "notes": list(notes),
        }
    print(f"dry run: nothing was written. Making the pack needs about {format_nbytes(plan.nbytes)} of disk space")
    return {"dry_run": True, "nbytes": plan.nbytes, "models": models}


export: Command = ExportCommand()
