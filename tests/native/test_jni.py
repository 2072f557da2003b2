"""The library from Java and Kotlin: any character, exceptions of callbacks, threads, closing while running.

`JniChecks.java` calls the functions that the Kotlin class declares. The class itself is compiled where KOTLIN_COMPILER
names a folder with the jars of a Kotlin compiler, such as `lib` of the npm package `kotlin-compiler`.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from edgedecode.export.bundles import template_files
from tests.made_once import run_folder
from tests.native.interface import Library
from tests.native.test_models import ENGINE, options, packaged

CLASS = Path(template_files.__file__).parent / "templates/gradle/app/src/main/kotlin/edgedecode/Edgedecode.kt"
JAVA_TYPES = {"ByteArray": "byte[]", "Long": "long", "Int": "int", "Predicate<ByteArray>": "Predicate<byte[]>"}
TEXT = "Say “émile” in 東京 🙂 twice."

pytestmark = pytest.mark.skipif(ENGINE is None, reason="this onnxruntime has no library of its own")


@pytest.fixture(scope="module")
def library(native_build: Path) -> Path:
    cache = (native_build / "CMakeCache.txt").read_text(encoding="utf-8")
    if not re.search(r"^EDGEDECODE_JDK:PATH=.+$", cache, re.MULTILINE):
        pytest.skip("there is no JDK: javac is not on the path, or jni.h is missing")
    return native_build / "libedgedecode.so"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packaged(run_folder(tmp_path_factory) / "native")


def run(command: Sequence[object], *, folder: Path) -> list[str]:
    done = subprocess.run([*map(str, command)], capture_output=True, cwd=folder, timeout=280, check=False)
    words = done.stdout.decode() + done.stderr.decode()
    assert done.returncode == 0, words[-4000:]
    assert "WARNING in native method" not in words, words[-4000:]  # of -Xcheck:jni
    return done.stdout.decode().splitlines()


def java_class() -> str:
    """Return the Kotlin object's functions as a Java class."""
    found = re.findall(r"external fun (\w+)\((.*?)\)(?:: (\w+))?$", CLASS.read_text(encoding="utf-8"), re.MULTILINE)
    lines = []
    for name, arguments, returned in found:
        parts = [each.split(": ") for each in arguments.split(", ")]
        given = ", ".join(f"{JAVA_TYPES[kind]} {word}" for word, kind in parts)
        lines.append(f"public static native {JAVA_TYPES[returned] if returned else 'void'} {name}({given});")
    assert len(lines) == 11
    return "package edgedecode; import java.util.function.Predicate; public class Native {" + "\n".join(lines) + "}"


def test_java_calls_the_library(library: Path, folder: Path, tmp_path: Path) -> None:
    odd = Path(shutil.copytree(folder, tmp_path / "päck 🙂 'x'"))
    (tmp_path / "edgedecode").mkdir()
    (tmp_path / "edgedecode/Native.java").write_text(java_class(), encoding="utf-8")
    shutil.copy(Path(__file__).parent / "JniChecks.java", tmp_path)
    run(["javac", "-encoding", "UTF-8", "-d", ".", "edgedecode/Native.java", "JniChecks.java"], folder=tmp_path)
    request = {"message": TEXT, "max_tokens": 40, "seed": 5, "temperature": 0.9}
    java = ["env", "LC_ALL=C.UTF-8", "java", "-Xcheck:jni", "-Dfile.encoding=UTF-8", "-cp", ".", "JniChecks"]
    said = run([*java, odd, options(), library, json.dumps(request)], folder=tmp_path)
    plan, info, stats, text, *refused, last = said
    assert last == "all held"
    assert json.loads(plan)["total"] > 0
    assert json.loads(info)["name"] == "demo"
    pack = Library(library).open(folder, **json.loads(options()))
    session = pack.session()
    session.generate(**request)
    assert json.loads(stats)["tokens"] == session.tokens()
    assert bytes(each % 256 for each in json.loads(text)) == "".join(session.pieces).encode()
    pack.close()
    for line, wanted in zip(
        refused, ("/nowhere/é? is", "unknown option a", "has one of", "a character 0"), strict=True
    ):
        assert wanted in line


def test_the_kotlin_class_answers(library: Path, folder: Path, tmp_path: Path) -> None:
    jars = os.environ.get("KOTLIN_COMPILER")
    if not jars:
        pytest.skip("KOTLIN_COMPILER does not name a folder with the jars of a Kotlin compiler")
    standard = Path(jars) / "kotlin-stdlib.jar"
    compiler = ["java", "-cp", f"{jars}/*", "org.jetbrains.kotlin.cli.jvm.K2JVMCompiler", "-no-stdlib", "-no-reflect"]
    sources = [CLASS, Path(__file__).parent / "KotlinChecks.kt"]
    run([*compiler, "-Werror", "-cp", standard, "-d", "classes", *sources], folder=tmp_path)
    java = ["env", "LC_ALL=C.UTF-8", "java", "-Xcheck:jni", f"-Djava.library.path={library.parent}"]
    said = run([*java, "-cp", f"classes:{standard}", "KotlinChecksKt", folder, options(), TEXT], folder=tmp_path)
    asked, stats, text, last = said
    assert last == "all held"
    request = json.loads(asked)
    assert request["message"] == TEXT + '\0"\\\n'
    pack = Library(library).open(folder, **json.loads(options()))
    session = pack.session(seed=3, temperature=0.8)
    session.generate(**request)
    assert json.loads(stats)["tokens"] == session.tokens()
    assert bytes(int(each) % 256 for each in text.split()) == "".join(session.pieces).encode()
    pack.close()
