"""The verb `package`. Heavy modules are imported only when it runs."""

from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from edgedecode.commands import Command, add_json, positive_count, print_json
from edgedecode.errors import InputError
from edgedecode.library.find import find_pack
from edgedecode.memory.sizes import format_nbytes, parse_nbytes

from ...cli.common import notices_shown, quiet
from ..request import TARGETS, PackageRequest, check_package_name, device_of, read_chip

if TYPE_CHECKING:
    from ..bundle import Bundle

_APP_ID, _TEST_TOKENS = "com.example.edgedecode", 32
_OF_BUNDLES = ("device_memory", "soc", "ctx_size", "profile", "app_id", "prompts", "test_tokens")
"""Options without a meaning for the native library's folder."""


class PackageCommand:
    """Makes a bundle for an app of a pack."""

    name = "package"
    help = "make a bundle of a pack for an Android or Snapdragon app, or the native library's folder"

    def configure(self, parser: ArgumentParser) -> None:
        parser.add_argument("pack", metavar="PACK", help="folder or hub id of a pack (`demo`: the bundled one)")
        what = parser.add_mutually_exclusive_group(required=True)
        what.add_argument("--target", choices=TARGETS, help="what the bundle is for")
        what.add_argument("--native", action="store_true", help="make the folder that the native library opens instead")
        parser.add_argument("-o", "--out", type=Path, required=True, metavar="DIR", help="folder to make")
        device = parser.add_argument_group("device", "the plan of memory, context and drafts is made for it")
        device.add_argument("--device-memory", metavar="SIZE", help="the device's memory (default: 8GB)")
        device.add_argument(
            "--soc",
            metavar="N,N",
            help="chips, by Build.SOC_MODEL (SM8650) or Qualcomm's number (57): for NPUs, whose compiled graphs to "
            "take (default: all); for the plan, the first",
        )
        device.add_argument("-c", "--ctx-size", type=positive_count, metavar="N", help="context (default: what fits)")
        device.add_argument(
            "--profile", type=Path, metavar="FILE", help="speeds measured on the device with `edgedecode bench --json`"
        )
        parser.add_argument(
            "--kv-type",
            choices=("float32", "int8"),
            help="of --native's KV cache (default: float32)",
        )
        test = parser.add_argument_group("app and self-test")
        test.add_argument("--app-id", metavar="NAME", help=f"default: {_APP_ID}")
        test.add_argument("--prompts", type=Path, metavar="FILE", help="self-test prompts as jsonl (default: bundled)")
        test.add_argument(
            "--test-tokens", type=positive_count, metavar="N", help=f"of an answer (default: {_TEST_TOKENS})"
        )
        add_json(parser)

    def run(self, arguments: Namespace) -> int:
        from ...cli.display import live_stages
        from ..package import make_bundle

        for name in _OF_BUNDLES if arguments.native else ("kv_type",):
            if getattr(arguments, name) is not None:
                place, other = ("--target", "--native") if arguments.native else ("--native", "--target")
                raise InputError(f"--{name.replace('_', '-')} goes with {place}: leave it out with {other}")
        if arguments.native:
            return _native(arguments)
        with quiet(debug=arguments.debug):
            request = _read(arguments)
            with notices_shown(), live_stages() as stages:
                bundle = make_bundle(request, stages)
            _show(request.out, bundle)
        if arguments.json:
            print_json(asdict(bundle))
        return 0


def _native(arguments: Namespace) -> int:
    from ...cli.display import live_stages
    from ...native.folder import write_native_folder

    with quiet(debug=arguments.debug), notices_shown(), live_stages() as stages:
        folder = write_native_folder(
            find_pack(arguments.pack), arguments.out, stages, kv_type=arguments.kv_type or "float32"
        )
    nbytes = sum(each.nbytes for each in folder.files.values())
    print(f"{arguments.out}: {folder.name} for the native library, {format_nbytes(nbytes)}")
    if arguments.json:
        print_json(folder.value)
    return 0


def _read(arguments: Namespace) -> PackageRequest:
    chips = tuple(read_chip(text.strip()) for text in arguments.soc.split(",")) if arguments.soc else ()
    memory = None if arguments.device_memory is None else parse_nbytes(arguments.device_memory)
    return PackageRequest(
        pack=find_pack(arguments.pack),
        target=TARGETS[arguments.target],
        out=arguments.out,
        device=device_of(memory, chips[0].models[0] if chips else ""),
        package=check_package_name(_APP_ID if arguments.app_id is None else arguments.app_id),
        socs=chips,
        context=arguments.ctx_size,
        prompts=arguments.prompts,
        profile=arguments.profile,
        tokens=arguments.test_tokens or _TEST_TOKENS,
    )


def _show(out: Path, bundle: "Bundle") -> None:
    plan = bundle.plan
    device = plan.device or f"a device of {format_nbytes(plan.memory_nbytes)}"
    print(
        f"{out}: {bundle.target} of {bundle.name}, {format_nbytes(sum(each.nbytes for each in bundle.files.values()))}"
    )
    print(
        f"Planned for {device}: {format_nbytes(plan.nbytes)} of {format_nbytes(plan.budget_nbytes)}, context of "
        f"{plan.context}, {_drafting(bundle)}"
    )
    for cut in plan.cuts:
        print(f"Note: {cut}")
    print(f"Next: `edgedecode lint {quote(str(out))}`, `edgedecode selftest {quote(str(out))}`, then install.sh in it")


def _drafting(bundle: "Bundle") -> str:
    plan = bundle.plan
    speed = "" if plan.tokens_per_second is None else f", {plan.tokens_per_second:.0f} tokens/s"
    basis = f" ({plan.profile})"
    if "head" in bundle.models:
        return f"drafts of the head{speed} without{basis}"
    if not plan.draft_length or plan.drafted_per_second is None:
        return f"no drafts{speed}{basis}"
    return f"drafts of {plan.draft_length}{speed}, {plan.drafted_per_second:.0f} with drafts{basis}"


package_verb: Command = PackageCommand()
