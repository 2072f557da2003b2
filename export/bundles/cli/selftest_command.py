"""The verb `selftest`. Heavy modules are imported only when it runs."""

from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from edgedecode.commands import Command, add_json, positive_count, print_json
from edgedecode.text.printable import counted

if TYPE_CHECKING:
    from ..selftest import LaneResult


class SelftestCommand:
    """Runs a bundle as devices would, as far as this machine can."""

    name = "selftest"
    help = "run a bundle's self-test on this processor and on an emulated arm64 one"

    def configure(self, parser: ArgumentParser) -> None:
        parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="folder made by `edgedecode package`")
        parser.add_argument(
            "--sysroot",
            type=Path,
            metavar="DIR",
            help="an arm64 system with Python, to run under qemu; for the native library --program is needed too, for "
            "others EDGEDECODE_ARM64_SYSROOT is the default",
        )
        parser.add_argument(
            "--program",
            type=Path,
            metavar="FILE",
            help="the native library's edgedecode-run, one for arm64 with --sysroot (default: built with cmake)",
        )
        parser.add_argument("-t", "--threads", type=positive_count, metavar="N", help="default: as planned")
        add_json(parser)
        parser.set_defaults(usage_error=parser.error)

    def run(self, arguments: Namespace) -> int:
        from ..selftest import check_bundle, run_lanes

        bundle = check_bundle(arguments.bundle)
        if bundle.for_native and arguments.sysroot is not None and arguments.program is None:
            arguments.usage_error("--sysroot needs --program for this bundle: give an edgedecode-run built for arm64")
        results: list[LaneResult] = []
        given = {"sysroot": arguments.sysroot, "threads": arguments.threads, "program": arguments.program}
        for result in run_lanes(arguments.bundle, bundle, **given):
            _show(result)
            results.append(result)
        ran = [result for result in results if result.ran]
        passed = bool(ran) and all(result.passed for result in ran)
        if not ran:
            print("Nothing could be run here: see the reasons above.")
        if arguments.json:
            print_json([asdict(result) | {"passed": result.passed} for result in results])
        return 0 if passed else 1


def _show(result: "LaneResult") -> None:
    if not result.ran:
        print(f"{result.lane}: not run: {result.reason}")
        return
    tokens, equal = sum(each.tokens for each in result.answers), sum(each.equal for each in result.answers)
    drafted, accepted = sum(each.drafted for each in result.answers), sum(each.accepted for each in result.answers)
    outcome = "passed" if result.passed else "FAILED"
    words = [f"{result.lane}: {outcome}", *([result.reason] if result.reason else [])]
    if result.answers:
        gaps = [each.largest_gap for each in result.answers if each.largest_gap is not None]
        words += [
            result.engine,
            f"{equal} of {counted(len(result.answers), 'answer')} as expected ({tokens} tokens)",
            *([f"largest gap {max(gaps):.3f}, allowed {result.tolerance:.3f}"] if gaps else []),
            *([f"{accepted} of {drafted} drafts accepted"] if drafted else []),
            f"{result.seconds:g} s",
        ]
    print(", ".join(words))


selftest_verb: Command = SelftestCommand()
