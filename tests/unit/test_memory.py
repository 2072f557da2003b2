"""The memory budget: a hard limit that is checked before memory is allocated."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from gc import collect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from edgedecode.errors import BudgetExceeded, InputError
from edgedecode.memory import process_memory
from edgedecode.memory.budget import Budget, Holder, Lease, SharedBudget
from edgedecode.memory.limit import Limit
from edgedecode.memory.process_memory import ProcessMemory, memory_now, peak_nbytes, resident_nbytes
from edgedecode.memory.sizes import parse_nbytes


def test_reserve_refused_shows_the_full_table_and_changes_nothing() -> None:
    budget = Budget(10_000_000)
    budget.reserve("target weights", 6_000_000)
    budget.reserve("tokenizer", 1_000_000)
    with pytest.raises(BudgetExceeded) as refusal:
        budget.reserve("kv:draft", 4_000_000)
    text = str(refusal.value)
    assert text.splitlines()[0].startswith(
        "4.0 MB are needed for the draft's keys and values, but only 3.0 MB of the 10.0 MB budget are free: "
    )
    rows = {line[:30].strip(): line[-10:].strip() for line in refusal.value.table.splitlines()}
    assert list(refusal.value.table.split()).count("MB") == 4
    assert "working memory" in rows
    assert "the draft's keys and values (requested)" in refusal.value.table
    assert len(rows) == 4
    assert budget.used_nbytes == 7_000_000
    assert [lease.name for lease in budget.leases] == ["target weights", "tokenizer"]


def refused(budget: Budget, name: str, nbytes: int, **options: Any) -> BudgetExceeded:
    with pytest.raises(BudgetExceeded) as refusal:
        budget.reserve(name, nbytes, **options)
    return refusal.value


def test_reserve_refused_distinguishes_sizes_that_round_alike() -> None:
    budget = Budget(20_001_000)
    error = refused(budget, "kv:target", 20_004_000)
    assert (
        error.reason
        == "20.004 MB are needed for the target's keys and values, but only 20.001 MB of the 20.0 MB budget are free"
    )
    assert [line.split()[-2] for line in error.table.splitlines()[-2:]] == ["20.004", "20.001"]


def test_reserve_refused_advises_only_what_helps() -> None:
    """For a fixed size only a larger budget helps; dropping the draft model is advised only if there is one."""
    assert refused(Budget(20_000_000), "process", 70_000_000, fixed=True, following=50_040_000).advice == (
        "no shorter context makes it fit, raise --memory to 120.1MB or more"
    )
    budget = Budget(100_000_000)
    budget.reserve("process", 60_000_000, fixed=True)
    assert refused(budget, "weights:target", 50_010_000, fixed=True).advice == (
        "no shorter context makes it fit, raise --memory to 110.1MB or more"
    )
    assert refused(budget, "kv:target", 50_010_000).advice == (
        "raise --memory to 110.1MB or more, or shorten the context (--ctx-size)"
    )
    budget.reserve("weights:draft", 20_000_000)
    assert refused(budget, "kv:target", 30_000_000).advice == (
        "raise --memory to 110MB or more, shorten the context (--ctx-size), or drop the draft model (--drafter suffix)"
    )


def test_reserve_allows_exactly_the_limit() -> None:
    budget = Budget(100)
    with budget.reserve("a", 60):
        budget.reserve("b", 40)
        with pytest.raises(BudgetExceeded):
            budget.reserve("c", 1)
    budget.reserve("c", 60)
    assert budget.used_nbytes == 100


def test_release_is_idempotent_and_final() -> None:
    budget = Budget(100)
    lease = budget.reserve("a", 60)
    lease.release()
    lease.release()
    assert budget.used_nbytes == 0
    with pytest.raises(ValueError, match="'a' was released"):
        lease.resize(1)


def test_budget_keeps_its_limit_with_many_threads_and_release_never_waits() -> None:
    budget, most = Budget(1000), 0
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def work() -> None:
        nonlocal most
        for _ in range(200):
            with suppress(BudgetExceeded), budget.reserve("a", 300) as lease:
                lease.resize(400)
                most = max(most, budget.used_nbytes)

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work) for _ in range(8)]:
            done.result(60)
    sys.setswitchinterval(before)
    assert 400 <= most <= 1000
    assert (budget.used_nbytes, budget.leases) == (0, ())
    lease = budget.reserve("a", 300)
    budget._lock.run(lease.release)  # as by a finalizer that runs during `reserve`
    assert budget.leases == ()


def test_resize_that_does_not_fit_leaves_the_lease_unchanged() -> None:
    budget = Budget(100)
    lease = budget.reserve("a", 60)
    budget.reserve("b", 30)
    lease.resize(70)
    with pytest.raises(BudgetExceeded):
        lease.resize(71)
    assert lease.nbytes == 70
    lease.resize(0)
    assert budget.used_nbytes == 30


def test_budget_refuses_negative_sizes() -> None:
    budget = Budget(100)
    with pytest.raises(ValueError, match="-1 bytes"):
        budget.reserve("a", -1)
    lease = budget.reserve("a", 5)
    with pytest.raises(ValueError, match="-5 bytes"):
        lease.resize(-5)
    assert budget.used_nbytes == 5


class Cache:
    """A lease holder that releases its memory on request."""

    def __init__(self, budget: Budget, name: str, *, nbytes: int, priority: int, asked: list[str]) -> None:
        self._asked = asked
        self.lease = budget.reserve(name, nbytes, priority=priority)
        self.lease.reclaim = self.release

    def release(self) -> None:
        self._asked.append(self.lease.name)
        self.lease.release()


def test_reserve_reclaims_the_lowest_priorities_first_and_only_as_needed() -> None:
    budget = Budget(100)
    asked: list[str] = []
    for name, priority in (("middle", 2), ("low", 1), ("high", 5), ("lowest", 0)):
        Cache(budget, name, nbytes=25, priority=priority, asked=asked)
    budget.reserve("needed", 40, priority=5)
    assert asked == ["lowest", "low"]
    with pytest.raises(BudgetExceeded, match="needed more"):
        budget.reserve("needed more", 60, priority=5)  # equal priorities are not asked
    assert asked == ["lowest", "low", "middle"]
    assert budget.used_nbytes == 65


def test_resize_reclaims_from_others_but_not_from_itself() -> None:
    budget = Budget(100)
    asked: list[str] = []
    Cache(budget, "cache", nbytes=50, priority=0, asked=asked)
    own = Cache(budget, "own", nbytes=50, priority=3, asked=asked)
    own.lease.resize(90)
    assert asked == ["cache"]
    assert budget.used_nbytes == 90


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("800MB", 800_000_000),
        ("1.5GB", 1_500_000_000),
        ("1.5g", 1_500_000_000),
        (" 512 MiB ", 512 * 2**20),
        ("2KiB", 2048),
        ("1000000", 1_000_000),
        ("1000000B", 1_000_000),
        ("1e6", 1_000_000),
        ("1TB", 10**12),
        ("0.5k", 500),
    ],
)
def test_parse_nbytes_reads_sizes(text: str, nbytes: int) -> None:
    assert parse_nbytes(text) == nbytes


@pytest.mark.parametrize(
    "text",
    [
        *("", "MB", "-5MB", "0", "12 bananas", "nan", "inf", "1e400MB", "5XB", "5iB", "MB5"),
        *("1_000MB", "+5MB", "٥MB", "5 0MB", "infMB", "5BB", "1e999"),
    ],
)
def test_parse_nbytes_reports_an_invalid_size_in_one_line(text: str) -> None:
    with pytest.raises(InputError, match="is not a size: write for example 800MB") as refusal:
        parse_nbytes(text)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "meant"), [("500", "500MB"), ("1.5", "1.5GB"), ("16", "16GB"), (" 2e3 ", "2000MB"), ("800000", "800000KB")]
)
def test_parse_nbytes_asks_for_the_unit_of_a_number_that_no_process_fits(text: str, meant: str) -> None:
    with pytest.raises(InputError, match=rf"did you mean {meant}\?"):
        parse_nbytes(text)


def test_resident_and_peak_nbytes_are_plausible() -> None:
    resident, peak = resident_nbytes(), peak_nbytes()
    if resident is None or peak is None:
        pytest.skip("this system does not report the memory of a process")
    assert 5_000_000 < resident < 8 * 10**9
    assert peak > resident / 2


MEASURE_RESIDENT = """
import numpy, tokenizers
from edgedecode.memory.process_memory import resident_nbytes
held = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in open("/proc/self/smaps_rollup") if "kB" in line}
print(resident_nbytes(), held["Rss"], held["Pss"])
"""


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="compares with /proc/self/smaps_rollup")
def test_resident_nbytes_counts_shared_libraries_in_full() -> None:
    """This process has the same libraries loaded: a child's proportional share (Pss) is smaller."""
    import tokenizers  # noqa: F401

    done = subprocess.run(
        [sys.executable, "-c", MEASURE_RESIDENT], capture_output=True, text=True, check=True, timeout=300
    )
    resident, full, proportional = map(int, done.stdout.split())
    assert resident == pytest.approx(full, abs=500_000)
    assert resident > proportional + 1_000_000


MEASURE_PEAK = """
from edgedecode.memory.process_memory import peak_nbytes
before = peak_nbytes()
held = bytearray(b"x") * 60_000_000
del held
print(peak_nbytes() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="other systems may count differently")
def test_peak_nbytes_has_what_was_freed_since() -> None:
    done = subprocess.run([sys.executable, "-c", MEASURE_PEAK], capture_output=True, text=True, check=True, timeout=300)
    assert int(done.stdout) == pytest.approx(60_000_000, abs=4_000_000)


def test_memory_is_psutils_on_other_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    infos = {
        "memory_info": lambda: SimpleNamespace(rss=7, peak_wset=9),
        "memory_full_info": lambda: SimpleNamespace(uss=3),
    }
    fake = SimpleNamespace(Process=lambda pid: SimpleNamespace(**infos))
    monkeypatch.setitem(sys.modules, "psutil", fake)
    monkeypatch.setattr(process_memory.sys, "platform", "win32")
    assert peak_nbytes() == 9
    assert memory_now() == ProcessMemory(7, None, 3)
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert memory_now() is peak_nbytes() is None


class BudgetMachine(RuleBasedStateMachine):
    """Any sequence of reservations, growth, shrinking and release keeps the sum of leases under the limit."""

    leases = Bundle("leases")

    @initialize(limit=st.integers(1, 500))
    def open(self, limit: int) -> None:
        self.budget = Budget(limit)
        self.sizes: dict[Lease, int] = {}
        self.reclaimable: set[Lease] = set()

    @rule(target=leases, nbytes=st.integers(0, 200), priority=st.integers(0, 3), gives=st.booleans())
    def reserve(self, nbytes: int, priority: int, gives: bool) -> Lease | None:
        before = dict(self.sizes)
        try:
            lease = self.budget.reserve("lease", nbytes, priority=priority)
        except BudgetExceeded:
            kept = sum(size for held, size in before.items() if held.priority >= priority or held.reclaim is None)
            assert kept + nbytes > self.budget.limit_nbytes
            return None
        if gives:
            lease.reclaim = lambda: self.forget(lease)
        self.sizes[lease] = nbytes
        return lease

    @rule(lease=leases, nbytes=st.integers(0, 200))
    def resize(self, lease: Lease | None, nbytes: int) -> None:
        if lease is None or lease not in self.sizes:
            return
        try:
            lease.resize(nbytes)
        except BudgetExceeded:
            assert nbytes > self.sizes[lease]
        else:
            self.sizes[lease] = nbytes

    @rule(lease=consumes(leases))
    def release(self, lease: Lease | None) -> None:
        if lease is not None:
            self.forget(lease)

    def forget(self, lease: Lease) -> None:
        lease.release()
        self.sizes.pop(lease, None)

    @invariant()
    def sum_of_leases_equals_used_nbytes(self) -> None:
        if not hasattr(self, "budget"):
            return
        assert self.budget.used_nbytes == sum(lease.nbytes for lease in self.budget.leases)
        assert self.budget.used_nbytes <= self.budget.limit_nbytes
        assert {lease: lease.nbytes for lease in self.budget.leases} == self.sizes


TestBudget = BudgetMachine.TestCase
TestBudget.settings = settings(max_examples=40, stateful_step_count=40)


def test_parts_of_a_shared_budget_get_what_the_others_leave() -> None:
    shared = SharedBudget(Limit(100_000_000))
    shared.count_program(20_000_000)
    used = shared.used_nbytes
    first, second = shared.part(), shared.part()
    first.reserve("weights:target", 50_000_000)
    assert second.limit_nbytes == 100_000_000 - used - 50_000_000
    assert first.limit_nbytes == 100_000_000 - used
    with pytest.raises(
        BudgetExceeded, match=r"of the 100.0 MB budget are free: raise --memory to 1[0-9.]+MB"
    ) as refusal:
        second.reserve("weights:target", 50_000_000)
    assert "others in this process" in refusal.value.table
    shared.count_program(40_000_000)  # a pack is open, which would be counted twice
    assert shared.used_nbytes == used + 50_000_000
    assert (shared.is_shared(first), shared.is_shared(second)) == (False, True)
    for lease in first.leases:
        lease.release()
    shared.count_program(30_000_000)
    assert shared.used_nbytes == used + 10_000_000
    second.reserve("weights:target", 50_000_000)
    del first, second, refusal
    collect()
    assert shared.used_nbytes == used + 10_000_000  # a budget that nobody has holds nothing


def test_what_stays_until_the_process_ends_is_leased_once() -> None:
    code = Holder("engine code", 10_000_000)
    for shared in (None, SharedBudget(None)):
        budgets = [Budget(), Budget()] if shared is None else [shared.part(), shared.part()]
        for budget in (*budgets, *budgets):
            budget.reserve_for_process(code)
        held = [lease for budget in (budgets if shared is None else shared.parts) for lease in budget.leases]
        assert [lease.name for lease in held].count(code.name) == (2 if shared is None else 1)
