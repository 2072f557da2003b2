"""The verb `lint`."""

from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path

from edgedecode.commands import Command, add_json, print_json


class LintCommand:
    """Checks a bundle; exits with 1 if it has errors."""

    name = "lint"
    help = "check a bundle for what stores and devices refuse"

    def configure(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "bundle", nargs="?", type=Path, metavar="BUNDLE", help="folder made by `edgedecode package`"
        )
        parser.add_argument("--rules", action="store_true", help="list the rules, and check nothing")
        add_json(parser)
        parser.set_defaults(usage_error=parser.error)

    def run(self, arguments: Namespace) -> int:
        from ..lint import RULES, lint_bundle

        if arguments.rules:
            for rule in RULES:
                print(f"{rule.id} ({rule.level}): {rule.what}")
            if arguments.json:
                print_json([{"id": rule.id, "level": rule.level, "what": rule.what} for rule in RULES])
            return 0
        if arguments.bundle is None:
            arguments.usage_error("the following arguments are required: BUNDLE")
        findings = lint_bundle(arguments.bundle)
        errors = sum(finding.level == "error" for finding in findings)
        for each in findings:
            print(f"{each.level}: {each.file} {each.message} ({each.rule}): {each.remedy}")
        print(f"{arguments.bundle}: {_count(errors, 'error')}, {_count(len(findings) - errors, 'other finding')}")
        if arguments.json:
            found = [asdict(each) for each in findings]
            print_json({"bundle": str(arguments.bundle), "errors": errors, "findings": found})
        return 1 if errors else 0


def _count(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"


lint_verb: Command = LintCommand()
