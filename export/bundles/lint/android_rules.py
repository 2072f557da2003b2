"""Rules of Android and Google Play: native libraries, the project's settings, sizes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from xml.etree import ElementTree

from ..apk import APK, UNCOMPRESSED
from ..targets import TARGETS
from .elf import AARCH64, read_library
from .finding import Fault, LintedBundle

_AGAIN = "package it again"
_ANDROID = "{http://schemas.android.com/apk/res/android}"
_PAGE = 16 << 10
_PACK_NBYTES, _TOTAL_NBYTES = 1_500_000_000, 4_000_000_000
"""Google Play's limits on one asset or AI pack, and on all packs of an app."""
_GRADLE = "gradle/app/build.gradle.kts"
_MANIFEST = "gradle/app/src/main/AndroidManifest.xml"
_VENDOR = re.compile(r"(libQnn|libSnpe|libsnpe|libcdsprpc|Qnn).*\.(so(\.\d+)*|dll)$")
_NAME = re.compile(r"[A-Za-z0-9._+-]+")


def target(found: LintedBundle) -> Iterator[Fault]:
    if found.bundle.target not in TARGETS:
        yield Fault("bundle.json", f"is for {found.bundle.target!r}, not {', '.join(TARGETS)}", "package again")


def abi(found: LintedBundle) -> Iterator[Fault]:
    wanted = TARGETS[found.bundle.target].abi if found.bundle.target in TARGETS else found.bundle.abi
    if found.bundle.abi != wanted:
        yield Fault("bundle.json", f"has the ABI {found.bundle.abi!r}, devices need {wanted}", f"set abi to {wanted}")
    text = _code(found.text(_GRADLE))
    given = {abi for line in re.findall(r"abiFilters[^\n]*", text) for abi in re.findall(r'"([^"]+)"', line)}
    if text and found.is_android and given != {"arm64-v8a"}:
        yield Fault(_GRADLE, "does not restrict abiFilters to arm64-v8a", 'use ndk { abiFilters += "arm64-v8a" }')


def min_sdk(found: LintedBundle) -> Iterator[Fault]:
    wanted = TARGETS[found.bundle.target].min_sdk if found.bundle.target in TARGETS else 0
    if found.bundle.min_sdk < wanted:
        why = "NPUs need uses-native-library of API level 31" if found.for_npu else "its libraries need it"
        yield Fault("bundle.json", f"has min_sdk {found.bundle.min_sdk} below {wanted}: {why}", f"set it to {wanted}")
    numbers = re.findall(r"\bminSdk\s*=\s*(\d+)", _code(found.text(_GRADLE)))
    if numbers and int(numbers[0]) < found.bundle.min_sdk:
        yield Fault(_GRADLE, f"has minSdk {numbers[0]} below {found.bundle.min_sdk}", "set it as in bundle.json")


def no_compress(found: LintedBundle) -> Iterator[Fault]:
    text = _code(found.text(_GRADLE))
    if not text:
        return
    line = re.search(r"noCompress[^\n]*", text)
    given = set(re.findall(r'"\.?(\w+)"', line[0])) if line else set()
    used = {PurePosixPath(name).suffix[1:] for name in found.bundle.files} & {*UNCOMPRESSED}
    if lacking := sorted(used - given):
        words = ", ".join(f'"{each}"' for each in lacking)
        yield Fault(
            _GRADLE,
            f"compresses {', '.join(lacking)} files, which then cannot be mapped",
            f"add {words} to androidResources.noCompress",
        )


def project(found: LintedBundle) -> Iterator[Fault]:
    if _MANIFEST not in found.bundle.files:
        return
    try:
        root = ElementTree.fromstring(found.text(_MANIFEST))
    except ElementTree.ParseError as error:
        yield Fault(_MANIFEST, f"is no XML: {error}", _AGAIN)
        return
    names = [each.get(f"{_ANDROID}name") for each in root.iterfind("application/activity")]
    if root.tag != "manifest" or "edgedecode.app.MainActivity" not in names:
        yield Fault(_MANIFEST, "does not declare the app's activity", _AGAIN)


def driver(found: LintedBundle) -> Iterator[Fault]:
    text = found.text(_MANIFEST)
    if not text or not found.for_npu:
        return
    for library in found.bundle.libraries:
        if not re.search(rf"<uses-native-library[^>]*{re.escape(library)}", text, re.DOTALL):
            yield Fault(
                _MANIFEST,
                f"does not declare {library}, so the NPU's driver stays closed to the app",
                f'add <uses-native-library android:name="{library}" android:required="false"/>',
            )


def libraries(found: LintedBundle) -> Iterator[Fault]:
    if found.for_npu and found.is_android and not found.bundle.libraries:
        yield Fault("bundle.json", "names no driver library for its NPU graphs", "set libraries to libcdsprpc.so")


def processor(found: LintedBundle) -> Iterator[Fault]:
    for name in _native(found):
        try:
            machine = read_library(found.root / name).machine
        except (ValueError, OSError) as error:
            yield Fault(name, f"is no library for a phone: {error}", "build it for arm64-v8a")
            continue
        if machine != AARCH64:
            yield Fault(name, f"is for another processor (ELF machine {machine})", "build it for arm64-v8a")


def page_size(found: LintedBundle) -> Iterator[Fault]:
    for name in _native(found):
        try:
            alignment = read_library(found.root / name).alignment
        except (ValueError, OSError):
            continue
        if alignment < _PAGE or alignment % _PAGE:
            yield Fault(
                name,
                f"has segments aligned to {alignment} bytes; devices with pages of 16 KB do not load it",
                "link it with -Wl,-z,max-page-size=16384",
            )


def vendor_libraries(found: LintedBundle) -> Iterator[Fault]:
    for name in found.paths:
        if _VENDOR.search(PurePosixPath(name).name):
            yield Fault(
                name, "is a library of Qualcomm's, which may not be passed on", "remove it: Gradle or pip fetches it"
            )


def play_size(found: LintedBundle) -> Iterator[Fault]:
    if not found.is_android:
        return
    sizes = {name: entry.nbytes for name, entry in found.bundle.files.items() if name != APK}
    total = sum(sizes.values())
    if total > _TOTAL_NBYTES:
        yield Fault("bundle.json", f"has {total / 1e9:.2f} GB, an app on Google Play may have 4 GB", "quantize further")
    for role, model in found.bundle.models.items():
        for name in {model.weights, model.gguf, *(graph.binary for graph in model.graphs)} - {""}:
            if sizes.get(name, 0) > _PACK_NBYTES:
                yield Fault(
                    name,
                    f"of the {role} has {sizes[name] / 1e9:.2f} GB, a pack on Google Play may have 1.5 GB",
                    "quantize further, or split the file over several packs",
                )


def names(found: LintedBundle) -> Iterator[Fault]:
    for name in sorted(found.bundle.files):
        if found.is_android and not all(_NAME.fullmatch(part) for part in PurePosixPath(name).parts):
            yield Fault(name, "has a name that adb and asset packs refuse", "use letters, digits and . _ + -")


def _code(text: str) -> str:
    """Return Kotlin without its comments."""
    return re.sub(r"(?<!:)//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)


def _native(found: LintedBundle) -> list[str]:
    return [name for name in found.paths if name.endswith(".so") and found.is_ordinary(name)]
