"""Stores past outputs on disk, as appended records with checksums.

If a file is damaged, of another format or unreadable, its outputs are lost with a notice, and decoding continues.
"""

from __future__ import annotations

import logging
import struct
import sys
import zlib
from array import array
from hashlib import sha256
from pathlib import Path

from edgedecode.cache import aside, cache_folder, open_private, user_cache

STORE_FOLDER = "store"
FILE_NBYTES = 1 << 20
"""Size at which a file is cut to its most recent half, which is some eight times what is held in memory."""
_MAGIC = b"edgedecode past outputs 1\n"
_RECORD = struct.Struct("<II")
"""Length in bytes and CRC-32 of the payload: little-endian 32-bit ids."""
_log = logging.getLogger("edgedecode")


class OutputFile:
    """One file per tokenizer, because ids mean something else to another tokenizer."""

    def __init__(self, path: Path, *, limit_nbytes: int = FILE_NBYTES) -> None:
        self._path = path
        self._limit = limit_nbytes
        self._usable = True

    @classmethod
    def of_tokenizer(cls, digest: str) -> OutputFile | None:
        """Return the file in the user's cache; None, with a notice, if that cannot be written."""
        folder = cache_folder(STORE_FOLDER, private=True)
        if folder is None:
            _log.warning("the cache %s cannot be written: past outputs are kept in memory only", user_cache())
            return None
        return cls(folder / f"{sha256(digest.encode()).hexdigest()[:32]}.outputs")

    def load(self, tokens: int, *, vocabulary_size: int) -> list[array[int]]:
        """Return the most recent outputs, oldest first, of at most `tokens` ids in total; rewrite a damaged file.

        Outputs with ids outside the vocabulary are skipped.
        """
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            self._give_up(error)
            return []
        records, valid = _records(data)
        if not valid:
            _log.warning("%s is damaged or of another version: %d of its outputs are kept", self._path, len(records))
            self._write(records)
        latest: list[array[int]] = []
        for record in reversed(records):
            ids = _ids(record)
            if not ids or min(ids) < 0 or max(ids) >= vocabulary_size:
                continue
            tokens -= len(ids) + 1
            if tokens < 0:
                break
            latest.append(ids)
        return latest[::-1]

    def append(self, output: array[int]) -> None:
        """Append one output. If that fails, warn once and stop using the file."""
        if not self._usable:
            return
        payload = output.tobytes() if sys.byteorder == "little" else _swapped(output).tobytes()
        record = _RECORD.pack(len(payload), zlib.crc32(payload)) + payload
        try:
            with open(self._path, "ab", opener=open_private) as file:
                file.write(record if file.tell() else _MAGIC + record)
                length = file.tell()
        except OSError as error:
            self._give_up(error)
            return
        if length > self._limit:
            self._halve()

    def _halve(self) -> None:
        try:
            records, _ = _records(self._path.read_bytes())
        except OSError as error:
            self._give_up(error)
            return
        kept, nbytes = len(records), 0
        while kept and nbytes + len(records[kept - 1]) <= self._limit // 2:
            kept -= 1
            nbytes += len(records[kept]) + _RECORD.size
        self._write(records[kept:])

    def _write(self, records: list[bytes]) -> None:
        """Replace the file atomically."""
        try:
            with aside(self._path) as fresh, open(fresh, "wb", opener=open_private) as file:
                file.write(_MAGIC)
                for record in records:
                    file.write(_RECORD.pack(len(record), zlib.crc32(record)) + record)
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self._usable = False
        _log.warning("%s: %s: past outputs are kept in memory only", self._path, error.strerror or error)


def _records(data: bytes) -> tuple[list[bytes], bool]:
    """Return the records up to the first invalid one, and whether all are valid."""
    if not data.startswith(_MAGIC):
        return [], not data
    records: list[bytes] = []
    place = len(_MAGIC)
    while place + _RECORD.size <= len(data):
        nbytes, checksum = _RECORD.unpack_from(data, place)
        payload = data[place + _RECORD.size : place + _RECORD.size + nbytes]
        if len(payload) != nbytes or nbytes % 4 or zlib.crc32(payload) != checksum:
            return records, False
        records.append(payload)
        place += _RECORD.size + nbytes
    return records, place == len(data)


def _ids(record: bytes) -> array[int]:
    ids = array("i", record)
    return ids if sys.byteorder == "little" else _swapped(ids)


def _swapped(ids: array[int]) -> array[int]:
    result = ids[:]
    result.byteswap()
    return result
