"""Stores of other programs, a hub and packages with models, made in a temporary folder: no test uses the network."""

import io
import json
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from edgedecode.cli import main
from edgedecode.user_notices import ask_before_downloads
from tests.imports.files import File, write_file
from tests.small_tokenizers import byte_level

Say = Callable[..., "subprocess.CompletedProcess[str]"]
VARIABLES = (
    *("HF_HOME", "HF_HUB_CACHE", "HF_TOKEN", "LLAMA_CACHE", "OLLAMA_MODELS", "XDG_CACHE_HOME", "EDGEDECODE_MODELS"),
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home folder, which has no models, and the current folder."""
    folder = tmp_path / "home"
    folder.mkdir()
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("EDGEDECODE_MODELS", raising=False)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("USERPROFILE", str(folder))
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., bytes]:
    """Return the bytes of a small model's file; each is made once."""
    pytest.importorskip("gguf", reason="gguf is not installed")
    known: dict[tuple[str, int, int], bytes] = {}

    def make(kind: str = "Q8_0", *, layers: int = 2, seed: int = 3) -> bytes:
        key = (kind, layers, seed)
        if key not in known:
            file = File(kind=kind, layers=layers, seed=seed, context=1024)
            path = write_file(tmp_path_factory.mktemp("made") / "a.gguf", byte_level(), file)
            known[key] = path.read_bytes()
        return known[key]

    return make


@dataclass(frozen=True)
class Stores:
    """Writes models into the stores under a home folder."""

    home: Path

    def lm_studio(self, repository: str, file: str, data: bytes) -> Path:
        return written(self.home / ".lmstudio" / "models" / repository / file, data)

    def ollama(self, name: str, data: bytes, *, kind: str = "model", host: str = "host.example") -> Path:
        """Add a model as `namespace/name:tag`; no data: the manifest points nowhere."""
        root, digest = self.home / ".ollama" / "models", sha256(data).hexdigest()
        layers = [
            {"mediaType": f"application/vnd.ollama.image.{kind}", "digest": f"sha256:{digest}", "size": len(data)},
            {"mediaType": "application/vnd.ollama.image.template", "digest": f"sha256:{'0' * 64}", "size": 1},
        ]
        manifest = json.dumps({"schemaVersion": 2, "config": {}, "layers": layers})
        written(root / "manifests" / host / name.replace(":", "/"), manifest.encode())
        blob = root / "blobs" / f"sha256-{digest}"
        return written(blob, data) if data else blob

    def hub(self, repository: str, file: str, data: bytes) -> Path:
        """Add a file to the hub's cache, which holds links to blobs."""
        root = self.home / ".cache" / "huggingface" / "hub" / f"models--{repository.replace('/', '--')}"
        blob = written(root / "blobs" / sha256(data).hexdigest(), data)
        written(root / "refs" / "main", b"c" * 40)
        link = root / "snapshots" / ("c" * 40) / file
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(blob)
        return link


def written(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@pytest.fixture
def stores(home: Path) -> Stores:
    return Stores(home)


def listing(root: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of every file under a folder, except what ONNX Runtime keeps in a home folder."""
    files = [path for path in root.rglob("*") if path.is_file() and "Microsoft" not in path.parts]
    found = {path: path.stat() for path in files}
    return {str(path): (state.st_size, state.st_mtime_ns) for path, state in found.items()}


def wheel(folder: Path, name: str, files: dict[str, bytes], version: str = "1.0") -> Path:
    """Write a wheel of a package with these files."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = name.replace("-", "_")
    info = f"{plain}-{version}.dist-info"
    path = folder / f"{plain}-{version}-py3-none-any.whl"
    texts = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    every = {f"{plain}/{file}": data for file, data in files.items()} | texts
    record = "".join(f"{file},,\n" for file in (*every, f"{info}/RECORD"))
    with zipfile.ZipFile(path, "w") as archive:
        for file, data in {**every, f"{info}/RECORD": record.encode()}.items():
            archive.writestr(file, data)
    return path


@pytest.fixture
def say(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Say]:
    """Run the command line in the home folder."""

    def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.setattr("sys.stdin", io.StringIO())
            for name, value in environment.items():
                patch.setenv(name, value)
            code = main(words)
        return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())

    yield run
    ask_before_downloads(None)


@dataclass
class HubServer:
    """A hub of repositories: file names and contents. What it answers can be changed between two requests."""

    url: str = ""
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """By repository."""
    status: int = 200
    """Of questions for a repository."""
    page: bytes = b""
    """Answers them in place of a list."""
    file_status: int = 200
    """Of questions for a file."""
    file_page: bytes = b""
    """Is every file's content."""
    ends_after: int | None = None
    """Bytes of a file after which the connection is closed."""
    range_status: int = 206
    digests: dict[str, str] = field(default_factory=dict)
    """Digests told of files, in place of their own."""
    tokens: set[str | None] = field(default_factory=set)
    ranges: list[str] = field(default_factory=list)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A hub on a free port of this machine, which huggingface_hub asks."""
    constants = pytest.importorskip("huggingface_hub.constants", reason="huggingface_hub is not installed")
    from huggingface_hub import close_session

    hub = HubServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *arguments: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def answer(self, *, body: bool) -> None:
            hub.tokens.add(self.headers.get("Authorization"))
            parts = self.path.partition("?")[0].strip("/").split("/")
            if parts[:2] == ["api", "models"]:
                self.send_repository("/".join(parts[2:4]))
            else:
                self.send_file(hub.files.get("/".join(parts[:2]), {}), "/".join(parts[4:]), body=body)

        def send_repository(self, name: str) -> None:
            if hub.page:
                self.send_bytes(200, hub.page)
                return
            if hub.status != 200 or name not in hub.files:
                self.send_bytes(hub.status if hub.status != 200 else 404, b"{}")
                return
            siblings = [
                {
                    "rfilename": file,
                    "size": len(data),
                    "lfs": {"size": len(data), "sha256": digest_of(file, data), "pointerSize": 9},
                }
                for file, data in hub.files[name].items()
            ]
            self.send_bytes(
                200, json.dumps({"id": name, "modelId": name, "sha": "c" * 40, "siblings": siblings}).encode()
            )

        def send_file(self, files: dict[str, bytes], name: str, *, body: bool) -> None:
            if name not in files:
                self.send_bytes(404, b"", **{"X-Error-Code": "EntryNotFound"})
                return
            if hub.file_status != 200:
                self.send_bytes(hub.file_status, b"<html>login</html>")
                return
            data, given = hub.file_page or files[name], self.headers.get("Range")
            start = int(given.removeprefix("bytes=").partition("-")[0]) if given else 0
            if body and given:
                hub.ranges.append(given)
                if hub.range_status != 206:
                    self.send_bytes(hub.range_status, b"")
                    return
            more = {"ETag": f'"{digest_of(name, data)}"', "X-Repo-Commit": "c" * 40, "Accept-Ranges": "bytes"}
            if given:
                more["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            self.send_bytes(206 if given else 200, data[start:], body=body, **more)

        def send_bytes(self, status: int, data: bytes, *, body: bool = True, **more: str) -> None:
            self.send_response(status)
            for key, value in {"Content-Length": str(len(data)), "Content-Type": "application/json", **more}.items():
                self.send_header(key, value)
            self.end_headers()
            if body and hub.ends_after is not None and len(data) > hub.ends_after:
                self.wfile.write(data[: hub.ends_after])
                self.close_connection = True
                hub.range_status = 500  # its client would try again five times
            elif body:
                self.wfile.write(data)

    def digest_of(file: str, data: bytes) -> str:
        return hub.digests.get(file, sha256(data).hexdigest())

    serving = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{serving.server_port}"
    thread = Thread(target=serving.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    yield hub
    close_session()
    serving.shutdown()
    serving.server_close()
    thread.join()
