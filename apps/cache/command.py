"""The verb `cache`: show and clear what edgedecode keeps in the user's cache folder."""

from __future__ import annotations

import json
import shutil
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from edgedecode.cache import AREAS, user_cache
from edgedecode.commands import Command
from edgedecode.locks import FOLDER, take_lock
from edgedecode.memory.sizes import format_nbytes

__all__ = ["command"]


@dataclass(frozen=True, slots=True)
class Area:
    """One folder of the cache."""

    path: Path
    files: int
    nbytes: int

    @classmethod
    def measure(cls, path: Path) -> Area:
        found = [path] if path.is_symlink() or not path.is_dir() else list(path.rglob("*"))
        files = [file for file in found if file.is_symlink() or not file.is_dir()]
        return cls(path, len(files), sum(file.lstat().st_size for file in files))


class CacheCommand:
    """`cache show` and `cache clear`. Only past messages and answers are not made or downloaded again when needed."""

    name = "cache"
    help = "show or clear the user's cache"

    def configure(self, parser: ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
        show = actions.add_parser("show", help="list the cache's folders and their sizes", allow_abbrev=False)
        show.add_argument("--json", action="store_true", help="end with one JSON line")
        clear = actions.add_parser("clear", help="delete the named parts of the cache", allow_abbrev=False)
        for name, content in AREAS.items():
            clear.add_argument(f"--{name}", action="append_const", dest="areas", const=name, help=content)
        clear.add_argument("--all", action="store_true", help="everything, including downloaded packs")
        clear.set_defaults(usage_error=clear.error)

    def run(self, arguments: Namespace) -> int:
        if arguments.action == "show":
            _show(_areas(), json_line=arguments.json)
            return 0
        if not arguments.all and not arguments.areas:
            arguments.usage_error("say what to delete: --all, or one or more of " + ", ".join(f"--{n}" for n in AREAS))
        wanted = None if arguments.all else set(arguments.areas)
        _clear([area for area in _areas() if wanted is None or area.path.name in wanted])
        return 0


def _areas() -> list[Area]:
    root = user_cache()
    return [Area.measure(path) for path in sorted(root.iterdir())] if root.is_dir() else []


def _show(areas: Sequence[Area], *, json_line: bool) -> None:
    print(f"{user_cache()}: {format_nbytes(sum(area.nbytes for area in areas))}")
    for area in areas:
        content = AREAS.get(area.path.name, "")
        print(f"  {area.path.name:<10}  {format_nbytes(area.nbytes):>10}  {area.files:>6} files  {content}".rstrip())
    if json_line:
        kept = {area.path.name: {"files": area.files, "nbytes": area.nbytes} for area in areas}
        print(json.dumps({"cache": str(user_cache()), "areas": kept}))


def _clear(areas: Sequence[Area]) -> None:
    """Delete the areas; of a symbolic link only the link itself."""
    for area in areas:
        if area.path.is_symlink() or not area.path.is_dir():
            area.path.unlink(missing_ok=True)
        elif area.path.name == FOLDER and _held(area.path):
            print(f"kept {area.path}: other processes hold locks in it")
            continue
        else:
            shutil.rmtree(area.path)
        print(f"deleted {area.path}: {area.files} files, {format_nbytes(area.nbytes)}")
    if not areas:
        print(f"nothing to delete in {user_cache()}")


def _held(folder: Path) -> bool:
    """Delete the free locks of a folder and tell whether any is held.

    A held lock stays: once its file is deleted, another process could take the same lock.
    """
    held = False
    for path in folder.iterdir():
        if not path.is_file():
            continue
        with suppress(OSError):
            lock = take_lock(path, make=False)
            held |= lock is None
            if lock is not None:
                with lock:
                    path.unlink()
    return held


command: Command = CacheCommand()
