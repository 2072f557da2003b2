"""The verb `lint`."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path

from edgedecode.cache import aside
from edgedecode.commands import Command, add_json, print_json


class LintCommand:
    """Checks a bundle; exits with 1 if it has errors."""

    name = "lint"
    help = "check a bundle for what fails on devices"

    def configure(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "bundle", nargs="?", type=Path, metavar="BUNDLE", help="folder made by `edgedecode package`"
        )
        parser.add_argument(
            "--format", choices=("text", "json", "sarif"), default="text", help="of the findings (default: %(default)s)"
        )
        add_json(parser)
        parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="write them there instead")
        parser.add_argument("--rules", action="store_true", help="list the rules, and check nothing")
        parser.set_defaults(usage_error=parser.error)

    def run(self, arguments: Namespace) -> int:
        from ..lint.lint import RULES, lint_bundle
        from ..lint.sarif import sarif

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
        value = {"bundle": str(arguments.bundle), "errors": errors, "findings": [asdict(each) for each in findings]}
        if arguments.format == "json":
            text = json.dumps(value, indent=1)
        elif arguments.format == "sarif":
            text = json.dumps(sarif(arguments.bundle, findings), indent=1)
        else:
            lines = [f"{each.level}: {each.file} {each.message} ({each.rule}): {each.remedy}" for each in findings]
            others = len(findings) - errors
            lines.append(f"{arguments.bundle}: {_count(errors, 'error')}, {_count(others, 'other finding')}")
            text = "\n".join(lines)
        if arguments.json:
            print_json(value)
        if arguments.out is None:
            print(text)
        else:
            with aside(arguments.out) as fresh:
                fresh.write_text(f"{text}\n", encoding="utf-8")
        return 1 if errors else 0


def _count(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"


lint_verb: Command = LintCommand()
