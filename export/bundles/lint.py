"""Checks a bundle for what a store or a device refuses. A new rule is a function and a row of `RULES`.

That a bundle is complete and agrees with itself is tested on the code that writes it; here is what the pack, the device
or the app's developer bring: damaged copies, an edited project, native libraries, sizes, licences.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple, TypeAlias

from edgedecode.errors import ManifestError
from edgedecode.onnx_format.graph_check import Weights, check_graph
from edgedecode.pack.integrity import file_sha256
from edgedecode.text.printable import counted, shown

from .bundle import BUNDLE_NAME, Bundle
from .elf_file import ARCHITECTURES, BIONIC, SYSTEM, NativeLibrary, bionic_levels, read_library

UNREADABLE = "description"
_GRADLE = "gradle/app/build.gradle.kts"
_LIBRARY, _OURS = "libedgedecode.so", ("edgedecode_", "Java_edgedecode_")
_AGAIN = "make the bundle again"
_PAGE = 16 << 10
"""Pages of newer devices, which do not load libraries that are aligned to less."""
_PACK_NBYTES, _TOTAL_NBYTES = 1_500_000_000, 4_000_000_000
"""Google Play's limits on one asset or AI pack, and on all packs of an app."""
_UNCOMPRESSED = ("onnx", "data", "bin", "gguf")
"""Suffixes of files that the app maps."""
_VENDOR = re.compile(r"(libQnn|libSnpe|libsnpe|libcdsprpc|Qnn).*\.(so(\.\d+)*|dll)$")
_NAME = re.compile(r"[A-Za-z0-9._+/-]+")
_MOST_NBYTES = 64 << 20
"""Largest text that is read."""
_BUILT = ("__pycache__", ".gradle", "build", ".venv")
"""Folders in which Gradle and Python leave what they made."""

Level: TypeAlias = Literal["error", "warning"]
Faults: TypeAlias = Iterator[tuple[str, str]]
"""Where a rule does not hold: the file, relative to the bundle, and what is wrong with it."""


class LintedBundle:
    """A bundle and the files of its folder."""

    def __init__(self, root: Path, bundle: Bundle) -> None:
        self.root, self.bundle = root, bundle
        self.is_android = bundle.target.startswith("android")

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """The files of the folder, whether listed or not."""
        found = []
        for folder, folders, files in os.walk(self.root):
            folders[:] = [name for name in folders if name not in _BUILT]
            found += [(Path(folder) / name).relative_to(self.root).as_posix() for name in files]
        return tuple(sorted(found))

    @cached_property
    def libraries(self) -> dict[str, NativeLibrary]:
        """The native libraries for Android, by name. Raises RuntimeUnavailable without pyelftools."""
        names = [name for name in self.paths if name.endswith(".so") and self.is_ordinary(name)]
        return {name: read_library(self.root / name) for name in names}

    @property
    def sound_libraries(self) -> list[tuple[str, NativeLibrary]]:
        """Those that can be read."""
        return [(name, library) for name, library in self.libraries.items() if not library.damage]

    def is_ordinary(self, name: str) -> bool:
        """Return whether there is a file of this name that is no link, device or pipe, nor in a linked folder."""
        parts = (name, *map(str, PurePosixPath(name).parents[:-1]))
        return (self.root / name).is_file() and not any((self.root / part).is_symlink() for part in parts)

    def text(self, name: str) -> str:
        """Return a file's text; empty if it cannot be read, is not a regular file, or is too large."""
        path = self.root / name
        try:
            if not self.is_ordinary(name) or path.stat().st_size > _MOST_NBYTES:
                return ""
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return ""


class Rule(NamedTuple):
    """what: what holds in a good bundle, for the help. remedy: of all its findings."""

    id: str
    level: Level
    what: str
    check: Callable[[LintedBundle], Faults]
    remedy: str


@dataclass(frozen=True, slots=True)
class Finding:
    """A place where a rule does not hold."""

    rule: str
    level: Level
    file: str
    message: str
    remedy: str


def _digest(found: LintedBundle) -> Faults:
    for name, entry in sorted(found.bundle.files.items()):
        path = found.root / name
        if not found.is_ordinary(name):
            yield name, "is missing, or is a link, which adb and asset packs do not take"
        elif path.stat().st_size != entry.nbytes:
            yield name, f"has {path.stat().st_size} bytes, {entry.nbytes} are listed"
        elif file_sha256(path) != entry.sha256:
            yield name, "has another content than was packaged"


def _file_name(found: LintedBundle) -> Faults:
    for name in sorted(found.bundle.files):
        if found.is_android and not _NAME.fullmatch(name):
            yield name, "has a name that adb and asset packs refuse"


def _play_size(found: LintedBundle) -> Faults:
    sizes = {name: entry.nbytes for name, entry in found.bundle.files.items() if found.is_android}
    if sum(sizes.values()) > _TOTAL_NBYTES:
        yield BUNDLE_NAME, f"has {sum(sizes.values()) / 1e9:.2f} GB, an app on Google Play may have 4 GB"
    for name, nbytes in sizes.items():
        if nbytes > _PACK_NBYTES:
            yield name, f"has {nbytes / 1e9:.2f} GB, a pack on Google Play may have 1.5 GB"


def _abi(found: LintedBundle) -> Faults:
    text = _code(found.text(_GRADLE))
    given = {abi for line in re.findall(r"abiFilters[^\n]*", text) for abi in re.findall(r'"([^"]+)"', line)}
    if text and given != {*found.bundle.abi.split()}:
        yield _GRADLE, f"does not restrict abiFilters to {found.bundle.abi}"


def _min_sdk(found: LintedBundle) -> Faults:
    numbers = re.findall(r"\bminSdk\s*=\s*(\d+)", _code(found.text(_GRADLE)))
    if numbers and int(numbers[0]) < found.bundle.min_sdk:
        yield _GRADLE, f"has minSdk {numbers[0]}, below {found.bundle.min_sdk}"


def _no_compress(found: LintedBundle) -> Faults:
    text = _code(found.text(_GRADLE))
    given = {suffix for line in re.findall(r"noCompress[^\n]*", text) for suffix in re.findall(r'"\.?(\w+)"', line)}
    used = {PurePosixPath(name).suffix[1:] for name in found.bundle.files} & {*_UNCOMPRESSED}
    if text and (lacking := sorted(used - given)):
        yield _GRADLE, f"compresses {', '.join(lacking)} files, which then cannot be mapped"


def _processor(found: LintedBundle) -> Faults:
    for name, library in found.libraries.items():
        if library.damage:
            yield name, f"is not a native library: {library.damage}"
        else:
            folder = PurePosixPath(name).parent.name  # an ABI, where Gradle looks for libraries
            wanted = [folder] if folder in ARCHITECTURES else found.bundle.abi.split()
            if library.architecture not in [ARCHITECTURES.get(abi, abi) for abi in wanted]:
                yield name, f"is for another processor than {' or '.join(wanted)}"


def _page_size(found: LintedBundle) -> Faults:
    for name, library in found.sound_libraries:
        if library.alignment < _PAGE or library.alignment % _PAGE:
            yield name, f"has segments aligned to {library.alignment} bytes; devices with pages of 16 KB do not load it"


def _exports(found: LintedBundle) -> Faults:
    for name, library in found.sound_libraries:
        other = [each for each in library.exports if not each.startswith(_OURS)]
        if PurePosixPath(name).name == _LIBRARY and other:
            yield name, f"exports {counted(len(other), 'symbol')} besides its interface, such as {other[0]}"


def _bionic(found: LintedBundle) -> Faults:
    beside = {PurePosixPath(name).name for name in found.paths}
    for name, library in found.sound_libraries:
        if other := [each for each in library.needed if each not in SYSTEM | beside]:
            yield name, f"needs {other[0]}, which Android does not have and no file here is"
        if other := [each for each in library.versions if each.startswith(("GLIBC", "CXXABI", "GCC"))]:
            yield name, f"wants symbols of version {other[0]}, which Android's C library does not have"
            continue
        levels = bionic_levels()
        alone = {*library.needed} <= BIONIC  # else the others may have them
        if lacking := [each for each in library.imports if each not in levels] if alone else []:
            yield name, f"wants {counted(len(lacking), 'symbol')} that Android's C library does not have: {lacking[0]}"
        if late := [each for each in library.imports if levels.get(each, 0) > found.bundle.min_sdk]:
            level = max(levels[each] for each in late)
            yield name, f"wants {late[0]}: API level {level}, the bundle is for {found.bundle.min_sdk}"


def _vendor_library(found: LintedBundle) -> Faults:
    for name in found.paths:
        if _VENDOR.search(PurePosixPath(name).name):
            yield name, "is a library of Qualcomm's, which may not be passed on"


def _license(found: LintedBundle) -> Faults:
    for role, model in found.bundle.models.items():
        if model.license in ("", "unknown"):
            yield BUNDLE_NAME, f"names no licence of the {role}"


def _graph(found: LintedBundle) -> Faults:
    for model in found.bundle.models.values():
        for graph in model.graphs:
            if graph.provider != "cpu" or not (found.is_ordinary(graph.file) and found.is_ordinary(model.weights)):
                continue
            weights = Weights(PurePosixPath(model.weights).name, (found.root / model.weights).stat().st_size)
            try:
                check_graph(found.root / graph.file, weights)
            except (ValueError, OSError) as error:
                yield graph.file, f"does not load: {error}"


def _code(text: str) -> str:
    """Return Kotlin without its comments."""
    return re.sub(r"(?<!:)//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)


_SMALLER = "quantize further, or split the file over several packs"
_EXPORT = "export the pack again and package it again"
_ABI = "build it with the NDK for the ABI of its folder"
_ALIGN = "link it with -Wl,-z,max-page-size=16384"
_REMOVE = "remove it: Gradle or pip fetches it"
_COPY = "copy the bundle again, or make it again with `edgedecode package`"
_RENAME = "use letters, digits and . _ + -"
_RAISE = "raise it to the bundle's minSdk"
_FILTER = "use ndk { abiFilters += ... } with the bundle's ABIs alone"
_MAPPED = "add them to androidResources.noCompress"
_INSIDE = "link it with the version script native/exports.map"
_NDK = "build it with the NDK, its C++ library linked in, for the bundle's minSdk"
_STATE = "state the base model's licence in the pack"

RULES: Sequence[Rule] = (
    Rule("digest", "error", "listed files are there, with their size and sha256", _digest, _COPY),
    Rule("graph", "error", "graphs are sound", _graph, _EXPORT),
    Rule("file-name", "error", "asset packs and adb take the names", _file_name, _RENAME),
    Rule("play-size", "error", "sizes are within Google Play's limits", _play_size, _SMALLER),
    Rule("abi", "error", "the project builds for the bundle's ABIs alone", _abi, _FILTER),
    Rule("min-sdk", "error", "the project's Android version suffices", _min_sdk, _RAISE),
    Rule("no-compress", "error", "models stay uncompressed", _no_compress, _MAPPED),
    Rule("processor", "error", "native libraries are for the bundle's ABIs", _processor, _ABI),
    Rule("page-size", "error", "native libraries are aligned to 16 KB", _page_size, _ALIGN),
    Rule("exports", "error", "the native library exports its interface alone", _exports, _INSIDE),
    Rule("bionic", "error", "native libraries use what Android has at the bundle's API level", _bionic, _NDK),
    Rule("vendor-library", "error", "no library of Qualcomm's is passed on", _vendor_library, _REMOVE),
    Rule("license", "warning", "base models' licences are named", _license, _STATE),
)


def lint_bundle(root: Path) -> list[Finding]:
    """Return the findings of all rules, errors first.

    Raises ManifestError if there is no bundle at `root`, RuntimeUnavailable if it holds native libraries and pyelftools
    is missing.
    """
    try:
        found = LintedBundle(root, Bundle.load(root))
    except ManifestError as error:
        if not (root / BUNDLE_NAME).is_file():
            raise
        message = " ".join(str(error).split()).removeprefix(f"{root / BUNDLE_NAME} ")
        message = message.removesuffix(_AGAIN).rstrip(":; ")
        return [Finding(UNREADABLE, "error", BUNDLE_NAME, message, f"{_AGAIN} with `edgedecode package`")]
    findings = [
        Finding(rule.id, rule.level, shown(file), shown(message), rule.remedy)
        for rule in RULES
        for file, message in rule.check(found)
    ]
    return sorted(findings, key=lambda finding: finding.level)
