"""The memory limit in force: the smallest of those of the option, the environment, the container and the machine."""

from pathlib import Path

import pytest

from edgedecode.cli import main
from edgedecode.errors import BudgetExceeded, InputError
from edgedecode.memory import limit as limits
from edgedecode.memory.budget import Budget
from edgedecode.memory.limit import MACHINE, VARIABLE, Limit, limit_in_force

GROUP = "the container's memory limit"


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset the variable and let the machine have 8 GB."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(limits, "_of_machine", lambda: Limit(8_000_000_000, MACHINE))


def system(root: Path, groups: str, files: dict[str, str]) -> Path:
    """Write the files in which Linux lists a process's control groups and their limits."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        file = root / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


@pytest.mark.parametrize(
    ("asked", "variable", "group", "nbytes", "name"),
    [
        ("500MB", "600MB", 700_000_000, 500_000_000, "--memory"),
        (900_000_000, "600MB", 700_000_000, 600_000_000, VARIABLE),
        ("900MB", "", 700_000_000, 700_000_000, GROUP),
        (None, "9GB", 10_000_000_000, 8_000_000_000, MACHINE),
        (None, "", None, 8_000_000_000, MACHINE),
    ],
)
def test_limit_in_force_is_the_smallest_limit(
    asked: int | str | None,
    variable: str,
    group: int | None,
    nbytes: int,
    name: str,
    *,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, variable)
    root = system(tmp_path, "0::/app\n", {"app/memory.max": "max\n" if group is None else f"{group}\n"})
    limit = limit_in_force(asked, root=root)
    assert (limit.nbytes, limit.name) == (nbytes, name)


@pytest.mark.parametrize(
    ("groups", "files", "nbytes"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": "300\n", "memory.max": "400\n"}, 300),
        ("0::/a/b\n", {"a/b/memory.max": "200\n", "a/memory.max": "300\n"}, 200),
        ("0::/not/seen/from/here\n", {"memory.max": "500\n"}, 500),
        ("0::/../above\n", {"memory.max": "500\n"}, 500),
        ("0::/a\n", {"unified/a/memory.max": "600\n"}, 600),
        ("3:cpu:/a\n9:memory:/a\n0::/\n", {"memory/a/memory.limit_in_bytes": "700\n"}, 700),
        ("9:cpu,memory:/deep\n", {"memory/memory.limit_in_bytes": "800\n"}, 800),
        ("9:memory:/a\n", {"memory/a/memory.limit_in_bytes": "9223372036854771712\n"}, None),
        ("0::/a\n", {"a/memory.max": "many\n"}, None),
        ("0::/a\n", {"a/memory.max": ""}, None),
        ("half a line", {}, None),
        ("0::/\u00e9\n", {"\u00e9/memory.max": "900\n"}, 900),
    ],
)
def test_limit_in_force_is_that_of_a_control_group_or_its_parent(
    groups: str, files: dict[str, str], nbytes: int | None, *, tmp_path: Path
) -> None:
    limit = limit_in_force(root=system(tmp_path, groups, files))
    assert (limit.nbytes, limit.name) == ((8_000_000_000, MACHINE) if nbytes is None else (nbytes, GROUP))


@pytest.mark.parametrize("text", ["0", "lots", "1e9x", "-5MB"])
def test_limit_in_force_names_a_variable_that_is_not_a_size(
    text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(InputError, match=f"^{VARIABLE}: "):
        limit_in_force()
    assert main(["generate", "-p", "a", "-n", "1"]) == 1
    assert capsys.readouterr().err.splitlines() == [f"edgedecode: {VARIABLE}: {text!r} is not a size: " + HELP]


HELP = "write for example 800MB, 1.5GB or 512MiB"


@pytest.mark.parametrize(
    ("limit", "advice", "table"),
    [
        (Limit(10), "raise --memory to 0.1MB or more, or shorten the context (--ctx-size)", "budget "),
        (Limit(10, VARIABLE), f"raise {VARIABLE} to 0.1MB or more, or shorten the context (--ctx-size)", VARIABLE),
        (Limit(10, GROUP), f"raise {GROUP} to 0.1MB or more, or shorten the context (--ctx-size)", GROUP),
        (Limit(10, MACHINE), "use a machine with 0.1MB or more, or shorten the context (--ctx-size)", MACHINE),
    ],
)
def test_budget_refusal_names_the_source_of_the_limit(limit: Limit, advice: str, table: str) -> None:
    with pytest.raises(BudgetExceeded) as refused:
        Budget(limit).reserve("kv:target", 20)
    assert refused.value.advice == advice
    assert table in refused.value.table
    assert (limit.name in refused.value.reason) == (limit.name != "--memory")


def test_generate_reports_a_variable_below_the_memory_option(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "1MB")
    assert main(["generate", "-p", "a", "-n", "1", "--memory", "200MB", "--runtime", "onnx"]) == 1
    stderr = capsys.readouterr().err
    assert f"the memory budget is 1.0 MB, not the 200MB asked for: {VARIABLE}" in stderr
    assert f"raise {VARIABLE} to " in stderr
