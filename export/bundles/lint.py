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

from edgedecode.errors import ManifestError, RuntimeUnavailable
from edgedecode.onnx_format.graph_check import Weights, check_graph
from edgedecode.pack.integrity import file_sha256
from edgedecode.text.printable import shown

from .bundle import BUNDLE_NAME, Bundle

UNREADABLE = "description"
_GRADLE = "gradle/app/build.gradle.kts"
_MANIFEST = "gradle/app/src/main/AndroidManifest.xml"
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


class NativeLibrary(NamedTuple):
    """alignment: the smallest of the loaded segments, in bytes. damage: why it cannot be read; empty: it can."""

    arm64: bool = False
    alignment: int = 0
    damage: str = ""


class LintedBundle:
    """A bundle and the files of its folder."""

    def __init__(self, root: Path, bundle: Bundle) -> None:
        self.root, self.bundle = root, bundle
        self.is_android = bundle.target.startswith("android")
        self.for_npu = any(graph.socs for model in bundle.models.values() for graph in model.graphs)

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
        return {name: _read_library(self.root / name) for name in names}

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
    if text and given != {found.bundle.abi}:
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


def _driver(found: LintedBundle) -> Faults:
    text = found.text(_MANIFEST)
    for library in found.bundle.libraries if text and found.for_npu else ():
        if not re.search(rf"<uses-native-library[^>]*{re.escape(library)}", text, re.DOTALL):
            yield _MANIFEST, f"does not declare {library}, so the NPU's driver stays closed to the app"


def _processor(found: LintedBundle) -> Faults:
    for name, library in found.libraries.items():
        if library.damage:
            yield name, f"is not a native library: {library.damage}"
        elif not library.arm64:
            yield name, "is for another processor"


def _page_size(found: LintedBundle) -> Faults:
    for name, library in found.libraries.items():
        if library.arm64 and (library.alignment < _PAGE or library.alignment % _PAGE):
            yield name, f"has segments aligned to {library.alignment} bytes; devices with pages of 16 KB do not load it"


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
_ARM64 = "build it for arm64-v8a"
_ALIGN = "link it with -Wl,-z,max-page-size=16384"
_REMOVE = "remove it: Gradle or pip fetches it"
_COPY = "copy the bundle again, or make it again with `edgedecode package`"
_RENAME = "use letters, digits and . _ + -"
_RAISE = "raise it to the bundle's minSdk"
_FILTER = "use ndk { abiFilters += ... } with the bundle's ABI alone"
_MAPPED = "add them to androidResources.noCompress"
_DECLARE = 'add <uses-native-library android:name="..." android:required="false"/>'
_STATE = "state the base model's licence in the pack"

RULES: Sequence[Rule] = (
    Rule("digest", "error", "listed files are there, with their size and sha256", _digest, _COPY),
    Rule("graph", "error", "graphs are sound", _graph, _EXPORT),
    Rule("file-name", "error", "asset packs and adb take the names", _file_name, _RENAME),
    Rule("play-size", "error", "sizes are within Google Play's limits", _play_size, _SMALLER),
    Rule("abi", "error", "the project builds for the bundle's ABI alone", _abi, _FILTER),
    Rule("min-sdk", "error", "the project's Android version suffices", _min_sdk, _RAISE),
    Rule("no-compress", "error", "models stay uncompressed", _no_compress, _MAPPED),
    Rule("driver", "error", "the app declares the NPU's driver", _driver, _DECLARE),
    Rule("processor", "error", "native libraries are for arm64", _processor, _ARM64),
    Rule("page-size", "error", "native libraries are aligned to 16 KB", _page_size, _ALIGN),
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


def _read_library(path: Path) -> NativeLibrary:
    try:
        from elftools.elf.elffile import ELFFile
    except ImportError:
        raise RuntimeUnavailable(
            f"lint reads {path.name} with pyelftools, which is missing: pip install 'edgedecode[export]'"
        ) from None
    try:
        with path.open("rb") as file:
            elf = ELFFile(file)
            alignments = [segment["p_align"] for segment in elf.iter_segments("PT_LOAD")]
            return NativeLibrary(elf.elfclass == 64 and elf.get_machine_arch() == "AArch64", min(alignments, default=0))
    except Exception as error:  # of a damaged file: its own exceptions, and those of seeking and unpacking
        return NativeLibrary(damage=str(error) or type(error).__name__)
