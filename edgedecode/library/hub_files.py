"""Chooses and downloads a GGUF file of a repository on the hub. Downloads are resumed, and their digests checked."""

import logging
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import file_digest
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from edgedecode.engines.engine_factory import KernelsFactory
from edgedecode.engines.registry import find_factory
from edgedecode.engines.selection import USUAL
from edgedecode.errors import InputError, ManifestError, RuntimeUnavailable
from edgedecode.pack.hub import A_PAGE, hub_pack, hub_reason, hub_status
from edgedecode.pack.manifest import MANIFEST_NAME
from edgedecode.user_notices import work

from .offers import Offer, check_room, downloading, library_folder
from .stored import is_model_name, parts_of, weight_type
from .stores import repository_folder

_TIMEOUT = 20.0
_PAGE_NBYTES = 1 << 20
"""More than a page takes that a proxy or a login answers with."""
_NAME = re.compile(r"([^/:]+/[^/:]+)(?::(.+)|/(.+))?")
_PREFERRED = (
    *("Q4_K_M", "Q4_K_S", "Q4_K_L", "Q4_K_XL", "Q4_K", "Q5_K_S", "Q5_K_M", "Q5_K", "Q4_1", "Q5_0", "Q5_1"),
    *("IQ4_NL", "IQ4_XS", "Q4_0", "MXFP4", "MXFP4_MOE", "Q6_K", "Q8_0", "Q3_K_L", "Q3_K_M", "Q3_K_S", "Q2_K"),
    *("BF16", "F16", "F32"),
)
"""Types of weights by how well they suit a machine without a graphics processor: near 4 bits, best quality first."""
_HEAD_WEIGHTS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?|pytorch_model\.bin")
_CONFIG, _MOST_CONFIG_NBYTES = "config.json", 1 << 20
_PLAIN = re.compile(r"(?!\.)[^/\\:]+(/(?!\.)[^/\\:]+)*")
"""A file's name that cannot lead out of a folder."""
_NOT_SATISFIABLE = 416


@dataclass(frozen=True, slots=True)
class _File:
    """A file of a repository at a commit. sha256: empty for small files, which have none."""

    repository: str
    commit: str
    name: str
    nbytes: int
    sha256: str


def hub_offer(word: str) -> Offer:
    """Return the offer of `owner/name`, `owner/name:TYPE` or `owner/name/FILE`. Asks the hub. Raises ManifestError."""
    match = _NAME.fullmatch(word)
    assert match is not None, word
    repository, kind, name = match.groups(default="")
    files = _listing(repository, word)
    if MANIFEST_NAME in files and not kind and not name:
        nbytes, commit = sum(each.nbytes for each in files.values()), files[MANIFEST_NAME].commit
        return Offer(repository, nbytes, lambda: hub_pack(repository, commit))
    models = [each for each in files if is_model_name(each) and _PLAIN.fullmatch(each)]
    if not models and not kind and not name and (head := _head_files(files)):
        nbytes = sum(each.nbytes for each in head)
        note = f"a drafting head: `edgedecode head add PACK {repository}` puts it into a pack"
        return Offer(repository, nbytes, lambda: _fetch_all(head), note, is_head=True)
    name, note = choose_file(repository, models, kind=kind, name=name, run=_run_types())
    if (parts := parts_of(name)) > 1:
        raise ManifestError(
            f"{name} of {repository} is split into {parts} files: choose another file, or download them and merge them "
            f"(llama-gguf-split --merge)"
        )
    title = f"{repository}:{weight_type(name)}" if weight_type(name) else f"{repository}/{name}"
    return Offer(title, files[name].nbytes, lambda: _fetch(files[name], title), note)


def _head_files(files: Mapping[str, _File]) -> list[_File]:
    """Return the files of a drafting head, its configuration last; none: the repository is something else."""
    weights = [file for name, file in files.items() if _HEAD_WEIGHTS.fullmatch(name)]
    if not weights or _CONFIG not in files or files[_CONFIG].nbytes > _MOST_CONFIG_NBYTES:
        return []
    config = _content(files[_CONFIG]).lower()
    if b"eagle3" not in config and b'"draft_vocab_size"' not in config:
        return []
    return [*(files[each] for each in files if each == "README.md"), *weights, files[_CONFIG]]


def choose_file(
    repository: str, models: Collection[str], *, kind: str, name: str, run: Collection[str]
) -> tuple[str, str]:
    """Return a repository's model of this name or type, else the preferred one; and a note if there was a choice.

    run: types of matrices that our kernels run. Raises ManifestError if there is none.
    """
    if not models:
        raise ManifestError(
            f"{repository} has no GGUF file and is no pack of edgedecode: choose a repository of GGUF files (they are "
            f"often named {repository.rpartition('/')[2]}-GGUF), or `edgedecode export --target {repository}`"
        )
    if not kind and not name:
        return _preferred(models, run)
    for each in models:
        if each == name or (kind and weight_type(each) == kind.upper()):
            return each, ""
    wanted = f"file of type {kind!r}" if kind else f"file {name!r}"
    raise ManifestError(f"{repository} has no {wanted}: it has {_types(models)}")


def _preferred(models: Collection[str], run: Collection[str]) -> tuple[str, str]:
    """Return the model that suits this machine best, and why it was taken."""
    whole = [each for each in models if parts_of(each) == 1] or models
    best = min(whole, key=lambda each: (not _is_run(each, run), _rank(each), each.count("/"), each))
    if len(models) == 1:
        return best, ""
    if _rank(best) == 0:
        return best, f"of {_types(models)}"
    lacks = "our kernels do not run the preferred type" if min(map(_rank, whole)) < _rank(best) else "it has no Q4_K_M"
    return best, f"{lacks}; of {_types(models)}"


def _types(models: Collection[str]) -> str:
    return ", ".join(list(dict.fromkeys(weight_type(each) or each for each in models))[:12])


def _is_run(file: str, run: Collection[str]) -> bool:
    """Return whether these types of matrices suffice for a file of its type, whose head mostly has six bits."""
    base = re.sub(r"(?<=_K)_(XS|S|M|L|XL)$|_MOE$", "", weight_type(file))
    return {base, *([] if base in ("Q8_0", "BF16", "F16", "F32") else ["Q6_K"])} <= {*run}


def _run_types() -> Collection[str]:
    with suppress(RuntimeUnavailable, InputError):
        factory: object = find_factory(USUAL)
        if isinstance(factory, KernelsFactory):
            return factory.block_types()
    return ()


def _rank(file: str) -> int:
    kind = weight_type(file)
    return _PREFERRED.index(kind) if kind in _PREFERRED else len(_PREFERRED)


def _listing(repository: str, word: str) -> dict[str, _File]:
    """Return the files of a repository by name."""
    try:
        from huggingface_hub import HfApi

        info = HfApi().model_info(repository, timeout=_TIMEOUT, files_metadata=True)
        siblings: Any = info.siblings or ()
        return {
            each.rfilename: _File(
                repository, str(info.sha), each.rfilename, each.size or 0, getattr(each.lfs, "sha256", "")
            )
            for each in siblings
        }
    except ImportError:
        raise ManifestError(
            f"{word!r} is not here; hub ids need huggingface_hub: pip install huggingface_hub"
        ) from None
    except Exception as error:  # huggingface_hub raises errors of its HTTP client and of its own
        raise ManifestError(
            f"{word!r} is not here, and could not be found on the hub ({hub_reason(error)}); check the name and the "
            f"connection, or give a folder"
        ) from None


def _fetch_all(files: Sequence[_File]) -> Path:
    """Download files into the library, the last one when all others are there, and return their folder."""
    for file in files:
        path = _fetch(file, f"{file.repository}/{file.name}")
    return path.parent


def _fetch(file: _File, title: str) -> Path:
    """Download a file into the library, under its own name once its digest is checked."""
    folder = library_folder(repository_folder(file.repository))
    final = folder / file.name
    with downloading(folder) as part:
        if final.is_file() and final.stat().st_size == file.nbytes:  # by another process in the meantime
            return final
        check_room(title, file.nbytes, part)
        unfinished = part / f"{(file.sha256 or file.commit)[:16]}-{final.name}"
        _download(file, unfinished, title)
        with unfinished.open("rb") as content:
            damaged = file.sha256 and file_digest(content, "sha256").hexdigest() != file.sha256
        if damaged:
            unfinished.unlink()
            raise ManifestError(f"{title} was damaged on the way (its digest differs): pull it again")
        final.parent.mkdir(parents=True, exist_ok=True)
        os.replace(unfinished, final)
    return final


def _content(file: _File) -> bytes:
    """Return a small file. Raises ManifestError."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    content = BytesIO()
    try:
        with _silent():
            url = hf_hub_url(file.repository, file.name, revision=file.commit)
            http_get(url, content, headers=build_hf_headers(), expected_size=file.nbytes)
    except Exception as error:  # as in `_listing`
        reason = A_PAGE if _is_page(content.getvalue()) else hub_reason(error)
        raise ManifestError(
            f"{file.repository}/{file.name} could not be downloaded ({reason}): check your access and the connection"
        ) from None
    return content.getvalue()


def _download(file: _File, unfinished: Path, title: str) -> None:
    """Append what is missing of a file. huggingface_hub's own downloads begin again in every process.

    Raises ManifestError, and OSError of the disk.
    """
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers, disable_progress_bars  # type: ignore[attr-defined]

    disable_progress_bars()
    url = hf_hub_url(file.repository, file.name, revision=file.commit)
    with unfinished.open("ab") as output, work(f"downloading {title}, MB", round(file.nbytes / 1e6)) as advance:
        output.truncate(have := min(output.tell(), file.nbytes))
        advance(have / 1e6)
        told: Any = _Told(output, advance)
        try:
            with _silent():
                http_get(url, told, resume_size=have, headers=build_hf_headers(), expected_size=file.nbytes)
        except Exception as error:  # as in `_listing`
            if isinstance(error, OSError) and error.errno is not None and not hub_status(error):
                raise
            remedy = "check the name, your access and the connection"
            if hub_status(error) == _NOT_SATISFIABLE:
                output.truncate(0)  # it is not the beginning of the server's file
                remedy = "pull it again: it starts from the beginning"
            output.flush()
            reason = hub_reason(error)
            if unfinished.stat().st_size < _PAGE_NBYTES and _is_page(unfinished.read_bytes()):
                output.truncate(0)
                reason = A_PAGE
            elif os.fstat(output.fileno()).st_size:
                remedy = "pull it again: it continues where it stopped"
            raise ManifestError(f"{title} could not be downloaded ({reason}): {remedy}") from None


@contextmanager
def _silent() -> Iterator[None]:
    """Keep huggingface_hub from logging each of its attempts, two lines each: the last error is told."""
    logger = logging.getLogger("huggingface_hub")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


class _Told:
    """A file that reports what is written to it."""

    def __init__(self, file: BinaryIO, advance: Callable[[float], None]) -> None:
        self._file, self._advance = file, advance

    def write(self, data: bytes) -> int:
        self._advance(len(data) / 1e6)
        return self._file.write(data)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  (whatever the file has)
        return getattr(self._file, name)


def _is_page(content: bytes) -> bool:
    return content.lstrip().startswith(b"<")
