"""`lint`: a good bundle has no error, and each planted fault is found by its rule."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

import pytest

from edgedecode.cli import main
from edgedecode.export.bundles.apk import is_carried
from edgedecode.export.bundles.bundle import Bundle, BundleAdapter, write_bundle
from edgedecode.export.bundles.lint.lint import RULES, lint_bundle
from edgedecode.export.bundles.pack_files import SOC_MAP, soc_map_of
from edgedecode.export.bundles.package import _listed
from edgedecode.pack.hub import BUNDLED_PACK
from edgedecode.pack.manifest import MANIFEST_NAME
from tests.peft_folders import write_peft

pytest.importorskip("onnx_ir", reason="the export extras are not installed")
pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")

pytestmark = pytest.mark.skipif(
    not (BUNDLED_PACK / MANIFEST_NAME).is_file(), reason="there is no pack: run `make pack`"
)
GRADLE, MANIFEST = Path("gradle/app/build.gradle.kts"), Path("gradle/app/src/main/AndroidManifest.xml")


def run(*words: str | Path) -> int:
    return main([str(word) for word in words])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, cpu: Path) -> dict[str, Path]:
    """Return a good bundle of each kind: the one for NPUs has made-up compiled graphs."""
    root = tmp_path_factory.mktemp("made")
    assert run("package", "demo", "--target", "android-llamacpp", "--out", root / "llama") == 0
    npu = Path(shutil.copytree(cpu, root / "npu"))
    bundle = Bundle.load(npu)
    models: dict[str, Any] = {}
    for role, model in bundle.models.items():
        name, binary = f"npu/57_v75/{role}-static-8_ctx.onnx", f"npu/57_v75/{role}-static-8_ctx_qnn.bin"
        (npu / name).parent.mkdir(parents=True, exist_ok=True)
        (npu / binary).write_bytes(b"compiled")
        (npu / name).write_bytes(context_graph(Path(binary).name))
        graph = replace(model.graphs[0], file=name, binary=binary, provider="qnn", width=8, slots=2048, socs=(57,))
        models[role] = replace(model, graphs=(*model.graphs, graph))
    (npu / SOC_MAP).write_text(json.dumps(soc_map_of(models)), encoding="utf-8")
    bundle = replace(bundle, target="android-qnn", min_sdk=31, libraries=("libcdsprpc.so",), models=models)
    gradle = (npu / GRADLE).read_text(encoding="utf-8")
    (npu / GRADLE).write_text(gradle.replace("minSdk = 26", "minSdk = 31"), encoding="utf-8")
    write_bundle(npu, replace(bundle, files=_listed(npu)))
    return {"cpu": cpu, "llama": root / "llama", "npu": npu}


def context_graph(binary: str) -> bytes:
    import onnx
    from onnx import helper

    node = helper.make_node(
        "EPContext", ["x"], ["y"], domain="com.microsoft", embed_mode=0, ep_cache_context=binary.encode()
    )
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in ("x", "y")]
    graph = helper.make_graph([node], "compiled", values[:1], values[1:])
    opsets = [helper.make_opsetid("", 22), helper.make_opsetid("com.microsoft", 1)]
    data: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    return data


@pytest.mark.parametrize("kind", ["cpu", "llama", "npu"])
def test_a_good_bundle_has_notes_only(kind: str, made: dict[str, Path]) -> None:
    findings = lint_bundle(made[kind])
    assert [finding for finding in findings if finding.level != "note"] == []


Change = Callable[[Path], object]


def described(change: Callable[[dict[str, Any]], object]) -> Change:
    """Return a change of bundle.json."""

    def apply(root: Path) -> None:
        value = json.loads((root / "bundle.json").read_text(encoding="utf-8"))
        change(value)
        write_bundle(root, Bundle.from_json(value))

    return apply


def written(name: str | Path, data: bytes | str | Callable[[bytes], bytes]) -> Change:
    """Return a change of a file, which is listed as it is then."""

    def apply(root: Path) -> None:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.read_bytes() if path.is_file() else b""
        path.write_bytes(data(before) if callable(data) else data if isinstance(data, bytes) else data.encode())
        write_bundle(root, replace(Bundle.load(root), files=_listed(root)))

    return apply


def edited(name: str, change: Callable[[Any], object]) -> Change:
    """Return a change of a JSON file."""

    def apply(before: bytes) -> bytes:
        value = json.loads(before)
        change(value)
        return json.dumps(value).encode()

    return written(name, apply)


def library(*, machine: int = 183, alignment: int = 1 << 14, head: bytes = b"\x7fELF\x02\x01") -> bytes:
    """Return an ELF file with one loaded segment."""
    start = struct.pack("<6s10xHHIQQQIHHHHHH", head, 3, machine, 1, 0, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    return start + struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, 64, 64, alignment)


def put(key: str, value: object) -> Change:
    """Return a change of one field of bundle.json, by its dotted name."""

    def change(found: dict[str, Any]) -> None:
        *path, last = key.split(".")
        for part in path:
            found = found[int(part)] if isinstance(found, list) else found[part]
        found[last] = value

    return described(change)


def replaced(name: str | Path, old: str, new: str) -> Change:
    return written(name, lambda data: data.decode().replace(old, new).encode())


def flipped(root: Path) -> None:
    path = root / "models/target/weights.bin"
    data = bytearray(path.read_bytes())
    data[5000] ^= 1
    path.write_bytes(data)


def linked(root: Path) -> None:
    path = root / "models/tokenizer.json"
    other = root.parent / "tokenizer.json"
    shutil.copyfile(path, other)
    path.unlink()
    path.symlink_to(other)


def linked_folder(root: Path) -> None:
    """Move the tokenizer into a folder that Gradle leaves, which is a link."""
    outside = root.parent / "outside"
    outside.mkdir()
    shutil.move(root / "models/tokenizer.json", outside / "tokenizer.json")
    (root / "models/build").symlink_to(outside, target_is_directory=True)
    value = json.loads((root / "bundle.json").read_text(encoding="utf-8"))
    value["tokenizer"] = "models/build/tokenizer.json"
    value["files"]["models/build/tokenizer.json"] = value["files"].pop("models/tokenizer.json")
    write_bundle(root, Bundle.from_json(value))


def piped(root: Path) -> None:
    """A pipe that nobody writes to, where reading would wait."""
    (root / "selftest/prompts.json").unlink()
    os.mkfifo(root / "selftest/prompts.json")


def without(name: str | Path) -> Change:
    def apply(root: Path) -> None:
        (root / name).unlink()
        write_bundle(root, replace(Bundle.load(root), files=_listed(root)))

    return apply


def archive(kind: int, *, lacks: str = "") -> Change:
    """Return a change that adds an unsigned APK."""

    def apply(root: Path) -> None:
        files = Bundle.load(root).files
        with ZipFile(root / "models.apk", "w", kind) as made:
            for name in ("bundle.json", *files):
                if name != lacks and is_carried(name):
                    made.write(root / name, f"assets/{name}")
        write_bundle(root, replace(Bundle.load(root), files=_listed(root)))

    return apply


def adapter_of(rank: int, data: bytes | None = None) -> Change:
    """Return a change that adds an adapter of rank 8, which is described with another one."""

    def apply(root: Path) -> None:
        folder = write_peft(root / "adapters" / "a", seed=1, rank=8)
        if data is not None:
            (folder / "adapter_model.safetensors").write_bytes(data)
        bundle = Bundle.load(root)
        added = {"a": BundleAdapter("adapters/a/adapter_model.safetensors", "target", rank)}
        write_bundle(root, replace(bundle, adapters=added, files=_listed(root)))

    return apply


FAULTS: list[tuple[str, str, Change]] = [
    ("cpu", "missing-file", lambda root: (root / "models/draft/weights.bin").unlink()),
    ("cpu", "link", linked),
    ("cpu", "link", linked_folder),
    ("cpu", "link", piped),
    ("cpu", "digest", flipped),
    ("cpu", "digest", lambda root: (root / "install.sh").write_text("#!/bin/sh\n", encoding="utf-8")),
    ("cpu", "sums", lambda root: (root / "SHA256SUMS").unlink()),
    ("cpu", "sums", lambda root: (root / "SHA256SUMS").write_text("0  bundle.json\n", encoding="utf-8")),
    ("cpu", "unlisted-file", lambda root: (root / "notes.txt").write_text("!", encoding="utf-8")),
    ("cpu", "reference", described(lambda found: found["files"].pop("models/chat_template.jinja"))),
    ("cpu", "name-case", written("Install.sh", "#!/bin/sh\n")),
    ("cpu", "script", written("install.sh", "#!/bin/sh\r\nexit\r\n")),
    ("cpu", "self-test-code", written("selftest/decode.py", "print()\n")),
    ("cpu", "target", put("target", "ios")),
    ("cpu", "abi", put("abi", "armeabi-v7a")),
    ("npu", "abi", replaced(GRADLE, "arm64-v8a", "x86_64")),
    ("npu", "abi", replaced(GRADLE, '+= "arm64-v8a"', '+= listOf("arm64-v8a", "x86_64")')),
    ("npu", "abi", replaced(GRADLE, "ndk {", "// ndk {")),
    ("npu", "min-sdk", put("min_sdk", 26)),
    ("npu", "min-sdk", replaced(GRADLE, "31", "24")),
    ("npu", "no-compress", replaced(GRADLE, '"bin", ', "")),
    ("npu", "no-compress", replaced(GRADLE, "noCompress", "noBackup")),
    ("npu", "no-compress", replaced(GRADLE, "androidResources {", "// androidResources {")),
    ("npu", "driver", replaced(MANIFEST, "libcdsprpc.so", "libother.so")),
    ("cpu", "project", written(MANIFEST, "")),
    ("cpu", "project", replaced(MANIFEST, "edgedecode.app.MainActivity", ".Main")),
    ("npu", "driver-library", put("libraries", [])),
    ("cpu", "processor", written("lib/arm64-v8a/liba.so", library(machine=62))),
    ("cpu", "processor", written("lib/arm64-v8a/liba.so", library(head=b"\x7fELF\x01\x01"))),
    ("cpu", "page-size", written("lib/arm64-v8a/liba.so", library(alignment=4096))),
    ("cpu", "page-size", written("lib/arm64-v8a/liba.so", library(alignment=0))),
    ("cpu", "vendor-library", written("lib/arm64-v8a/libQnnHtp.so", library())),
    ("cpu", "vendor-library", written("lib/arm64-v8a/libQnnHtp.so.1", library())),
    ("cpu", "apk", written("models.apk", b"junk")),
    ("cpu", "apk", archive(ZIP_STORED, lacks="models/draft/weights.bin")),
    ("cpu", "apk", archive(ZIP_DEFLATED)),
    ("cpu", "required-file", without("install.sh")),
    ("cpu", "required-file", without("selftest/run.py")),
    ("cpu", "required-file", without("models/genai_config.json")),
    ("cpu", "required-file", without(GRADLE)),
    (
        "cpu",
        "play-size",
        described(lambda found: found["files"]["models/target/weights.bin"].update(nbytes=1_600_000_000)),
    ),
    ("cpu", "file-name", written("models/a model.txt", "?")),
    ("cpu", "loadable", described(lambda found: found["models"].pop("target"))),
    ("cpu", "loadable", put("models.target.graphs", [])),
    ("cpu", "graph", written("models/target/base.onnx", b"not a graph")),
    ("cpu", "graph", put("models.target.layers", 11)),
    ("cpu", "graph", written("models/target/weights.bin", lambda data: data[:-4096])),
    ("npu", "compiled-graph", written("npu/57_v75/target-static-8_ctx.onnx", context_graph("other.bin"))),
    ("npu", "compiled-graph", put("models.draft.graphs.1.binary", "")),
    ("npu", "chip", put("models.target.graphs.1.socs", [58])),
    ("npu", "chip", put("models.draft.graphs.1.socs", [69])),
    ("npu", "width", put("models.target.graphs.1.width", 128)),
    ("npu", "soc-map", edited("soc_map.json", lambda value: value["chips"].clear())),
    ("npu", "soc-map", edited("soc_map.json", lambda value: value["chips"][0].update(soc_models=["other"]))),
    ("npu", "soc-map", edited("soc_map.json", lambda value: value["chips"][0]["graphs"].update(draft={"1": "x"}))),
    ("npu", "fallback", described(lambda found: found["models"]["draft"]["graphs"].pop(0))),
    ("llama", "gguf", written("models/draft-Q8_0.gguf", b"GGUF")),
    ("llama", "gguf", put("models.draft.layers", 3)),
    ("cpu", "token-count", put("models.draft.rows", 100)),
    ("cpu", "tokenizer", written("models/tokenizer.json", "{}")),
    ("cpu", "tokenizer", put("tokenizer_digest", "0" * 64)),
    ("cpu", "chat-template", written("models/chat_template.jinja", "{% if %}")),
    ("cpu", "chat-template", put("chat_template", None)),
    ("cpu", "end-token", put("generation.end_token_ids", [8192])),
    ("cpu", "end-token", put("generation.end_token_ids", [])),
    ("cpu", "adapter", put("adapters", {"a": {"file": "models/tokenizer.json", "role": "other", "rank": 8}})),
    ("llama", "adapter", put("adapters", {"a": {"file": "models/tokenizer.json", "role": "target", "rank": 8}})),
    ("cpu", "adapter", adapter_of(8, b"not safetensors")),
    ("cpu", "adapter", adapter_of(99)),
    ("cpu", "license", put("models.target.license", "")),
    ("cpu", "budget", put("plan.budget_nbytes", 100_000_000)),
    ("cpu", "holders", put("plan.nbytes", 12)),
    ("cpu", "device-class", described(lambda found: grow(found, 900_000_000))),
    ("cpu", "context", put("plan.context", 4096)),
    ("npu", "context", put("models.target.graphs.1.slots", 512)),
    ("cpu", "drafting", described(lambda found: found["models"].pop("draft"))),
    ("cpu", "drafting", put("plan.draft_length", 0)),
    ("cpu", "tolerance", put("plan.tolerance", {})),
    ("cpu", "tolerance", put("plan.tolerance.cpu", 1e9)),
    ("llama", "command", replaced("run.sh", "--ctx-size 2048", "--ctx-size 512")),
    ("llama", "command", put("commands", {})),
    ("llama", "command", put("plan.context", 1024)),
    ("llama", "command", put("commands.llama-cli", ["--log-file", "/etc/passwd"])),
    ("cpu", "round", edited("selftest/rounds.json", lambda v: v["conversations"][0].update(rounds=[1, "a", None]))),
    ("cpu", "self-test", edited("selftest/prompts.json", lambda value: value["prompts"].clear())),
    ("cpu", "self-test", edited("selftest/expected.json", lambda value: value["answers"].pop())),
    ("cpu", "self-test", edited("selftest/expected.json", lambda value: value["answers"][1].clear())),
    ("cpu", "self-test", edited("selftest/prompts.json", lambda value: value["prompts"][0]["tokens"].pop())),
    ("cpu", "self-test-token", edited("selftest/expected.json", lambda value: value["answers"][0].append(9000))),
    ("cpu", "self-test-token", edited("selftest/expected.json", lambda value: value["answers"][0].append(-5))),
    ("cpu", "self-test-token", edited("selftest/prompts.json", lambda value: value["prompts"][0].update(most="x"))),
    ("cpu", "self-test-token", edited("selftest/prompts.json", lambda value: value["prompts"][0].pop("name"))),
    ("cpu", "round", edited("selftest/rounds.json", lambda value: value["conversations"][0]["rounds"].pop())),
    ("cpu", "round", edited("selftest/rounds.json", lambda v: v["conversations"][0]["rounds"][1].update(known=1))),
]
FOLLOWING = {
    "play-size": {"digest", "holders"},
    "reference": {"unlisted-file"},
    "loadable": {"fallback", "unlisted-file", "holders", "tolerance"},
    "digest": {"script"},
    "link": {"reference", "self-test"},
    "width": {"soc-map"},
    "chip": {"soc-map"},
    "compiled-graph": {"unlisted-file"},
    "target": {"tolerance"},
}
"""Rules that a fault breaks too."""


def grow(found: dict[str, Any], nbytes: int) -> None:
    found["plan"]["holders"]["app"] += nbytes
    found["plan"]["nbytes"] += nbytes


@pytest.mark.parametrize(
    ("kind", "rule", "change"), FAULTS, ids=[f"{number}-{rule}" for number, (_, rule, _) in enumerate(FAULTS)]
)
def test_a_planted_fault_is_found_by_its_rule(
    kind: str, rule: str, change: Change, made: dict[str, Path], tmp_path: Path
) -> None:
    root = Path(shutil.copytree(made[kind], tmp_path / "bundle"))
    change(root)
    findings = lint_bundle(root)
    found = {finding.rule for finding in findings}
    assert rule in found
    others = found - {rule, "assumed-speed"} - FOLLOWING.get(rule, set())
    assert not others, [finding for finding in findings if finding.rule in others]
    for finding in findings:
        assert finding.remedy
        assert "\n" not in finding.message + finding.remedy


def test_every_rule_has_a_planted_fault() -> None:
    assert {rule.id for rule in RULES} - {rule for _, rule, _ in FAULTS} == {"assumed-speed"}
    assert len({rule.id for rule in RULES}) == len(RULES)
    assert len(FAULTS) >= 30


def test_errors_decide_the_exit_code(made: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("lint", made["cpu"]) == 0
    assert "no errors, 1 other finding" in capsys.readouterr().out
    root = Path(shutil.copytree(made["cpu"], tmp_path / "bundle"))
    flipped(root)
    assert run("lint", root) == 1
    found = capsys.readouterr().out
    assert "error: models/target/weights.bin has another content than was packaged (digest): copy" in found
    assert "1 error, 1 other finding" in found


def test_findings_are_written_as_json_and_sarif(
    made: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Path(shutil.copytree(made["cpu"], tmp_path / "bundle"))
    flipped(root)
    assert run("lint", root, "--json") == 1
    printed = json.loads(capsys.readouterr().out)
    assert run("lint", root, "--format", "json", "--out", tmp_path / "a.json") == 1
    report = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert (report["errors"], report["findings"][0]["rule"]) == (1, "digest")
    assert printed == report
    assert run("lint", root, "--format", "sarif", "--out", tmp_path / "a.sarif") == 1
    log = json.loads((tmp_path / "a.sarif").read_text(encoding="utf-8"))
    (one,) = log["runs"]
    rules = one["tool"]["driver"]["rules"]
    assert log["version"] == "2.1.0"
    for result in one["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("error", "warning", "note")
    assert (
        one["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "models/target/weights.bin"
    )


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": "edgedecode-bundle", "version": 99}', '{"a": 1, "a": 2}'])
def test_a_damaged_description_is_one_finding(text: str, tmp_path: Path) -> None:
    (tmp_path / "bundle.json").write_text(text, encoding="utf-8")
    (finding,) = lint_bundle(tmp_path)
    assert (finding.rule, finding.level) == ("description", "error")
    said = f"{finding.file} {finding.message}: {finding.remedy}"
    assert (said.count("bundle.json"), said.count("make the bundle again"), "again:" in said) == (1, 1, False)


def test_a_path_outside_the_bundle_is_refused(made: dict[str, Path], tmp_path: Path) -> None:
    value = json.loads((made["cpu"] / "bundle.json").read_text(encoding="utf-8"))
    value["tokenizer"] = "../secret"
    (tmp_path / "bundle.json").write_text(json.dumps(value), encoding="utf-8")
    (finding,) = lint_bundle(tmp_path)
    assert "../secret" in finding.message


def test_a_folder_without_a_bundle_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("lint", tmp_path) == 1
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_a_pipe_in_place_of_the_description_is_refused(
    made: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Path(shutil.copytree(made["cpu"], tmp_path / "bundle"))
    (root / "bundle.json").unlink()
    os.mkfifo(root / "bundle.json")
    assert run("lint", root) == 1
    assert "bundle.json is not an ordinary file" in capsys.readouterr().err


def test_names_in_sarif_are_encoded(made: dict[str, Path], tmp_path: Path) -> None:
    root = Path(shutil.copytree(made["cpu"], tmp_path / "bundle"))
    for name in ("my notes 100%#1.txt", os.fsdecode(b"na\xefve.txt")):
        (root / name).touch()
    for form in ("sarif", "text", "json"):
        assert run("lint", root, "--format", form, "--out", tmp_path / form) == 0
    results = json.loads((tmp_path / "sarif").read_text(encoding="utf-8"))["runs"][0]["results"]
    places = [each["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for each in results]
    assert "my%20notes%20100%25%231.txt" in places
    assert all(place.isascii() for place in places)


def test_rules_are_listed_without_a_bundle(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("lint", "--rules") == 0
    assert len(capsys.readouterr().out.splitlines()) == len(RULES)
    with pytest.raises(SystemExit):
        run("lint")
