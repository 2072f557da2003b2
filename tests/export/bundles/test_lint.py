"""`lint`: a good bundle has no error, and each planted fault is found by its rule."""

import json
import os
import platform
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgedecode.export.bundles.bundle import Bundle, write_bundle
from edgedecode.export.bundles.lint import RULES, lint_bundle
from edgedecode.export.bundles.package import _listed
from tests.conftest import Refusal
from tests.export.conftest import run

GRADLE = Path("gradle/app/build.gradle.kts")
LIBRARY = "lib/arm64-v8a/liba.so"


@pytest.fixture(scope="module")
def made(cpu: Path, graphs: Path) -> dict[str, Path]:
    """Return a good bundle of each kind."""
    return {"cpu": cpu, "graphs": graphs}


@pytest.mark.parametrize("kind", ["cpu", "graphs"])
def test_a_good_bundle_has_no_finding(kind: str, made: dict[str, Path], tmp_path: Path) -> None:
    root = Path(shutil.copytree(made[kind], tmp_path / "bundle"))
    written(LIBRARY, library())(root)
    assert lint_bundle(root) == []


Change = Callable[[Path], object]


def described(change: Callable[[dict[str, Any]], object]) -> Change:
    """Return a change of bundle.json."""

    def apply(root: Path) -> None:
        value = json.loads((root / "bundle.json").read_text(encoding="utf-8"))
        change(value)
        (root / "bundle.json").write_text(json.dumps(value), encoding="utf-8")

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


def library(*, machine: int = 183, alignment: int = 1 << 14, head: bytes = b"\x7fELF\x02\x01") -> bytes:
    """Return an ELF file with one loaded segment."""
    start = struct.pack("<6s10xHHIQQQIHHHHHH", head, 3, machine, 1, 0, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    return start + struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, 64, 64, alignment)


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


def built(name: str, source: str, *flags: str) -> Change:
    """Return a change that adds a library for x86-64, compiled without a C library unless the flags name one."""

    def apply(root: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None or platform.machine() != "x86_64" or sys.platform != "linux":
            pytest.skip("there is no C compiler for x86-64 Linux")
        path = root.parent / name
        words = [
            "-shared",
            "-fPIC",
            "-x",
            "c",
            "-nostdlib",
            "-fno-builtin",
            "-Wl,-z,max-page-size=16384",
            "-o",
            str(path),
            "-",
        ]
        subprocess.run([compiler, *words, *flags], input=source.encode(), check=True)
        written(f"gradle/app/src/main/jniLibs/x86_64/{name}", path.read_bytes())(root)

    return apply


FAULTS: list[tuple[str, str, Change]] = [
    ("graphs", "digest", lambda root: (root / "models/draft/weights.bin").unlink()),
    ("graphs", "digest", linked),
    ("graphs", "digest", linked_folder),
    ("graphs", "digest", piped),
    ("graphs", "digest", flipped),
    ("graphs", "digest", lambda root: (root / "install.sh").write_text("#!/bin/sh\n", encoding="utf-8")),
    ("graphs", "graph", written("models/target/base.onnx", b"not a graph")),
    ("graphs", "graph", written("models/target/weights.bin", lambda data: data[:-4096])),
    ("graphs", "file-name", written("models/a model.txt", "?")),
    (
        "graphs",
        "play-size",
        described(lambda found: found["files"]["models/target/weights.bin"].update(nbytes=1_600_000_000)),
    ),
    (
        "graphs",
        "play-size",
        described(lambda found: [each.update(nbytes=900_000_000) for each in [*found["files"].values()][:5]]),
    ),
    ("cpu", "abi", replaced(GRADLE, "arm64-v8a", "x86")),
    ("cpu", "abi", replaced(GRADLE, 'listOf("arm64-v8a", "x86_64")', '"arm64-v8a"')),
    ("cpu", "abi", replaced(GRADLE, "ndk {", "// ndk {")),
    ("cpu", "min-sdk", replaced(GRADLE, "minSdk = 26", "minSdk = 24")),
    ("cpu", "no-compress", replaced(GRADLE, '"bin", ', "")),
    ("cpu", "no-compress", replaced(GRADLE, "noCompress", "noBackup")),
    ("cpu", "no-compress", replaced(GRADLE, "androidResources {", "// androidResources {")),
    ("cpu", "processor", written(LIBRARY, library(machine=62))),
    ("cpu", "processor", written(LIBRARY, library(head=b"\x7fELF\x01\x01"))),
    ("cpu", "processor", written(LIBRARY, library()[:100])),
    ("cpu", "processor", written(LIBRARY, b"")),
    ("cpu", "page-size", written(LIBRARY, library(alignment=4096))),
    ("cpu", "page-size", written(LIBRARY, library(alignment=0))),
    ("cpu", "exports", built("libedgedecode.so", "int edgedecode_x; int other;")),
    (
        "cpu",
        "bionic",
        built("liba.so", "int nobody_has_this(void); int edgedecode_x(void) { return nobody_has_this(); }"),
    ),
    ("cpu", "bionic", built("liba.so", "int getrandom(void); int edgedecode_x(void) { return getrandom(); }")),
    ("cpu", "bionic", built("liba.so", 'int puts(const char*); int x(void) { return puts(""); }', "-lc")),
    ("cpu", "vendor-library", written("lib/arm64-v8a/libQnnHtp.so", library())),
    ("cpu", "vendor-library", written("lib/arm64-v8a/libQnnHtp.so.1", library())),
    ("cpu", "license", described(lambda found: found["models"]["target"].update(license="unknown"))),
]


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
    others = found - {rule} - ({"digest"} if rule == "play-size" else set())
    assert not others, [finding for finding in findings if finding.rule in others]
    for finding in findings:
        assert finding.remedy
        assert "\n" not in finding.message + finding.remedy


@pytest.mark.parametrize("name", ["libedgedecode.so", "liba.so"])
def test_a_library_as_the_ndk_makes_it_has_no_finding(name: str, made: dict[str, Path], tmp_path: Path) -> None:
    root = Path(shutil.copytree(made["cpu"], tmp_path / "bundle"))
    built(name, "int memcmp(void); int edgedecode_x(void) { return memcmp(); } int Java_edgedecode_y;")(root)
    assert lint_bundle(root) == []


def test_every_rule_has_a_planted_fault() -> None:
    assert {rule.id for rule in RULES} == {rule for _, rule, _ in FAULTS}
    assert len({rule.id for rule in RULES}) == len(RULES)


def test_native_libraries_without_pyelftools_name_what_installs_it(
    made: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "elftools.elf.elffile", None)
    assert run("lint", made["cpu"]) == 0
    root = Path(shutil.copytree(made["cpu"], tmp_path / "bundle"))
    written(LIBRARY, library())(root)
    capsys.readouterr()
    assert run("lint", root) == 1
    said = capsys.readouterr().err.strip()
    assert "liba.so" in said
    assert "pip install 'edgedecode[export]'" in said
    assert len(said.splitlines()) == 1


def test_errors_decide_the_exit_code(made: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("lint", made["graphs"]) == 0
    assert "no errors, no other findings" in capsys.readouterr().out
    root = Path(shutil.copytree(made["graphs"], tmp_path / "bundle"))
    flipped(root)
    assert run("lint", root) == 1
    found = capsys.readouterr().out
    assert "error: models/target/weights.bin has another content than was packaged (digest): copy" in found
    assert "1 error, no other findings" in found
    assert run("lint", root, "--json") == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["errors"], report["findings"][0]["rule"]) == (1, "digest")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda found: found["files"].pop("models/chat_template.jinja"), "refers to models/chat_template.jinja"),
        (lambda found: found["models"].pop("target"), "no target model"),
        (lambda found: found.update(tokenizer="../secret"), "../secret"),
    ],
)
def test_a_description_that_names_what_is_not_there_is_one_finding(
    change: Callable[[dict[str, Any]], object], said: str, made: dict[str, Path], tmp_path: Path
) -> None:
    root = Path(shutil.copytree(made["graphs"], tmp_path / "bundle"))
    described(change)(root)
    (finding,) = lint_bundle(root)
    assert said in finding.message


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": "edgedecode-bundle", "version": 99}', '{"a": 1, "a": 2}'])
def test_a_damaged_description_is_one_finding(text: str, tmp_path: Path) -> None:
    (tmp_path / "bundle.json").write_text(text, encoding="utf-8")
    (finding,) = lint_bundle(tmp_path)
    assert (finding.rule, finding.level) == ("description", "error")
    said = f"{finding.file} {finding.message}: {finding.remedy}"
    assert (said.count("bundle.json"), said.count("make the bundle again"), "again:" in said) == (1, 1, False)


def test_a_pipe_in_place_of_the_description_is_refused(made: dict[str, Path], tmp_path: Path, refusal: Refusal) -> None:
    root = Path(shutil.copytree(made["graphs"], tmp_path / "bundle"))
    (root / "bundle.json").unlink()
    os.mkfifo(root / "bundle.json")
    assert "bundle.json is not an ordinary file" in refusal("lint", root)


def test_rules_are_listed_without_a_bundle(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("lint", "--rules") == 0
    assert len(capsys.readouterr().out.splitlines()) == len(RULES)
