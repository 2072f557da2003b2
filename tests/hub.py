"""A stand-in for the hub's client: no test uses the network."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgedecode.library.find import find_pack
from edgedecode.pack.gate import check_pack


@dataclass
class Hub:
    """A stand-in for huggingface_hub that writes files in place and never deletes one that a commit lacks.

    A file whose metadata names the wanted commit is not written again, whatever its content.
    """

    commits: dict[str, Path] = field(default_factory=dict)
    """Folders by commit id, the newest last."""
    calls: list[str] = field(default_factory=list)
    offline: bool = False
    ends_after: int | None = None
    """The number of files after which the connection breaks."""
    fetched: list[str] = field(default_factory=list)
    """The files that were asked for since the last question for the newest commit."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Take the client's place. Not while transformers is imported, which needs more of it."""
        with pytest.MonkeyPatch.context() as patch:
            client = SimpleNamespace(snapshot_download=self.snapshot_download, HfApi=lambda: self)
            patch.setitem(sys.modules, "huggingface_hub", client)
            yield

    def model_info(self, name: str, *, timeout: float, files_metadata: bool = False) -> SimpleNamespace:
        self.calls.append(name)
        self.fetched.clear()
        if name == "no/such" or self.offline:
            raise RuntimeError("404 Client Error.\n\nRepository Not Found for url: https://…")
        commit, folder = list(self.commits.items())[-1]
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        listed = [(path.relative_to(folder).as_posix(), path.stat().st_size) for path in files]
        siblings = [SimpleNamespace(rfilename=name, size=nbytes, lfs=None) for name, nbytes in listed]
        return SimpleNamespace(sha=commit, siblings=siblings)

    def snapshot_download(self, name: str, *, revision: str = "", allow_patterns: list[str], local_dir: Path) -> str:
        revision = revision or list(self.commits)[-1]
        source = self.commits[revision]
        names = [path.relative_to(source).as_posix() for path in sorted(source.rglob("*")) if path.is_file()]
        wanted = [name for name in names if any(fnmatchcase(name, pattern) for pattern in allow_patterns)]
        for each in wanted:
            if len(self.fetched) == self.ends_after:
                raise ConnectionError("the connection broke")
            self.fetched.append(each)
            notes = local_dir / ".cache" / "huggingface" / "download" / f"{each}.metadata"
            if (local_dir / each).is_file() and notes.is_file() and notes.read_text().startswith(revision):
                continue
            notes.parent.mkdir(parents=True, exist_ok=True)
            (local_dir / each).parent.mkdir(parents=True, exist_ok=True)
            (local_dir / each).write_bytes((source / each).read_bytes())
            notes.write_text(f"{revision}\netag\n0\n")
        return str(local_dir)


def content(root: Path) -> dict[str, bytes]:
    """Return a pack's files without the client's metadata."""
    found = {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    return {name: data for name, data in found.items() if not name.startswith(".cache/")}


def check_download(hub: Hub, pack: Path) -> None:
    """Publish a pack, and check that it arrives whole."""
    hub.commits["a" * 40] = pack
    with hub.installed():
        root = find_pack("owner/name")
    assert content(root) == content(pack)
    check_pack(root, full=True)
