"""The GGUF file of a model whose pack holds only its plan: made when it is first used, then kept in the user's cache.

The file is a second form of the pack's own blocks, so a pack need not carry both. How it is made is the export's
business, found among the entry points of `edgedecode.makers`; here is where it is kept, that it is whole, and that two
processes which make it at once do no harm. It is made in a child process, whose memory goes back when it is done.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import edgedecode
from edgedecode.cache import aside, cache_folder, facts_key, user_cache
from edgedecode.engines.child import ask_child, child_command, tell_parent
from edgedecode.engines.registry import find_maker
from edgedecode.errors import BudgetExceeded, CapabilityError, EdgeDecodeError, ManifestError
from edgedecode.memory.budget import Budget, Lease
from edgedecode.memory.sizes import size_option
from edgedecode.pack.integrity import file_sha256
from edgedecode.pack.manifest import VERSION, Manifest, ModelEntry
from edgedecode.user_notices import notice

from ...kept_files import is_whole, owner_of, record_whole

__all__ = ["Recipe", "gguf_key", "gguf_path", "kept_file", "write_made"]

FOLDER = "gguf"
CHILD_NBYTES = 44 * 2**20
TOKEN_NBYTES = 1500
"""A child's memory: the interpreter with its libraries, and what a token and its merges take (measured: 56 MB with
8,192 tokens)."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a file is made: the name users know it by, its owner (a later file of whom replaces it), the bytes that
    making it takes, and what writes it. That raises CapabilityError or OSError."""

    name: str
    owner: str
    nbytes: int
    make: Callable[[Path], None]


def gguf_path(entry: ModelEntry, root: Path, *, name: str, budget: Budget) -> Path:
    """Return the GGUF file of the role `name`: the pack's, or one made from its plan, now if it has not been made yet.

    With the target's the draft's is made too, while nothing is loaded yet beside the child's own memory.
    Raises CapabilityError where there is neither, or the cache cannot be written; BudgetExceeded, ManifestError.
    """
    if entry.gguf:
        return root / entry.gguf
    if not entry.gguf_plan:
        raise CapabilityError(
            f"the pack holds no GGUF file of the model {name} and cannot make one: export it with blocks of 32 or "
            f"with --formats onnx,gguf, or use --runtime onnx"
        )
    manifest = Manifest.load(root)
    path = _kept(manifest, root, name, budget=budget)
    if name == "target":
        for role, other in manifest.models.items():
            if role != name and other.gguf_plan and not other.gguf:
                _kept(manifest, root, role, budget=budget)
    return path


def kept_file(key: str, recipe: Recipe, *, budget: Budget) -> Path:
    """Return the whole file of this key in the user's cache, made now if it is not there.

    Raises CapabilityError where the cache cannot be written; BudgetExceeded.
    """
    folder = cache_folder(FOLDER)
    if folder is None:
        raise _unkept(recipe.name, f"the cache {user_cache()} cannot be written")
    path = folder / f"{key}.gguf"
    if not is_whole(path):
        _make(path, recipe, budget=budget)
    return path


def _kept(manifest: Manifest, root: Path, role: str, *, budget: Budget) -> Path:
    """Return the file made from a plan, whole."""
    recipe = Recipe(
        name=role,
        owner=f"{root.resolve()}:{role}",
        nbytes=CHILD_NBYTES + TOKEN_NBYTES * manifest.models[role].rows,
        make=lambda out: _run_child(root, role, out),
    )
    return kept_file(gguf_key(manifest, root, role), recipe, budget=budget)


def write_made(root: str, role: str, out: str) -> None:
    """Make the file, as the child process does, which tells why it could not."""
    try:
        _write(Path(root), role, Path(out))
    except EdgeDecodeError as error:
        tell_parent({"refused": " ".join(str(error).split())})
    except OSError as error:
        tell_parent({"unwritten": error.strerror or str(error)})


def _write(root: Path, role: str, out: Path) -> None:
    find_maker("gguf").make(Manifest.load(root).located(role), root, out)


def _make(path: Path, recipe: Recipe, *, budget: Budget) -> None:
    """Make the file where a process that reads the old one, or makes it too, does not notice."""
    started = perf_counter()
    name = recipe.name
    try:
        with aside(path) as fresh:
            with _room(recipe, budget=budget):
                recipe.make(fresh)
            sha256 = file_sha256(fresh)
        record_whole(path, sha256, owner=recipe.owner)
    except OSError as error:
        raise _unkept(name, error.strerror or str(error)) from None
    _prune(path, recipe.owner)
    notice(f"made {name}.gguf from the pack's blocks in {perf_counter() - started:.1f} s, kept in {path.parent}")


def _room(recipe: Recipe, *, budget: Budget) -> Lease:
    """Lease what making a file takes, once; nothing else is loaded then that could be made smaller."""
    try:
        return budget.reserve(f"making {recipe.name}.gguf", recipe.nbytes, fixed=True)
    except BudgetExceeded as error:
        advice = f"run once without --memory, or with {size_option(error.needed_nbytes)} or more: the file is then kept"
        raise BudgetExceeded(error.reason, advice, table=error.table, needed_nbytes=error.needed_nbytes) from None


def _run_child(root: Path, role: str, out: Path) -> None:
    command = child_command(f"{__name__}:{write_made.__name__}")
    if command is None:  # a frozen application: what making it takes stays in this process
        _write(root, role, out)
        return
    reply = ask_child(command, str(root.absolute()), role, str(out.absolute()))
    for told in reply.told:
        if "unwritten" in told:
            raise _unkept(role, told["unwritten"])
        raise CapabilityError(f"no GGUF file of the model {role} can be made: {told['refused']}")
    if reply.failure:
        raise CapabilityError(f"no GGUF file of the model {role} can be made: {reply.failure}")


def _unkept(name: str, reason: str) -> CapabilityError:
    return CapabilityError(
        f"no GGUF file of the model {name} can be made in the cache ({reason}): make room, set EDGEDECODE_CACHE to a "
        f"folder that can be written, or use --runtime onnx"
    )


def gguf_key(manifest: Manifest, root: Path, role: str) -> str:
    """Name what determines a role's file: what the pack says of its own, else what it is made of and whose code does.

    Raises ManifestError where the manifest does not list these files.
    """
    entry = manifest.models[role]
    names = (entry.gguf,) if entry.gguf else (entry.weights, entry.gguf_plan, manifest.tokenizer)
    try:
        digests = [(manifest.outside.get(name) or manifest.files[name]).sha256 for name in names]
    except KeyError as error:
        raise ManifestError(f"the manifest of {root} does not list {error}: export the pack again") from None
    return facts_key(VERSION, edgedecode.__version__, *digests)


def _prune(path: Path, owner: str) -> None:
    """Remove what was made of an earlier state of the same pack."""
    for record in path.parent.glob("*.json"):
        if record.stem != path.stem and owner_of(record) == owner:
            with suppress(OSError):
                record.with_suffix(".gguf").unlink(missing_ok=True)
                record.unlink(missing_ok=True)
