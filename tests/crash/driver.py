"""Run a command, then repeatedly with a kill at one event, and check what remains each time.

It is a separate process that imports everything once and never starts a thread; each run is a fork of it.
"""

import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from tests.crash.scenarios import SCENARIOS, Scenario
from tests.crash.shim import Shim

_IMPORTED = ("edgedecode.pack.gate", "edgedecode.runtimes.onnx", "onnxruntime", "edgedecode.cli")
_FRAMEWORKS = (
    *("torch", "transformers.models.llama.modeling_llama", "onnxruntime_genai.models.builder"),
    *("edgedecode.export.pair_export", "tests.export.tiny"),
)
"""Of `export` alone. Without them, each fork would import for seconds."""
_SECONDS = 120
"""A child that takes longer is considered hanging."""


def main(name: str, root: str, most: str) -> None:
    """Print a report of at most `most` kills; `all` means at every event, before and after it."""
    for module in (*_IMPORTED, *(_FRAMEWORKS if name == "export" else ())):
        with suppress(ImportError):
            import_module(module)
    report = crashed(SCENARIOS[name](), Path(root), most=None if most == "all" else int(most))
    print(json.dumps(report))


def crashed(scenario: Scenario, root: Path, *, most: int | None) -> dict[str, object]:
    os.environ["EDGEDECODE_CACHE"] = str(root / "work" / "cache")
    before, work = root / "before", root / "work"
    before.mkdir(parents=True)
    _placed(before, work)
    _must(lambda: scenario.set_up(work), root)
    shutil.rmtree(before)
    shutil.copytree(work, before, symlinks=True)
    old = _state(scenario, work, root)
    _placed(before, work)
    shim = Shim()
    _must(lambda: (shim.install(), scenario.run(work), (root / "events").write_text("\n".join(shim.events))), root)
    events = (root / "events").read_text().split("\n")
    new, whole = _state(scenario, work, root), scenario.content(work)
    points = [(at, after) for at in range(len(events)) for after in (False, True)]
    if most is not None and most < len(points):
        points = sorted(random.Random(0).sample(points, most))
    failures = []
    for at, after in points:
        _placed(before, work)
        where = f"{'after' if after else 'before'} event {at + 1} of {len(events)} ({events[at]})"
        if _forked(lambda at=at, after=after: (Shim(at, after).install(), scenario.run(work)), root) != -signal.SIGKILL:  # type: ignore[misc]
            failures.append(f"{where}: it was not killed: {_stderr(root)}")
            continue
        try:
            if (found := _state(scenario, work, root)) not in (old, new):
                failures.append(f"{where}: neither {old} nor {new}: {found}")
            _age(work)
            _must(lambda: scenario.run(work), root)
            if (found := _state(scenario, work, root)) != new:
                failures.append(f"{where}: the next run made {found} instead of {new}")
            if left := scenario.content(work) ^ whole:
                failures.append(f"{where}: after the next run {sorted(left)} are unexpected or missing")
        except AssertionError as error:
            failures.append(f"{where}: {error}")
    return {"events": Counter(events), "kills": len(points), "failures": failures}


def _placed(before: Path, work: Path) -> None:
    if work.exists():
        shutil.rmtree(work)
    shutil.copytree(before, work, symlinks=True)


def _age(work: Path) -> None:
    """Make unfinished cache files old: they have no lock and count as leftovers by age."""
    for path in work.rglob("*.making"):
        with suppress(OSError):
            os.utime(path, (time.time() - 7200,) * 2)


def _state(scenario: Scenario, work: Path, root: Path) -> str:
    """Open everything as a user would, in a separate process, and return its description."""
    _must(lambda: (root / "state").write_text(scenario.state(work)), root)
    return (root / "state").read_text()


def _must(work: Callable[[], object], root: Path) -> None:
    code = _forked(work, root)
    assert code == 0, f"ended with {code}: {_stderr(root)}"


def _forked(work: Callable[[], object], root: Path) -> int:
    """Run in a child; return its exit code, or the negative number of the signal that ended it."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        signal.alarm(_SECONDS)
        output = os.open(root / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _stderr(root: Path) -> str:
    return (root / "output").read_text(errors="replace")[-1500:]


if __name__ == "__main__":
    main(*sys.argv[1:])
