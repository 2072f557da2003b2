"""A command killed at any change of a file leaves the old or the new state, never less.

Each command is killed before or after some of its events, chosen with a fixed seed; EDGEDECODE_CRASH_KILLS is the
number of kills per command, or `all`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.scenarios import SCENARIOS

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="each kill needs a forked child")

KILLS = {"trim of the bundled pack": 1, "a first use": 1, "export": 1, "import": 3, "a download": 10}
FEW = 6
NEEDS = {"export": ("torch", "transformers", "onnx_ir"), "import": ("gguf",), "trim of the bundled pack": ("onnx_ir",)}


@pytest.mark.parametrize("name", SCENARIOS)
def test_command_killed_at_any_event_leaves_the_old_or_the_new_state(name: str, tmp_path: Path) -> None:
    for package in NEEDS.get(name, ()):
        pytest.importorskip(package)
    most = os.environ.get("EDGEDECODE_CRASH_KILLS") or str(KILLS.get(name, FEW))
    command = [sys.executable, "-m", "tests.crash.driver", name, str(tmp_path), most]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3000, check=False, cwd=root)
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout.splitlines()[-1])
    print(name, report["events"], report["kills"])
    points = 2 * sum(report["events"].values())
    assert report["kills"] == (points if most == "all" else min(int(most), points)) > 0
    assert not report["failures"], "\n".join(report["failures"])
