"""The Android project in bundles: its conventions, and that it has what it names."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from edgedecode.export.bundles import template_files

ROOT = Path(template_files.__file__).parent / "templates" / "gradle"
PLACEHOLDERS = {"ABIS", "APP_ID", "MIN_SDK", "NAME", "OPTIONS", "RUNTIME", "VERSION"}

FILES = sorted(path for path in ROOT.rglob("*") if path.is_file())


def test_every_part_is_there() -> None:
    names = {path.relative_to(ROOT).as_posix() for path in FILES}
    assert names >= {"settings.gradle.kts", "build.gradle.kts", "app/build.gradle.kts", "models/build.gradle.kts"}
    kotlin = [path for path in FILES if path.suffix == ".kt"]
    assert {path.name for path in kotlin} == {"Edgedecode.kt", "MainActivity.kt"}
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in kotlin) <= 350


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_files_are_short_plain_text(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 250
    assert all(len(line) <= 120 and line == line.rstrip() and "\t" not in line for line in lines)


def test_placeholders_are_those_that_package_fills_in() -> None:
    found = {name for path in FILES for name in re.findall(r"@([A-Z_]+)@", path.read_text(encoding="utf-8"))}
    assert found == PLACEHOLDERS
    assert all(f'"{name}":' in Path(template_files.__file__).read_text(encoding="utf-8") for name in PLACEHOLDERS)
    assert all(path.suffix in template_files._TEXT for path in FILES)


def test_project_has_the_conventions() -> None:
    gradle = (ROOT / "app/build.gradle.kts").read_text(encoding="utf-8")
    assert 'noCompress += listOf("onnx", "data", "bin", "gguf")' in gradle
    assert "\n@RUNTIME@\n" in gradle  # lines of their own
    assert 'assetPacks += listOf(":models")' in gradle
    assert 'id("com.android.ai-pack")' in (ROOT / "models/build.gradle.kts").read_text(encoding="utf-8")
    assert (ROOT / "models/src/main/assets").is_dir()


def test_manifest_asks_for_no_permission() -> None:
    root = ElementTree.parse(ROOT / "app/src/main/AndroidManifest.xml").getroot()
    assert not list(root.iter("uses-permission"))


def test_the_librarys_sources_are_where_gradle_looks(cpu: Path) -> None:
    app = cpu / "gradle/app"
    gradle = (app / "build.gradle.kts").read_text(encoding="utf-8")
    (place,) = re.findall(r'cmake \{ path = file\("([^"]+)"\)', gradle)
    cmake = (app / place).read_text(encoding="utf-8")
    assert re.findall(r'targets \+= "(\w+)"', gradle) == re.findall(r"^add_library\((\w+) SHARED", cmake, re.MULTILINE)
    sources = {path.relative_to(app / "src/main/cpp").as_posix() for path in (app / "src/main/cpp").rglob("*.*")}
    own = template_files.runtimes()
    wanted = {path.relative_to(own).as_posix() for path in (own / "native/src").rglob("*.*")}
    assert sources >= {*wanted, "native/include/edgedecode.h", "native/jni/jni.cpp", "onnx/kernels/pool.cpp"}
    assert not [name for name in sources if name.endswith((".so", ".py", ".o")) or "check/" in name]
    for name in sources:  # each include of a file of ours is there
        text = (app / "src/main/cpp" / name).read_text(encoding="utf-8")
        for each in re.findall(r'^#include "([^"]+)"', text, re.MULTILINE):
            folders = (
                (app / "src/main/cpp" / name).parent,
                app / "src/main/cpp/native/src",
                app / "src/main/cpp/onnx/kernels",
            )
            assert any((folder / each).is_file() for folder in folders), (name, each)


def test_texts_of_the_app_are_those_that_the_code_names() -> None:
    strings = ElementTree.parse(ROOT / "app/src/main/res/values/strings.xml").getroot()
    given = {each.get("name") for each in strings}
    used = {name for path in FILES for name in re.findall(r"R\.string\.(\w+)", path.read_text(encoding="utf-8"))}
    assert used | {"app_name"} == given
