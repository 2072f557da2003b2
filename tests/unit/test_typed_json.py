"""Types that many threads read first at once."""

import subprocess
import sys

import pytest

_FIRST_READ_BY_MANY = """
import sys, threading
from dataclasses import field, make_dataclass
from edgedecode.typed_json import typed

sys.setswitchinterval(1e-6)
for _ in range(200):
    inner = make_dataclass("Inner", [(f"f{i}", "int | None", field(default=None)) for i in range(20)])
    outer = make_dataclass("Outer", [(f"g{i}", list[inner], field(default_factory=list)) for i in range(5)])
    gate, found = threading.Barrier(8), []

    def read():
        gate.wait()
        found.append(typed({"g0": [{"f1": 2}]}, outer, "x").g0[0].f1)

    threads = [threading.Thread(target=read) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert found == [2] * 8, found
"""


@pytest.mark.slow
def test_threads_may_read_a_new_type_at_once() -> None:
    """In a process of its own: msgspec alone crashes here, as a server did whose first requests came together."""
    subprocess.run([sys.executable, "-c", _FIRST_READ_BY_MANY], check=True, timeout=300)
