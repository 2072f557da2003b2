"""Runs the rules on a bundle. A new rule is a function and a row of `RULES`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edgedecode.errors import ManifestError
from edgedecode.text.printable import shown

from ..bundle import BUNDLE_NAME, Bundle
from . import android_rules, apk_rules, file_rules, model_rules, plan_rules
from .finding import Finding, LintedBundle, Rule

UNREADABLE = "description"
_AGAIN = "make the bundle again"
_LEVELS = ("error", "warning", "note")

RULES: Sequence[Rule] = (
    Rule("missing-file", "error", "every listed file is there", file_rules.missing),
    Rule("link", "error", "files are no links", file_rules.links),
    Rule("digest", "error", "files have the listed size and sha256", file_rules.digests),
    Rule("sums", "error", "SHA256SUMS agrees with bundle.json", file_rules.sums),
    Rule("unlisted-file", "warning", "every file is listed", file_rules.listed),
    Rule("required-file", "error", "scripts, project and self-test are complete", file_rules.required),
    Rule("reference", "error", "bundle.json names only files of its list", file_rules.references),
    Rule("name-case", "error", "names differ in more than case", file_rules.cases),
    Rule("script", "error", "scripts run on Unix", file_rules.executable),
    Rule("self-test-code", "warning", "the self-test's program is this version's", file_rules.self_test_code),
    Rule("target", "error", "the target is known", android_rules.target),
    Rule("abi", "error", "the ABI is that of the devices", android_rules.abi),
    Rule("min-sdk", "error", "Android's version suffices", android_rules.min_sdk),
    Rule("no-compress", "error", "models stay uncompressed", android_rules.no_compress),
    Rule("project", "error", "the app's manifest can be built", android_rules.project),
    Rule("driver", "error", "the app declares the NPU's driver", android_rules.driver),
    Rule("driver-library", "error", "the NPU's driver library is named", android_rules.libraries),
    Rule("processor", "error", "native libraries are for arm64", android_rules.processor),
    Rule("page-size", "error", "native libraries are aligned to 16 KB", android_rules.page_size),
    Rule("vendor-library", "error", "no library of Qualcomm's is passed on", android_rules.vendor_libraries),
    Rule("apk", "error", "the APK carries the models, uncompressed and signed", apk_rules.apk),
    Rule("play-size", "error", "sizes are within Google Play's limits", android_rules.play_size),
    Rule("file-name", "error", "asset packs and adb take the names", android_rules.names),
    Rule("loadable", "error", "each model has what opens it", model_rules.loadable),
    Rule("graph", "error", "graphs are sound and have the loop's inputs", model_rules.graphs),
    Rule("compiled-graph", "error", "compiled graphs name their binaries", model_rules.compiled),
    Rule("chip", "error", "chips are known and the same for all models", model_rules.chips),
    Rule("width", "error", "compiled graphs have the widths of the loop", model_rules.widths),
    Rule("soc-map", "error", "soc_map.json agrees with bundle.json", model_rules.soc_map),
    Rule("fallback", "warning", "other chips run on the processor", model_rules.fallback),
    Rule("gguf", "error", "GGUF files are sound", model_rules.gguf),
    Rule("token-count", "error", "models have a row for each token", model_rules.token_counts),
    Rule("tokenizer", "error", "the tokenizer is that of the models", model_rules.tokenizer),
    Rule("chat-template", "error", "there is a chat template, and it compiles", model_rules.chat_template),
    Rule("end-token", "error", "answers can end", model_rules.end_tokens),
    Rule("adapter", "error", "adapters suit their models", model_rules.adapters),
    Rule("license", "warning", "base models' licences are named", model_rules.licenses),
    Rule("budget", "error", "the plan is within the budget", plan_rules.budget),
    Rule("holders", "error", "the plan counts the models", plan_rules.holders),
    Rule("device-class", "note", "phones of 4, 6, 8 and 12 GB have room", plan_rules.device_classes),
    Rule("context", "error", "the context is the models' or shorter", plan_rules.context),
    Rule("drafting", "warning", "the plan and the models agree about drafts", plan_rules.drafting),
    Rule("assumed-speed", "note", "speeds are measured", plan_rules.assumed),
    Rule("tolerance", "error", "the self-test has its tolerances", plan_rules.tolerance),
    Rule("command", "error", "llama.cpp's arguments are those of the plan", plan_rules.commands),
    Rule("self-test", "error", "there are prompts with answers", plan_rules.present),
    Rule("self-test-token", "error", "self-test tokens are in the vocabulary", plan_rules.recorded),
    Rule("round", "error", "recorded rounds give their answers", plan_rules.replay),
)


def lint_bundle(root: Path) -> list[Finding]:
    """Return the findings of all rules, errors first. Raises ManifestError if there is no bundle at `root`."""
    try:
        found = LintedBundle(root, Bundle.load(root))
    except ManifestError as error:
        if not (root / BUNDLE_NAME).is_file():
            raise
        message = " ".join(str(error).split()).removeprefix(f"{root / BUNDLE_NAME} ")
        message = message.removesuffix(_AGAIN).rstrip(":; ")
        return [Finding(UNREADABLE, "error", BUNDLE_NAME, message, f"{_AGAIN} with `edgedecode package`")]
    findings = [
        Finding(rule.id, rule.level, shown(fault.file), shown(fault.message), fault.remedy)
        for rule in RULES
        for fault in rule.check(found)
    ]
    return sorted(findings, key=lambda finding: _LEVELS.index(finding.level))
