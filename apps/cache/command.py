"""The verb `cache`: show and clear what edgedecode keeps in the user's cache folder."""

import shutil
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from edgedecode.cache import AREAS, sizes, user_cache
from edgedecode.commands import Command, add_json, print_json
from edgedecode.locks import FOLDER, take_lock
from edgedecode.memory.sizes import format_nbytes
from edgedecode.text.printable import counted


@dataclass(frozen=True, slots=True)
class Area:
    """One folder of the cache."""

    path: Path
    files: int
    nbytes: int

    @classmethod
    def measure(cls, path: Path) -> "Area":
        found = [path.lstat().st_size] if path.is_symlink() or not path.is_dir() else [*sizes(path)]
        return cls(path, len(found), sum(found))


class CacheCommand:
    """`cache show` and `cache clear`. Only past messages and answers are not made or downloaded again when needed."""

    name = "cache"
    help = "show or clear the user's cache"

    def configure(self, parser: ArgumentParser) -> None:
        add_json(parser)
        actions = parser.add_subparsers(dest="action", metavar="ACTION")
        show = actions.add_parser("show", help="list the cache's folders and their sizes (default)", allow_abbrev=False)
        add_json(show, inner=True)
        clear = actions.add_parser("clear", help="delete the named parts of the cache", allow_abbrev=False)
        for name, content in AREAS.items():
            clear.add_argument(f"--{name}", action="append_const", dest="areas", const=name, help=content)
        clear.add_argument("--all", action="store_true", help="everything, including downloaded packs")
        add_json(clear, inner=True)
        clear.set_defaults(usage_error=clear.error)

    def run(self, arguments: Namespace) -> int:
        if arguments.action != "clear":
            return _show(_areas(), as_json=arguments.json)
        if not arguments.all and not arguments.areas:
            arguments.usage_error("say what to delete: --all, or one or more of " + ", ".join(f"--{n}" for n in AREAS))
        wanted = None if arguments.all else set(arguments.areas)
        deleted = _clear([area for area in _areas() if wanted is None or area.path.name in wanted])
        if arguments.json:
            print_json({"deleted": {area.path.name: area.nbytes for area in deleted}})
        return 0


def _areas() -> list[Area]:
    root = user_cache()
    return [Area.measure(path) for path in sorted(root.iterdir())] if root.is_dir() else []


def _show(areas: Sequence[Area], *, as_json: bool) -> int:
    print(f"{user_cache()}: {format_nbytes(sum(area.nbytes for area in areas))}")
    for area in areas:
        content = AREAS.get(area.path.name, "")
        files = f"{counted(area.files, 'file'):<12}"
        print(f"  {area.path.name:<10}  {format_nbytes(area.nbytes):>10}  {files}  {content}".rstrip())
    if as_json:
        kept = {area.path.name: {"files": area.files, "nbytes": area.nbytes} for area in areas}
        print_json({"cache": str(user_cache()), "areas": kept})
    return 0


def _clear(areas: Sequence[Area]) -> list[Area]:
    """Delete the areas and return the deleted ones; of a symbolic link only the link itself."""
    deleted = []
    for area in areas:
        if area.path.is_symlink() or not area.path.is_dir():
            area.path.unlink(missing_ok=True)
        elif area.path.name == FOLDER and _held(area.path):
            print(f"kept {area.path}: other processes hold locks in it")
            continue
        else:
            shutil.rmtree(area.path)
        print(f"deleted {area.path}: {counted(area.files, 'file')}, {format_nbytes(area.nbytes)}")
        deleted.append(area)
    if not areas:
        print(f"nothing to delete in {user_cache()}")
    return deleted


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
