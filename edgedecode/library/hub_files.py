"""Chooses and downloads a GGUF file of a repository on the hub. Downloads are resumed, and their digests checked."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

from edgedecode.engines.engine_factory import KernelsFactory
from edgedecode.engines.registry import find_factory
from edgedecode.engines.selection import USUAL
from edgedecode.errors import InputError, ManifestError, RuntimeUnavailable
from edgedecode.pack.hub import hub_pack
from edgedecode.pack.manifest import MANIFEST_NAME
from edgedecode.user_notices import work

from .offers import Offer, check_room, downloading, library_folder
from .stored import is_model_name, parts_of, weight_type
from .stores import repository_folder

__all__ = ["choose_file", "hub_offer"]

_TIMEOUT = 20.0
_NAME = re.compile(r"([^/:]+/[^/:]+)(?::(.+)|/(.+))?")
_PREFERRED = (
    *("Q4_K_M", "Q4_K_S", "Q4_K_L", "Q4_K", "Q5_K_S", "Q5_K_M", "Q5_K", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "IQ4_XS"),
    *("Q4_0", "MXFP4", "MXFP4_MOE", "Q6_K", "Q8_0", "Q3_K_L", "Q3_K_M", "Q3_K_S", "Q2_K", "BF16", "F16", "F32"),
)
"""Types of weights by how well they suit a machine without a graphics processor: near 4 bits, best quality first."""


@dataclass(frozen=True, slots=True)
class _Listed:
    """A file of a repository. sha256: empty for small files, which have none."""

    nbytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class _Listing:
    repository: str
    commit: str
    files: Mapping[str, _Listed]


def hub_offer(word: str) -> Offer:
    """Return the offer of `owner/name`, `owner/name:TYPE` or `owner/name/FILE`. Asks the hub. Raises ManifestError."""
    match = _NAME.fullmatch(word)
    assert match is not None, word
    repository, kind, file = match.groups(default="")
    listing = _listing(repository, word)
    if MANIFEST_NAME in listing.files and not kind and not file:
        nbytes = sum(each.nbytes for each in listing.files.values())
        return Offer(repository, nbytes, lambda: hub_pack(repository, listing.commit))
    sizes = {name: each.nbytes for name, each in listing.files.items() if is_model_name(name)}
    file, note = choose_file(repository, sizes, kind=kind, file=file, run=_run_types())
    if (parts := parts_of(file)) > 1:
        raise ManifestError(
            f"{file} of {repository} is split into {parts} files: choose another file, or download them and merge them "
            f"(llama-gguf-split --merge)"
        )
    kind = weight_type(file)
    title = f"{repository}:{kind}" if kind else f"{repository}/{file}"
    return Offer(title, sizes[file], lambda: _fetch(listing, file, title), note)


def choose_file(
    repository: str, sizes: Mapping[str, int], *, kind: str, file: str, run: Collection[str]
) -> tuple[str, str]:
    """Return a repository's file of this name or type, else the preferred one; and a note if a choice was made.

    sizes: bytes by file. run: types of matrices that our kernels run. Raises ManifestError if there is none.
    """
    if not sizes:
        raise ManifestError(
            f"{repository} has no GGUF file and is no pack of edgedecode: choose a repository of GGUF files (they are "
            f"often named {repository.rpartition('/')[2]}-GGUF), or `edgedecode export --target {repository}`"
        )
    if file:
        if file not in sizes:
            raise ManifestError(f"{repository} has no file {file!r}: it has {_kinds(list(sizes))}")
        return file, ""
    if kind:
        alike = [name for name in sizes if weight_type(name) == kind.upper()]
        if not alike:
            raise ManifestError(f"{repository} has no file of type {kind!r}: it has {_kinds(list(sizes))}")
        return alike[0], ""
    whole = [name for name in sizes if parts_of(name) == 1] or list(sizes)
    best = min(whole, key=lambda name: (not _is_run(name, run), _rank(name), name.count("/"), name))
    if len(sizes) == 1:
        return best, ""
    wanted = min(whole, key=_rank)
    reason = f"{_PREFERRED[0]} of {_kinds(list(sizes))}"
    if weight_type(best) != _PREFERRED[0]:
        missing = f"our kernels do not run {weight_type(wanted)}" if _rank(wanted) < _rank(best) else ""
        reason = f"{missing or f'it has no {_PREFERRED[0]}'}; of {_kinds(list(sizes))}"
    return best, reason


def _is_run(file: str, run: Collection[str]) -> bool:
    """Return whether these types of matrices suffice for a file of its type, whose head mostly has six bits."""
    base = re.sub(r"(?<=_K)_(XS|S|M|L)$|_MOE$", "", weight_type(file))
    return {base, *([] if base in ("Q8_0", "BF16", "F16", "F32") else ["Q6_K"])} <= {*run}


def _run_types() -> Collection[str]:
    """Return the types of matrices that edgedecode's kernels run."""
    with suppress(RuntimeUnavailable, InputError):
        factory: object = find_factory(USUAL)
        if isinstance(factory, KernelsFactory):
            return factory.block_types()
    return ()


def _rank(file: str) -> int:
    kind = weight_type(file)
    return _PREFERRED.index(kind) if kind in _PREFERRED else len(_PREFERRED)


def _kinds(files: Sequence[str]) -> str:
    found = list(dict.fromkeys(weight_type(file) or file for file in files))
    return ", ".join(found[:12]) + (f" and {len(found) - 12} more" if len(found) > 12 else "")


def _listing(repository: str, word: str) -> _Listing:
    try:
        from huggingface_hub import HfApi
    except ImportError:
        raise ManifestError(
            f"{word!r} is not a folder; hub ids need huggingface_hub: pip install huggingface_hub"
        ) from None
    try:
        info = HfApi().model_info(repository, timeout=_TIMEOUT, files_metadata=True)
        siblings: Any = info.siblings or ()
        files = {each.rfilename: _Listed(each.size or 0, getattr(each.lfs, "sha256", "")) for each in siblings}
        return _Listing(repository, str(info.sha), files)
    except Exception as error:  # huggingface_hub raises errors of its HTTP client and of its own
        raise ManifestError(
            f"{word!r} is not here, and could not be found on the hub ({_reason(error)}); check the name and the "
            f"connection, or give a folder"
        ) from None


def _fetch(listing: _Listing, file: str, title: str) -> Path:
    """Download a file into the library, under its own name once its digest is checked."""
    folder, listed = repository_folder(listing.repository), listing.files[file]
    final = library_folder(folder) / file
    with downloading(title, folder) as part:
        if final.is_file() and final.stat().st_size == listed.nbytes:  # by another process in the meantime
            return final
        unfinished = part / f"{(listed.sha256 or listing.commit)[:16]}-{final.name}"
        check_room(title, listed.nbytes, part)
        _download(listing, file, unfinished, title)
        if listed.sha256 and _digest(unfinished) != listed.sha256:
            unfinished.unlink()
            raise ManifestError(f"{title} was damaged on the way (its digest differs): pull it again")
        final.parent.mkdir(parents=True, exist_ok=True)
        os.replace(unfinished, final)
    return final


def _download(listing: _Listing, file: str, unfinished: Path, title: str) -> None:
    """Continue a download. Raises ManifestError; OSError of the disk."""
    nbytes = listing.files[file].nbytes
    with work(f"downloading {title}, MB", round(nbytes / 1e6)) as advance:
        try:
            _get(listing, file, unfinished, advance)
        except Exception as error:  # as in `_listing`
            if isinstance(error, OSError) and error.errno is not None and _status(error) == 0:
                raise
            if _status(error) == _NOT_SATISFIABLE:
                unfinished.unlink(missing_ok=True)  # it is not the beginning of the server's file
            raise ManifestError(
                f"{title} could not be downloaded ({_reason(error)}): pull it again, which continues where it stopped"
            ) from None


def _get(listing: _Listing, file: str, unfinished: Path, advance: Callable[[float], None]) -> None:
    """Append what is missing. huggingface_hub's own downloads of files begin again in every process."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers, disable_progress_bars  # type: ignore[attr-defined]

    disable_progress_bars()
    url, nbytes = hf_hub_url(listing.repository, file, revision=listing.commit), listing.files[file].nbytes
    with unfinished.open("ab") as output:
        if output.tell() > nbytes:
            output.truncate(0)
        have = output.tell()
        advance(have / 1e6)
        told: Any = _Told(output, advance)
        http_get(url, told, resume_size=have, headers=build_hf_headers(), expected_size=nbytes)


class _Told:
    """A file that reports what is written to it."""

    def __init__(self, file: BinaryIO, advance: Callable[[float], None]) -> None:
        self._file, self._advance = file, advance

    def write(self, data: bytes) -> int:
        self._advance(len(data) / 1e6)
        return self._file.write(data)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  (whatever the file has)
        return getattr(self._file, name)


_NOT_SATISFIABLE = 416


def _digest(path: Path) -> str:
    digest = sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _status(error: BaseException) -> int:
    return int(getattr(getattr(error, "response", None), "status_code", 0) or 0)


def _reason(error: BaseException) -> str:
    status = _status(error)
    told = {
        401: "401: it does not exist, or needs an account with access: set HF_TOKEN",
        403: "403: this account may not read it: ask for access on its page, then set HF_TOKEN",
        404: "404: it does not exist",
        429: "429: too many requests: wait a while, or set HF_TOKEN",
    }
    lines = str(error).strip().splitlines()
    return told.get(status) or (lines[0] if lines else type(error).__name__)[:160]
