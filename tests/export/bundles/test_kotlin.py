"""The Android project in bundles: its conventions, and its Kotlin loop, which replays rounds of the Python loop.

The replay needs Java and a Kotlin compiler: KOTLIN_COMPILER names a folder with its jars.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt
import pytest

from edgedecode.export.bundles import template_files
from edgedecode.export.bundles.device.decode import decode

ROOT = Path(template_files.__file__).parent / "templates" / "gradle"
CODE = ROOT / "app/src/main/kotlin/edgedecode/app"
TESTS = ROOT / "app/src/test/kotlin/edgedecode/app"
PURE = ("Decode.kt", "Sampler.kt", "Json.kt", "Bundle.kt")
PLACEHOLDERS = {"APP_ID", "MIN_SDK", "NAME", "PROMPT", "RUNTIME"}
ANDROID = "{http://schemas.android.com/apk/res/android}"
VOCABULARY = 9

FILES = sorted(path for path in ROOT.rglob("*") if path.is_file())


def test_every_part_is_there() -> None:
    names = {path.relative_to(ROOT).as_posix() for path in FILES}
    assert names >= {"settings.gradle.kts", "build.gradle.kts", "app/build.gradle.kts", "models/build.gradle.kts"}
    assert {path.name for path in FILES} >= {*PURE, "GrowingModel.kt", "FixedModel.kt", "Models.kt", "README.md"}


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


def test_manifest_opens_the_npu_to_the_app() -> None:
    root = ElementTree.parse(ROOT / "app/src/main/AndroidManifest.xml").getroot()
    (library,) = root.iter("uses-native-library")
    assert library.get(f"{ANDROID}name") == "libcdsprpc.so"
    assert library.get(f"{ANDROID}required") == "false"
    assert not list(root.iter("uses-permission"))


def test_texts_of_the_app_are_those_that_the_code_names() -> None:
    strings = ElementTree.parse(ROOT / "app/src/main/res/values/strings.xml").getroot()
    given = {each.get("name") for each in strings}
    used = {name for path in FILES for name in re.findall(r"R\.string\.(\w+)", path.read_text(encoding="utf-8"))}
    assert used | {"app_name"} == given


@pytest.mark.parametrize("name", PURE)
def test_pure_code_imports_nothing_of_android(name: str) -> None:
    imports = re.findall(r"^import (\S+)", (CODE / name).read_text(encoding="utf-8"), re.MULTILINE)
    assert all(each.startswith(("kotlin.", "java.util.")) for each in imports)


class Toy:
    """A model whose logits are a fixed random function of the last tokens; `like` is mixed in, for good drafts."""

    def __init__(self, seed: int, *, like: int | None = None, context: int = 200) -> None:
        self.context, self.seeds, self.tokens = context, [seed] if like is None else [like, seed], list[int]()

    @property
    def length(self) -> int:
        return len(self.tokens)

    def read(self, tokens: Sequence[int], *, scored: int) -> npt.NDArray[np.float32]:
        rows = []
        for token in tokens:
            self.tokens.append(token)
            parts = [
                np.random.default_rng([seed, *self.tokens[-3:]]).standard_normal(VOCABULARY) for seed in self.seeds
            ]
            rows.append(4 * parts[0] + sum(parts[1:]))
        return np.array(rows[-scored:], np.float32)

    def crop(self, length: int) -> None:
        del self.tokens[length:]


def recorded_rounds() -> list[dict[str, object]]:
    """Answer prompts with the Python loop: plainly, with drafts, with uncertain drafts left out, with sampling."""
    found: list[dict[str, object]] = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        prompt = [int(token) for token in rng.integers(0, VOCABULARY, 1 + seed)]
        length, most, ends = seed % 6, 5 + 4 * seed, ([0], [])[seed % 2]
        context = len(prompt) + most - 3 if seed % 4 == 3 else 200  # answers that end where the context does
        draft_context = len(prompt) + most // 2 if seed % 4 in (1, 3) else 200

        def choose(row: npt.NDArray[np.float32], rng: np.random.Generator = rng) -> int:
            weights = np.exp(row.astype(np.float64))
            return int(rng.choice(VOCABULARY, p=weights / weights.sum()))

        answer, rounds = decode(
            Toy(seed, context=context),
            Toy(seed + 100, like=seed, context=draft_context),
            prompt,
            most=most,
            ends=ends,
            draft_length=length,
            least_chance=(0, 0.5)[seed // 2 % 2],
            choose=choose if seed > 8 else None,
        )
        found.append({
            "prompt": prompt, "most": most, "ends": ends, "draft_length": length, "answer": answer,
            "context": context, "draft_context": draft_context, "rounds": [each._asdict() for each in rounds],
        })  # fmt: skip
    return found


JUNIT = """
package org.junit
annotation class Test
object Assert {
    @JvmStatic fun assertEquals(wanted: Any?, found: Any?) = check(wanted == found) { "$wanted is not $found" }
    @JvmStatic fun assertEquals(wanted: Double, found: Double, gap: Double) =
        check(Math.abs(wanted - found) <= gap) { "$wanted is not $found" }
    @JvmStatic fun assertTrue(found: Boolean) = check(found)
    @JvmStatic fun assertTrue(message: String, found: Boolean) = check(found) { message }
}
"""
MAIN = """
fun main() {
    for (test in listOf(edgedecode.app.DecodeTest(), edgedecode.app.PartsTest())) {
        for (method in test.javaClass.declaredMethods) {
            if (method.isAnnotationPresent(org.junit.Test::class.java)) {
                method.invoke(test)
                println("passed: " + method.name)
            }
        }
    }
}
"""


def test_kotlin_loop_replays_rounds_of_the_python_loop(tmp_path: Path) -> None:
    """The project's own unit tests, compiled and run; of JUnit they get the few names that they use."""
    compiler, java = os.environ.get("KOTLIN_COMPILER"), shutil.which("java")
    if not compiler:
        pytest.skip("KOTLIN_COMPILER does not name a folder with the jars of a Kotlin compiler")
    if java is None:
        pytest.skip("java is not installed")
    recorded = recorded_rounds()
    rounds = [one for each in recorded for one in each["rounds"]]  # type: ignore[attr-defined]
    assert any(len(one["chosen"]) > len(one["drafts"]) > 1 for one in rounds)
    assert any(0 < len(one["chosen"]) <= len(one["drafts"]) for one in rounds)
    (tmp_path / "rounds.json").write_text(json.dumps({"conversations": recorded}), encoding="utf-8")
    for name, text in (("JUnit.kt", JUNIT), ("Main.kt", MAIN)):
        (tmp_path / name).write_text(text, encoding="utf-8")
    sources = [CODE / name for name in PURE] + sorted(TESTS.glob("*.kt")) + sorted(tmp_path.glob("*.kt"))
    jars = str(Path(compiler) / "*")
    command = [java, "-cp", jars, "org.jetbrains.kotlin.cli.jvm.K2JVMCompiler", "-no-stdlib", "-no-reflect", "-Werror"]
    libraries = os.pathsep.join(str(path) for path in sorted(Path(compiler).glob("kotlin-stdlib*.jar")))
    out = tmp_path / "classes"
    _run([*command, "-cp", libraries, "-d", str(out), *map(str, sources)])
    words = _run([java, "-cp", os.pathsep.join([str(out), str(tmp_path), libraries]), "MainKt"])
    assert f"replayed {len(recorded)} answers, {len(rounds)} rounds" in words
    wanted = sum(path.read_text(encoding="utf-8").count("@Test") for path in TESTS.glob("*.kt"))
    assert words.count("passed: ") == wanted > 5


def _run(command: Sequence[str]) -> str:
    child = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert child.returncode == 0, child.stdout + child.stderr
    return child.stdout
