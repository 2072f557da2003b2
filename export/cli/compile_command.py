"""The verb `compile`. Heavy modules are imported only when it runs."""

from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from edgedecode.commands import Command, add_json, positive_count, print_json
from edgedecode.errors import InputError
from edgedecode.library.find import find_pack
from edgedecode.memory.sizes import format_nbytes
from edgedecode.pack.chips import CHIPS

from ..npu.compile_request import DEFAULT_WIDTHS, DEVICES, CompileRequest
from .common import notices_shown, quiet

if TYPE_CHECKING:
    from .display import Report

_LIST = "list"
"""Value of --soc that prints the known chips."""


class CompileCommand:
    """Adds graphs to a pack that are compiled for NPUs."""

    name = "compile"
    help = "compile a pack's models for an NPU"

    def configure(self, parser: ArgumentParser) -> None:
        parser.add_argument("pack", nargs="?", type=Path, metavar="PACK", help="folder of the pack to change")
        parser.add_argument(
            "--remove", action="store_true", help="remove the pack's graphs of fixed shapes, compiled or not"
        )
        parser.add_argument(
            "-c",
            "--context",
            type=positive_count,
            metavar="N",
            help="past positions (default: the model's context, up to 2048)",
        )
        add_json(parser)
        parser.add_argument(
            "--device",
            choices=DEVICES,
            help="make graphs of fixed shapes, in place of earlier ones: for qnn (Qualcomm's NPUs), compiled ahead of "
            "time, and for openvino (Intel's devices)",
        )
        parser.add_argument(
            "--soc",
            metavar="N,N",
            help="the chips to compile for, such as 57,69,87 (`--soc list` names them); 69+87: one binary for both",
        )
        parser.add_argument(
            "--widths",
            metavar="N,N",
            help=f"rows of a pass, each a graph with its own copy of the weights (default {DEFAULT_WIDTHS}: prefill, "
            f"verification, single tokens); a pass is padded to the next width",
        )
        parser.set_defaults(usage_error=parser.error)

    def run(self, arguments: Namespace) -> int:
        _check(arguments)
        if arguments.soc == _LIST:
            for soc in CHIPS.values():
                print(f"{soc.number}: {soc.name}")
            if arguments.json:
                print_json({str(soc.number): soc.name for soc in CHIPS.values()})
            return 0
        with quiet(debug=arguments.debug):
            arguments.pack = find_pack(arguments.pack)
            if arguments.remove:
                from ..npu.npu_files import take_out_static

                gone = take_out_static(arguments.pack)
                print(f"removed {', '.join(gone) or 'nothing: the pack has no compiled graphs'}")
                report: Report = {"pack": str(arguments.pack), "removed": gone}
            else:
                report = _compile(arguments.pack, _read(arguments))
        if arguments.json:
            print_json(report)
        return 0


def _check(arguments: Namespace) -> None:
    """Exit with a usage error for options that are missing or contradict each other."""
    if arguments.soc == _LIST:
        return
    if arguments.remove:
        others = ("device", "soc", "widths", "context")
        if given := [name for name in others if getattr(arguments, name) is not None]:
            arguments.usage_error(f"argument --{given[0]}: not allowed with --remove, which removes all graphs")
    wanted = ["pack"] if arguments.remove else ["pack", "device"]
    if missing := [name for name in wanted if getattr(arguments, name) is None]:
        names = ", ".join("PACK" if name == "pack" else f"--{name}" for name in missing)
        arguments.usage_error(f"the following arguments are required: {names}")


def _read(arguments: Namespace) -> CompileRequest:
    if arguments.soc is None and arguments.device == "qnn":
        known = "; ".join(f"{soc.number}: {soc.name}" for soc in CHIPS.values())
        raise InputError(f"--soc: give the chips to compile for, such as --soc 57,69 ({known})")
    widths = arguments.widths or DEFAULT_WIDTHS
    return CompileRequest.of(arguments.device, socs=arguments.soc, widths=widths, slots=arguments.context)


def _compile(pack: Path, request: CompileRequest) -> "Report":
    from ..npu.compile_pack import compile_pack
    from .display import live_stages

    with notices_shown(), live_stages() as stages:
        results = compile_pack(pack, request, stages)
    for each in results:
        same = f"same token as on the processor {each.agreed} of {each.positions} times, error {each.error:.1%}"
        checked = same if each.positions else f"not run on the emulator: {each.not_run}"
        print(f"{each.role} {each.graph} for {each.chip}: {format_nbytes(each.nbytes)}, {checked}")
    widths = ", ".join(map(str, request.widths))
    print(f"{pack}: graphs of {widths} rows; run them with --provider {request.device}")
    return {
        "pack": str(pack),
        "compiled": [asdict(each) for each in results],
        "device": request.device,
        "widths": [*request.widths],
    }


compile_verb: Command = CompileCommand()
