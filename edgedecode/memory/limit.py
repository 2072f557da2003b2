"""The memory limit in force: the smallest of the requested, the environment's, the container's and the machine's.

The kernel kills a process that exceeds its container or the machine; a budget that includes both refuses instead.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edgedecode.errors import InputError

from .sizes import parse_nbytes, size_option

VARIABLE = "EDGEDECODE_MEMORY"
ASKED = "--memory"
MACHINE = "this machine's memory"
_NO_LIMIT = 1 << 62
"""Version 1 control groups without a limit report a number near 2**63."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A number of bytes, and the name of its source. beside: what others hold of a limit that this is the rest of."""

    nbytes: int
    name: str = ASKED
    beside: int = 0

    def __post_init__(self) -> None:
        if self.nbytes <= 0:
            raise InputError(f"the memory budget must be positive, not {self.nbytes}")

    @property
    def whole(self) -> int:
        """The bytes of the limit with what others hold of it."""
        return self.nbytes + self.beside

    def raised(self, nbytes: int) -> str:
        """Return advice on how to get a limit of `nbytes`, in the imperative."""
        nbytes += self.beside
        if self.name == MACHINE:
            return f"use a machine with {size_option(nbytes)} or more"
        return f"raise {self.name} to {size_option(nbytes)} or more"


def limit_in_force(asked: int | str | None = None, *, root: Path = Path("/")) -> Limit | None:
    """Return the smallest limit; None if there is none and the system does not report its memory.

    asked: bytes, or text such as "800MB". root: the root of /proc and /sys. Raises InputError for an invalid size.
    """
    limits = [limit for limit in (_asked(asked), _of_variable(), _of_group(root), _of_machine()) if limit is not None]
    return min(limits, key=lambda limit: limit.nbytes, default=None)


def _asked(asked: int | str | None) -> Limit | None:
    if asked is None:
        return None
    return Limit(parse_nbytes(asked) if isinstance(asked, str) else asked)


def _of_variable() -> Limit | None:
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return None
    try:
        return Limit(parse_nbytes(text), VARIABLE)
    except InputError as error:
        raise InputError(f"{VARIABLE}: {error.reason}") from None


def _of_group(root: Path) -> Limit | None:
    """Return the smallest limit of this process's control groups, v1 or v2, including their parents."""
    limits = [nbytes for file in group_files(root) if (nbytes := read_limit(file)) is not None]
    return Limit(min(limits), "the container's memory limit") if limits else None


def group_files(root: Path) -> Iterator[Path]:
    """Yield the files that may hold a limit. A container often sees its own group as the root."""
    mounts = root / "sys/fs/cgroup"
    for line in system_lines(root / "proc/self/cgroup"):
        _, controllers, group = (*line.split(":", 2), "", "")[:3]
        if controllers == "":
            tops, name = [mounts, mounts / "unified"], "memory.max"
        elif "memory" in controllers.split(","):
            tops, name = [mounts / "memory"], "memory.limit_in_bytes"
        else:
            continue
        path = Path(group.lstrip("/"))
        if ".." in path.parts:  # a group that this container cannot see
            path = Path()
        for top in tops:
            yield from (top / above / name for above in (path, *path.parents))


def read_limit(file: Path) -> int | None:
    """Return the limit in a control group's file; None: no limit."""
    text = next(iter(system_lines(file)), "")
    nbytes = int(text) if text.isascii() and text.isdigit() else 0
    return nbytes if 0 < nbytes < _NO_LIMIT else None


def system_lines(file: Path) -> list[str]:
    """Return the lines of a file of /proc or /sys; empty if it cannot be read."""
    try:
        return os.fsdecode(file.read_bytes()).splitlines()  # a group's name may be any bytes
    except OSError:
        return []


def _of_machine() -> Limit | None:
    """Return the machine's physical memory; None if the system does not report it."""
    try:
        nbytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # no sysconf, or not this value
        return None
    return Limit(nbytes, MACHINE) if nbytes > 0 else None
