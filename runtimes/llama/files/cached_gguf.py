"""Build the GGUF file of a model whose pack holds only a plan for it, on first use, in the user's cache.

The file contains the pack's own blocks in another format, so that a pack need not carry both. The builder is found
among the entry points of `edgedecode.makers`; this module stores the file, checks that it is complete, and makes
concurrent builds safe. The build runs in a child process, so that its memory is released afterwards.
"""

from contextlib import suppress
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

FOLDER = "gguf"
CHILD_NBYTES = 44 * 2**20
TOKEN_NBYTES = 1500
"""A child's memory: the interpreter with its libraries, and per token its text and merges (measured: 56 MB with 8,192
tokens)."""


def gguf_path(entry: ModelEntry, root: Path, *, name: str, budget: Budget) -> Path:
    """Return the GGUF file of the role `name`: the pack's, or the cached one, which is built now if it is missing.

    The draft's file is built together with the target's, while no model occupies memory yet.
    Raises CapabilityError if there is no file and no plan, or the cache cannot be written; BudgetExceeded,
    ManifestError.
    """
    if entry.gguf:
        return root / entry.gguf
    if not entry.gguf_plan:
        raise CapabilityError(
            f"the pack has no GGUF file of the model {name} and cannot build one: export it with blocks of 32 or "
            f"with --formats onnx,gguf, or use --runtime onnx"
        )
    manifest = Manifest.load(root)
    path = _cached(manifest, root, name, budget=budget)
    if name == "target":
        for role, other in manifest.models.items():
            if role != name and other.gguf_plan and not other.gguf:
                _cached(manifest, root, role, budget=budget)
    return path


def _cached(manifest: Manifest, root: Path, role: str, *, budget: Budget) -> Path:
    """Return the complete file built from a role's plan, in the user's cache; it is built now if it is missing.

    Raises CapabilityError if the cache cannot be written; BudgetExceeded.
    """
    folder = cache_folder(FOLDER)
    if folder is None:
        raise _build_error(role, f"the cache {user_cache()} cannot be written")
    path = folder / f"{gguf_key(manifest, root, role)}.gguf"
    if not is_whole(path):
        nbytes = CHILD_NBYTES + TOKEN_NBYTES * manifest.models[role].rows
        _build(path, root, role, nbytes=nbytes, budget=budget)
    return path


def write_made(root: str, role: str, out: str) -> None:
    """Build the file in the child process, and report to the parent why it failed."""
    try:
        _write(Path(root), role, Path(out))
    except EdgeDecodeError as error:
        tell_parent({"refused": " ".join(str(error).split())})
    except OSError as error:
        tell_parent({"unwritten": error.strerror or str(error)})


def _write(root: Path, role: str, out: Path) -> None:
    find_maker("gguf").make(Manifest.load(root).located(role), root, out)


def _build(path: Path, root: Path, role: str, *, nbytes: int, budget: Budget) -> None:
    """Build the file next to its final path, without disturbing processes that read or build the same file.

    nbytes: the memory that it needs. It replaces an earlier file of the same pack and role.
    """
    started, owner = perf_counter(), f"{root.resolve()}:{role}"
    try:
        with aside(path) as fresh:
            with _room(role, nbytes, budget=budget):
                _run_child(root, role, fresh)
            sha256 = file_sha256(fresh)
        record_whole(path, sha256, owner=owner)
    except OSError as error:
        raise _build_error(role, error.strerror or str(error)) from None
    _prune(path, owner)
    notice(f"built {role}.gguf from the pack's blocks in {perf_counter() - started:.1f} s, cached in {path.parent}")


def _room(role: str, nbytes: int, *, budget: Budget) -> Lease:
    """Lease the memory for a build. The lease is fixed, as nothing is loaded yet that could be reduced."""
    try:
        return budget.reserve(f"building {role}.gguf", nbytes, fixed=True)
    except BudgetExceeded as error:
        advice = (
            f"run once without --memory, or with {size_option(error.needed_nbytes)} or more: the file is then cached"
        )
        raise BudgetExceeded(error.reason, advice, table=error.table, needed_nbytes=error.needed_nbytes) from None


def _run_child(root: Path, role: str, out: Path) -> None:
    command = child_command(f"{__name__}:{write_made.__name__}")
    if command is None:  # a frozen application: the build's memory stays in this process
        _write(root, role, out)
        return
    reply = ask_child(command, str(root.absolute()), role, str(out.absolute()))
    for message in reply.told:
        if "unwritten" in message:
            raise _build_error(role, message["unwritten"])
        raise CapabilityError(f"the GGUF file of the model {role} cannot be built: {message['refused']}")
    if reply.failure:
        raise CapabilityError(f"the GGUF file of the model {role} cannot be built: {reply.failure}")


def _build_error(name: str, reason: str) -> CapabilityError:
    return CapabilityError(
        f"the GGUF file of the model {name} cannot be built in the cache ({reason}): free some space, set "
        f"EDGEDECODE_CACHE to a writable folder, or use --runtime onnx"
    )


def gguf_key(manifest: Manifest, root: Path, role: str) -> str:
    """Return the cache key of a role's file: the digest of the build's inputs and code.

    Raises ManifestError if the manifest does not list these files.
    """
    entry = manifest.models[role]
    try:
        digests = [
            (manifest.outside.get(name) or manifest.files[name]).sha256
            for name in (entry.weights, entry.gguf_plan, manifest.tokenizer)
        ]
    except KeyError as error:
        raise ManifestError(f"the manifest of {root} does not list {error}: export the pack again") from None
    return facts_key(VERSION, edgedecode.__version__, *digests)


def _prune(path: Path, owner: str) -> None:
    """Remove files built from earlier versions of the same pack."""
    for record in path.parent.glob("*.json"):
        if record.stem != path.stem and owner_of(record) == owner:
            with suppress(OSError):
                record.with_suffix(".gguf").unlink(missing_ok=True)
                record.unlink(missing_ok=True)
