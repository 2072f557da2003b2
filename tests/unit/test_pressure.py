"""Memory pressure: how it is noticed, what is released in which order, and that texts stay the same."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from edgedecode.decoding.verify import Rule
from edgedecode.memory.budget import Budget
from edgedecode.memory.pressure import INTERVAL_S, FreeMemory, MemoryPressure, free_memory
from edgedecode.options import SessionOptions
from edgedecode.pair import Pair
from edgedecode.sampling.weights import SamplingOptions
from edgedecode.sessions.session import Session
from tests.toys import ascii_pair, session_options

MEMINFO = "MemTotal:  8000000 kB\nMemFree:  10000 kB\nMemAvailable:  4000000 kB\nHugePages_Total:  0\n"
PLENTY, LITTLE = FreeMemory(50, 100), FreeMemory(2, 100)


def system(root: Path, groups: str, files: dict[str, str]) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for name, text in {"proc/meminfo": MEMINFO, **files}.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


class Machine:
    """A machine whose free memory and clock are set by the test."""

    def __init__(self, free: FreeMemory | None = PLENTY) -> None:
        self.free, self.now, self.looks = free, 100.0, 0

    def look(self) -> FreeMemory | None:
        self.looks += 1
        return self.free

    def pressure(self) -> MemoryPressure:
        return MemoryPressure(free=self.look, clock=lambda: self.now)


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def pair(machine: Machine) -> Iterator[Pair]:
    with ascii_pair(budget=Budget()) as opened:
        opened.shared.pressure = machine.pressure()
        yield opened


# -- free memory of the system ------------------------------------------------------------------------------------


def test_free_memory_is_the_available_memory_of_the_machine(tmp_path: Path) -> None:
    assert free_memory(system(tmp_path, "", {})) == FreeMemory(4_096_000_000, 8_192_000_000)


@pytest.mark.parametrize(
    ("groups", "files", "free"),
    [
        (
            "0::/app\n",
            {
                "sys/fs/cgroup/app/memory.max": "1000\n",
                "sys/fs/cgroup/app/memory.current": "900\n",
                "sys/fs/cgroup/app/memory.stat": "anon 500\ninactive_file 200\nactive_file 100\n",
            },
            FreeMemory(400, 1000),
        ),
        (
            "4:memory:/app\n",
            {
                "sys/fs/cgroup/memory/app/memory.limit_in_bytes": "1000\n",
                "sys/fs/cgroup/memory/app/memory.usage_in_bytes": "1200\n",
                "sys/fs/cgroup/memory/app/memory.stat": "total_inactive_file 0\ntotal_active_file 100\n",
            },
            FreeMemory(0, 1000),
        ),
        ("0::/app\n", {"sys/fs/cgroup/app/memory.max": "max\n"}, FreeMemory(4_096_000_000, 8_192_000_000)),
        ("0::/app\n", {"sys/fs/cgroup/app/memory.max": "1000\n"}, FreeMemory(4_096_000_000, 8_192_000_000)),
    ],
    ids=["version 2", "version 1", "no limit", "usage unknown"],
)
def test_free_memory_is_that_of_the_tightest_limit(
    groups: str, files: dict[str, str], free: FreeMemory, tmp_path: Path
) -> None:
    assert free_memory(system(tmp_path, groups, files)) == free


def test_pressure_is_never_short_if_the_system_reports_nothing(tmp_path: Path) -> None:
    assert free_memory(tmp_path) is None
    pressure = Machine(None).pressure()
    assert pressure.looked()
    assert not pressure.short


def test_pressure_looks_once_a_second_and_stays_short_until_enough_is_free(machine: Machine) -> None:
    pressure = machine.pressure()
    seen = []
    for share in (50, 2, 4, 5, 7, 4):
        machine.free = FreeMemory(share, 100)
        assert pressure.looked()
        assert not pressure.looked()
        seen.append(pressure.short)
        machine.now += INTERVAL_S
    assert seen == [False, True, True, True, False, False]
    assert machine.looks == 6


# -- released memory ----------------------------------------------------------------------------------------------


def answer(session: Session, prompt: str, *, machine: Machine | None = None, at: int = 8) -> str:
    """Answer a prompt; memory becomes short after `at` characters."""
    text = ""
    for chunk in session.stream(prompt, max_tokens=40):
        text += chunk.text
        if machine is not None:
            machine.now += INTERVAL_S
            if len(text) >= at:
                machine.free = LITTLE
    return text


def plain_answers(*prompts: str) -> list[str]:
    with ascii_pair() as pair, pair.session(SessionOptions(drafter="none")) as session:
        return [session.generate(prompt, max_tokens=40).text for prompt in prompts]


def test_pressure_releases_the_draft_model_and_texts_stay_the_same(
    pair: Pair, machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "edgedecode.user_notices")
    prompts = "hello", "hello hello hello", "and again hello", "hello at last"
    with pair.session() as session:
        texts = [answer(session, prompts[0])]
        texts.append(answer(session, prompts[1], machine=machine))
        told = ["the system is short of memory: the draft model was released; answers stay the same"]
        assert caplog.messages == told
        assert pair.drafts.loaded == ()
        assert sum(lease.name == "kv:table" for lease in pair.budget.leases) == 1
        texts.append(answer(session, prompts[2]))
        assert session.drafter_name == "suffix"
        machine.free = PLENTY
        machine.now += INTERVAL_S
        texts.append(answer(session, prompts[3]))
        assert session.drafter_name == "model+suffix"
        assert session.stats.mode == "auto"
    assert texts == plain_answers(*prompts)
    assert caplog.messages == told


def test_pressure_releases_memory_of_waiting_sessions(pair: Pair, machine: Machine) -> None:
    with pair.session() as waiting, pair.session() as session:
        first = waiting.stream("hello hello hello", max_tokens=40)
        text = next(first).text
        answer(session, "hello", machine=machine, at=0)
        assert pair.drafts.loaded == ()
        assert sum(lease.name == "kv:table" for lease in pair.budget.leases) == 2
        assert text + "".join(chunk.text for chunk in first) == plain_answers("hello hello hello")[0]


def test_requested_drafter_returns_after_pressure(pair: Pair, machine: Machine) -> None:
    with pair.session(SessionOptions(drafter="model", draft_max=4)) as session:
        answer(session, "hello", machine=machine, at=0)
        assert session.drafter_name == "none"
        answer(session, "hello again")
        assert (session.drafter_name, session.stats.mode) == ("none", "plain")
        machine.free = PLENTY
        machine.now += INTERVAL_S
        answer(session, "hello again")
        assert (session.drafter_name, session.stats.mode) == ("model", "model")


def test_ratio_rule_waits_for_the_draft_model_after_pressure(pair: Pair, machine: Machine) -> None:
    """Other drafters give no distribution, which the ratio rule needs."""
    with pair.session(session_options(sampling=SamplingOptions(temperature=0.8), rule=Rule.RATIO)) as session:
        answer(session, "hello", machine=machine, at=0)
        assert session.drafter_name == "none"
        answer(session, "hello hello hello hello hello")
        assert session.drafter_name == "none"
        machine.free = PLENTY
        machine.now += INTERVAL_S
        answer(session, "hello again")
        assert session.drafter_name == "model"


def test_close_releases_every_lease_after_pressure(machine: Machine) -> None:
    pair = ascii_pair(budget=Budget())
    pair.shared.pressure = machine.pressure()
    session = pair.session()
    answer(session, "hello", machine=machine, at=0)
    session.close()
    pair.close()
    assert pair.budget.leases == ()
