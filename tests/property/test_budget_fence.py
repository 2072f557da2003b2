"""A long conversation under an operating-system memory limit set to the plan: it neither fails nor changes its text.

For one process the limit is RLIMIT_DATA, which counts writable private memory whether it is touched or not; where a
control group (version 2) can be made, it is memory.max, which counts all memory including file pages.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

resource = pytest.importorskip("resource", reason="memory limits of POSIX systems")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.memory,
    pytest.mark.skipif(sys.platform != "linux", reason="memory limits and /proc of Linux"),
]

ENGINES = {"onnx": "onnxruntime", "llama": "llama_cpp"}
MIB = 2**20
STACK_NBYTES = MIB
"""Stack of a thread, counted completely; usually 8 MiB."""
UNTOUCHED_NBYTES = {"onnx": 4 * STACK_NBYTES, "llama": 4 * STACK_NBYTES + 44 * MIB}
"""Memory reserved and hardly touched: threads' stacks; on llama.cpp also the largest possible graph, 43 MB."""

CHAT = """
import json, resource, sys
import edgedecode
from edgedecode import ContextExceeded, SessionDetails, SessionOptions, pair
from edgedecode.memory.process_memory import memory_now

fence, held = int(sys.argv[2]), {}

def data():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:"))

def process_holder(*given):
    holder = real(*given)
    now = memory_now()
    held.update(process=holder.nbytes, files=now.resident - now.anonymous)
    if fence:
        resource.setrlimit(resource.RLIMIT_DATA, (data() + fence, data() + fence))
    return holder

real, pair.process_holder = pair.process_holder, process_holder
texts, accepted, full = [], 0, 0
options = SessionOptions(drafter="model", draft_max=4, details=SessionDetails(ignore_eos=True))
with edgedecode.load(runtime=sys.argv[1], threads=1) as opened, opened.session(options) as session:
    words = opened.tokenizer.decode(list(range(320, 6000, 3)))
    for prompt in (words, *["And then?"] * 9):  # the context is full before the end
        try:
            done = session.generate(prompt, max_tokens=64)
        except ContextExceeded:
            session.reset()
            done = session.generate(prompt, max_tokens=64)
        texts.append(done.text)
        accepted += done.stats.accepted
        full += done.stats.dropped_turns
    now, planned = memory_now(), opened.budget.used_nbytes
    figures = {"planned": planned, "resident": now.resident, "texts": texts, "accepted": accepted, "full": full}
    files = now.resident - now.anonymous - held["files"]
    print(json.dumps(figures | {"anonymous": planned - held["process"] - files}))
"""


def run(engine: str, *, fence: int = 0, before: str = "") -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", before + CHAT, engine, str(fence)]
    return subprocess.run(
        words, capture_output=True, text=True, timeout=240, check=False, preexec_fn=_have_small_stacks
    )


def _have_small_stacks() -> None:
    resource.setrlimit(resource.RLIMIT_STACK, (STACK_NBYTES, resource.getrlimit(resource.RLIMIT_STACK)[1]))


def chat(engine: str, *, fence: int = 0, before: str = "") -> dict[str, Any]:
    """Run the chat in a child process; return its texts and its memory."""
    child = run(engine, fence=fence, before=before)
    assert child.returncode == 0, child.stderr[-2000:]
    figures: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return figures


@pytest.fixture(scope="module", params=ENGINES)
def free(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Return an engine and its chat without a limit."""
    pytest.importorskip(ENGINES[request.param])
    return request.param, chat(request.param)


def test_long_chat_with_drafts_keeps_its_plan(free: tuple[str, dict[str, Any]]) -> None:
    engine, measured = free
    assert measured["accepted"] > 100
    assert measured["full"] > 0
    assert measured["resident"] <= measured["planned"]
    fenced = chat(engine, fence=measured["anonymous"] + UNTOUCHED_NBYTES[engine])
    assert fenced["texts"] == measured["texts"]


def test_chat_fails_under_a_limit_below_its_plan(free: tuple[str, dict[str, Any]]) -> None:
    """Checks that the limit works: far below the plan the chat prints nothing."""
    engine, measured = free
    child = run(engine, fence=measured["anonymous"] // 4)
    assert child.returncode != 0
    assert not child.stdout


@pytest.fixture
def group() -> Iterator[Path]:
    """Yield a new control group below this process's."""
    lines = Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()
    own = next((line[3:] for line in lines if line.startswith("0::")), None)
    if own is None or not Path("/sys/fs/cgroup/cgroup.controllers").exists():
        pytest.skip("no control groups of version 2 here")
    made = Path("/sys/fs/cgroup", own.strip("/"), f"edgedecode-{os.getpid()}")
    try:
        made.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error.strerror}")
    try:
        if not (made / "memory.max").exists():
            pytest.skip("this control group does not account for memory")
        yield made
    finally:
        made.rmdir()


def test_long_chat_fits_a_container_of_its_plan(free: tuple[str, dict[str, Any]], group: Path) -> None:
    engine, measured = free
    (group / "memory.max").write_text(str(measured["planned"]))
    if (group / "memory.swap.max").exists():
        (group / "memory.swap.max").write_text("0")
    fenced = chat(engine, before=f"open({str(group / 'cgroup.procs')!r}, 'w').write('0')\n")
    assert fenced["texts"] == measured["texts"]
