"""`bench --memory-sweep`: plans a chat on each engine, runs it under each budget, and prints the results."""

import json
from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import Any

from edgedecode import CapabilityError, InputError
from edgedecode.apps.machine import Machine
from edgedecode.apps.terminal import show_notices, tracked
from edgedecode.commands import print_json
from edgedecode.engines.child import ask_child, child_command
from edgedecode.engines.registry import RUNTIMES, installed
from edgedecode.engines.selection import AUTO
from edgedecode.library.find import find_pack
from edgedecode.memory.limit import VARIABLE
from edgedecode.memory.process_memory import peak_nbytes
from edgedecode.memory.sizes import format_nbytes

from ..lock import one_at_a_time
from ..report.bench_tables import show_lines, show_table

TURNS = 32
_ENVIRONMENT = {VARIABLE: "", "PYTHONWARNINGS": "ignore"}
"""Of the child processes. The variable is cleared because the sweep sets the budgets itself."""

Run = dict[str, Any]
"""A chat's engine, budget (None: only the machine's limit), verdict and figures, as `--json` has them."""


def memory_sweep(arguments: Namespace) -> int:
    """Measure, print the results, and return 0 if every chat finished within its budget."""
    engines = _engines(arguments.runtime)
    if peak_nbytes() is None:
        raise CapabilityError("peak memory is reported by psutil only here: pip install 'edgedecode[measure]'")
    order = _order(arguments)
    show_notices()
    runs: list[Run] = []
    reasons: list[str] = []
    try:
        with one_at_a_time():
            for engine in engines:
                mine = {**order, "runtime": engine}
                planned = _child_reply({**mine, "turns": None})
                if "failure" in planned:
                    reasons.append(f"{engine}: {planned['failure']}")
                    continue
                sizes = budgets(planned["least"], planned["whole"], arguments.memory_sweep)
                for budget in tracked(sizes, f"chats on {engine}"):
                    found = _child_reply({**mine, "memory": budget})
                    runs.append({"engine": engine, "budget_nbytes": budget, "verdict": verdict(budget, found), **found})
    finally:  # an interrupted sweep still shows its finished runs
        _show(runs, f"Peak memory of a chat of {order['turns']} turns by budget; {Machine.here().line}")
    if not runs:
        raise CapabilityError(f"nothing could be measured: {'; '.join(reasons)}")
    show_lines(f"Not measured: {reason}" for reason in reasons)
    if arguments.json:
        print_json({"runs": runs, "not_measured": reasons})
    return 0 if all(run["verdict"] == "kept" for run in runs) else 1


def _engines(name: str | None) -> list[str]:
    known = list(installed(RUNTIMES))
    if name in (None, AUTO):
        return known
    if name not in known:
        raise InputError(f"there is no runtime {name!r}; installed: {', '.join(known)}")
    return [str(name)]


def _order(arguments: Namespace) -> dict[str, Any]:
    """Return the arguments that are JSON values, for every child process, with the pack that they name."""
    plain = {name: each for name, each in vars(arguments).items() if isinstance(each, str | int | float | None)}
    pack = str(find_pack(arguments.model, arguments.draft))
    return {**plain, "model": pack, "draft": None, "turns": arguments.turns or TURNS}


def budgets(least: int, whole: int, count: int) -> tuple[int | None, ...]:
    """Return `count` budgets: evenly spaced from `least` to `whole`, the memory without cuts, then unlimited."""
    limited = count - 1
    step = (whole - least) / max(1, limited - 1)
    return (*dict.fromkeys(least + round(index * step) for index in range(limited)), None)


def verdict(budget: int | None, found: Mapping[str, Any]) -> str:
    """Return "kept", by how much the peak exceeds the budget, or that the chat did not finish."""
    if "failure" in found:
        return "aborted"
    over = 0 if budget is None else found["peak_nbytes"] - budget
    return f"over by {format_nbytes(over)}" if over > 0 else "kept"


def _child_reply(order: Mapping[str, object]) -> dict[str, Any]:
    """Run a child process and return its reply, or its failure."""
    command = child_command("edgedecode.bench.sweep.chat_child:main")
    assert command is not None, "bench needs a Python interpreter for its child processes"
    reply = ask_child(command, given=json.dumps(order), environment=_ENVIRONMENT)
    if reply.failure or not reply.told:
        return {"failure": reply.failure or "it gave no answer"}
    last: dict[str, Any] = reply.told[-1]
    return last


def _show(runs: list[Run], title: str) -> None:
    def size(name: str) -> Callable[[Run], str]:
        return lambda run: "-" if run.get(name) is None else format_nbytes(run[name])

    columns: dict[str, Callable[[Run], str]] = {
        "engine": lambda run: run["engine"],
        "budget": lambda run: "unlimited" if run["budget_nbytes"] is None else format_nbytes(run["budget_nbytes"]),
        "planned": size("planned_nbytes"),
        "peak": size("peak_nbytes"),
        "verdict": lambda run: f"[{'green' if run['verdict'] == 'kept' else 'red'}]{run['verdict']}[/]",
        "tokens": lambda run: f"{run.get('longest', '-')} of {run.get('context', '-')}",
        "drafters": lambda run: run.get("drafters", "-"),
        "cuts": lambda run: "; ".join(run.get("given_up", ())) or "none",
    }
    show_table(title, columns, runs)
    aborted = [(columns["budget"](run), run) for run in runs if "failure" in run]
    show_lines(f"Aborted: {run['engine']}, {budget}: {run['failure']}" for budget, run in aborted)
