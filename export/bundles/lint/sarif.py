"""Findings in SARIF 2.1.0, which code hosts and editors show."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import edgedecode

from .finding import Finding
from .lint import RULES, UNREADABLE

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif(root: Path, findings: Sequence[Finding]) -> dict[str, object]:
    """Return a SARIF log of one run; locations are relative to the bundle."""
    rules = [(UNREADABLE, "error", "bundle.json can be read"), *((rule.id, rule.level, rule.what) for rule in RULES)]
    driver = {
        "name": "edgedecode lint",
        "version": edgedecode.__version__,
        "rules": [
            {"id": id, "shortDescription": {"text": what}, "defaultConfiguration": {"level": level}}
            for id, level, what in rules
        ],
    }
    numbers = {id: number for number, (id, _, _) in enumerate(rules)}
    results = [
        {
            "ruleId": finding.rule,
            "ruleIndex": numbers[finding.rule],
            "level": finding.level,
            "message": {"text": f"{finding.file} {finding.message}: {finding.remedy}"},
            "locations": [
                {"physicalLocation": {"artifactLocation": {"uri": quote(finding.file), "uriBaseId": "BUNDLE"}}},
            ],
        }
        for finding in findings
    ]
    base = {"BUNDLE": {"uri": root.resolve().as_uri() + "/"}}
    return {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "originalUriBaseIds": base, "results": results}],
    }
