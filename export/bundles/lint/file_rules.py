"""Rules about a bundle's files: digests, listing, links, names."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from edgedecode.pack.integrity import file_sha256

from ..bundle import BUNDLE_NAME, SUMS_NAME
from ..template_files import required_files
from .finding import Fault, LintedBundle

_AGAIN = "copy the bundle again, or make it again with `edgedecode package`"


def missing(found: LintedBundle) -> Iterator[Fault]:
    for name in sorted(found.bundle.files):
        if not (found.root / name).exists():
            yield Fault(name, "is listed in bundle.json and is missing", _AGAIN)


def links(found: LintedBundle) -> Iterator[Fault]:
    for name in sorted({*found.paths, *found.bundle.files}):
        if found.is_link(name):
            yield Fault(name, "is a link, and adb and APKs take files only", "put the file itself there")
        elif (found.root / name).exists() and not (found.root / name).is_file():
            yield Fault(name, "is no ordinary file, and adb and APKs take files only", "put a file there")


def digests(found: LintedBundle) -> Iterator[Fault]:
    for name, entry in sorted(found.bundle.files.items()):
        path = found.root / name
        if not found.is_ordinary(name):
            continue
        if path.stat().st_size != entry.nbytes:
            yield Fault(name, f"has {path.stat().st_size} bytes, {entry.nbytes} are listed", _AGAIN)
        elif file_sha256(path) != entry.sha256:
            yield Fault(name, "has another content than was packaged", _AGAIN)


def sums(found: LintedBundle) -> Iterator[Fault]:
    if not found.is_ordinary(SUMS_NAME):
        yield Fault(SUMS_NAME, "is missing", _AGAIN)
        return
    wanted = {name: entry.sha256 for name, entry in found.bundle.files.items()}
    wanted[BUNDLE_NAME] = file_sha256(found.root / BUNDLE_NAME)
    lines = found.text(SUMS_NAME).splitlines()
    given = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    if given != wanted:
        names = sorted(name for name in {*given, *wanted} if given.get(name) != wanted.get(name))
        yield Fault(SUMS_NAME, f"does not agree with bundle.json about {names[0] or 'an empty line'}", _AGAIN)


def listed(found: LintedBundle) -> Iterator[Fault]:
    known = {*found.bundle.files, BUNDLE_NAME, SUMS_NAME}
    for name in found.paths:
        if name not in known:
            yield Fault(name, "is not listed in bundle.json", "move it out of the bundle, or package again")


def required(found: LintedBundle) -> Iterator[Fault]:
    wanted = required_files(found.bundle.target)
    if not any(name.startswith("gradle/") for name in found.bundle.files):  # a developer with a project of his own
        wanted = {name for name in wanted if not name.startswith("gradle/")}
    for name in sorted(wanted - found.bundle.files.keys()):
        yield Fault(name, "is not among the bundle's files", "package again")


def references(found: LintedBundle) -> Iterator[Fault]:
    for name in sorted(found.bundle.named() - found.bundle.files.keys()):
        yield Fault(BUNDLE_NAME, f"refers to {name}, which is not among its files", _AGAIN)


def cases(found: LintedBundle) -> Iterator[Fault]:
    ordered = sorted(found.bundle.files, key=lambda name: (name.casefold(), name))
    for one, other in pairwise(ordered):
        if one.casefold() == other.casefold():
            yield Fault(other, f"differs from {one} in case only, which Windows and macOS take for one", "rename one")


def executable(found: LintedBundle) -> Iterator[Fault]:
    for name in found.bundle.files:
        path = found.root / name
        if path.suffix == ".sh" and name in found.sound and not path.read_bytes().startswith(b"#!/bin/sh\n"):
            yield Fault(name, "does not begin with #!/bin/sh and a Unix line end", "copy it without changing line ends")


def self_test_code(found: LintedBundle) -> Iterator[Fault]:
    device = Path(__file__).parents[1] / "device"
    for path in sorted(device.glob("*.py")):
        name = f"selftest/{path.name}"
        own = found.root / name
        if name in found.sound and own.read_bytes() != path.read_bytes():
            yield Fault(name, "is not the program of this edgedecode", "package again, or use the version that made it")
