"""Rules about the APK that carries a bundle's models."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo
from zlib import crc32

from ..apk import APK, UNCOMPRESSED, is_carried
from ..bundle import BUNDLE_NAME
from .finding import Fault, LintedBundle

_ALIGNMENT = 4
_LOCAL_HEADER = struct.Struct("<26xHH")
"""The end of an entry's header in the file: the lengths of its name and of its extra field."""
_SIGNATURE = b"APK Sig Block 42"
"""Ends the block with the signatures of schemes 2 and 3, before the central directory."""
_AGAIN = "package again with --apk, or remove it"


def apk(found: LintedBundle) -> Iterator[Fault]:
    if APK not in found.sound:
        return
    path = found.root / APK
    try:
        with ZipFile(path) as archive, path.open("rb") as file:
            entries = {each.filename: each for each in archive.infolist()}
            file.seek(max(0, archive.start_dir - len(_SIGNATURE)))
            if file.read(len(_SIGNATURE)) != _SIGNATURE:
                yield Fault(APK, "is not signed", _AGAIN)
            if f"assets/{BUNDLE_NAME}" not in entries:  # it lists the APK itself, so that inside differs
                yield Fault(APK, f"does not carry {BUNDLE_NAME}", _AGAIN)
            for name in sorted(filter(is_carried, found.bundle.files)):
                if name in found.sound and (what := _difference(entries, name, found.root / name, apk=path)):
                    yield Fault(APK, f"{what} {name}", _AGAIN)
    except (BadZipFile, OSError, struct.error, ValueError) as error:
        yield Fault(APK, f"is no APK: {error}", _AGAIN)


def _difference(entries: dict[str, ZipInfo], name: str, path: Path, *, apk: Path) -> str:
    """Return how the APK's entry differs from the bundle's file; empty: not at all."""
    entry = entries.get(f"assets/{name}")
    if entry is None:
        return "does not carry"
    if entry.file_size != path.stat().st_size or _checksum(path) != entry.CRC:
        return "has another content of"
    if PurePosixPath(name).suffix[1:] not in UNCOMPRESSED:
        return ""
    if entry.compress_type != ZIP_STORED:
        return "compresses"
    with apk.open("rb") as file:
        file.seek(entry.header_offset)
        lengths = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    start = entry.header_offset + _LOCAL_HEADER.size + sum(lengths)
    return f"does not align to {_ALIGNMENT} bytes" if start % _ALIGNMENT else ""


def _checksum(path: Path) -> int:
    found = 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            found = crc32(chunk, found)
    return found
