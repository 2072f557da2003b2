"""`bench --memory-sweep`: plans a chat on each engine, runs it under each budget, and prints the results."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from edgedecode import CapabilityError, InputError
from edgedecode.apps.bundled_prompts import bundled_prompts
from edgedecode.apps.memory_table import memory_json
from edgedecode.apps.terminal import progress, show_notices
from edgedecode.commands import print_json
from edgedecode.engines.child import ask_child, child_command
from edgedecode.engines.registry import RUNTIMES, installed
from edgedecode.engines.selection import AUTO
from edgedecode.library.find import find_pack
from edgedecode.memory.limit import VARIABLE
from edgedecode.memory.process_memory import peak_nbytes
from edgedecode.text.prompts import interleaved

from ..lock import one_at_a_time
from ..report.bench_tables import Report
from ..report.conditions import SweepConditions
from ..report.sweep_tables import show_sweep, write_sweep_chart
from .sweep_runs import Chat, SweepRun, budgets

TURNS = 32
_ENVIRONMENT = {VARIABLE: "", "PYTHONWARNINGS": "ignore"}
"""Environment of the child processes. The variable is cleared because the sweep sets the budgets itself."""


def memory_sweep(arguments: Namespace) -> int:
    """Measure, print the results, and return 0 if every chat finished within its budget."""
    engines = _engines(arguments.runtime)
    if peak_nbytes() is None:
        raise CapabilityError("peak memory is reported by psutil only here: pip install 'edgedecode[measure]'")
    root = find_pack(arguments.model, arguments.draft)
    order = _order(arguments, pack=str(root), turns=arguments.turns or TURNS)
    show_notices()
    conditions = SweepConditions.of(root, arguments, engines=engines, turns=order["turns"])
    report = Report(conditions)
    runs: list[SweepRun] = []
    reasons: list[str] = []
    try:
        with one_at_a_time():
            for engine in engines:
                _measure(order, engine, count=arguments.memory_sweep, runs=runs, reasons=reasons)
    finally:  # an interrupted sweep still shows its finished runs
        show_sweep(report, runs)
    if not runs:
        raise CapabilityError(f"nothing could be measured: {'; '.join(reasons)}")
    report.lines(f"Not measured: {reason}" for reason in reasons)
    if arguments.plot is not None:
        write_sweep_chart(arguments.plot, runs, conditions=conditions.line())
    if arguments.json:
        value = {"conditions": asdict(conditions), "runs": [_json(run) for run in runs], "not_measured": reasons}
        print_json(value)
    return 0 if all(run.kept for run in runs) else 1


def _engines(name: str | None) -> list[str]:
    known = list(installed(RUNTIMES))
    if name in (None, AUTO):
        return known
    if name not in known:
        raise InputError(f"there is no runtime {name!r}; installed: {', '.join(known)}")
    return [str(name)]


def _order(arguments: Namespace, *, pack: str, turns: int) -> dict[str, Any]:
    """Return the order for every child process."""
    return {
        "pack": pack,
        "turns": turns,
        "max_tokens": arguments.max_tokens,
        "context": arguments.ctx_size,
        "verify": arguments.verify,
        "texts": _texts(),
        "opening": {
            "provider": arguments.provider,
            "threads": arguments.threads,
            "kv_type": arguments.kv_type,
            "mmap": not arguments.no_mmap,
            "repack": not arguments.no_repack,
            "draft_on": arguments.draft_on,
        },
    }


def _texts() -> list[str]:
    """Return the bundled prompts, interleaved by family."""
    return [prompt.turns[0] for prompt in interleaved(bundled_prompts(), name=lambda prompt: prompt.family)]


def _measure(order: Mapping[str, Any], engine: str, *, count: int, runs: list[SweepRun], reasons: list[str]) -> None:
    """Add the engine's chats to `runs`, or the reason why it cannot plan one to `reasons`."""
    mine = {**order, "opening": {**order["opening"], "runtime": engine}}
    planned = _child_reply({**mine, "turns": None})
    if "failure" in planned:
        reasons.append(f"{engine}: {planned['failure']}")
        return
    sizes = budgets(planned["least"], planned["whole"], count)
    with progress(f"chats on {engine}", len(sizes)) as advance:
        for budget in sizes:
            runs.append(_run(engine, budget, _child_reply({**mine, "memory": budget})))
            advance()


def _child_reply(order: Mapping[str, object]) -> dict[str, Any]:
    """Run a child process and return its reply, or its failure."""
    command = child_command("edgedecode.bench.sweep.chat_child:main")
    assert command is not None, "bench needs a Python interpreter for its child processes"
    reply = ask_child(command, given=json.dumps(order), environment=_ENVIRONMENT)
    if reply.failure or not reply.told:
        return {"failure": reply.failure or "it gave no answer"}
    last: dict[str, Any] = reply.told[-1]
    return last


def _run(engine: str, budget: int | None, reply: Mapping[str, Any]) -> SweepRun:
    if "failure" in reply:
        return SweepRun(engine, budget, None, reply["failure"])
    return SweepRun(engine, budget, Chat(**{**reply["chat"], "given_up": tuple(reply["chat"]["given_up"])}))


def _json(run: SweepRun) -> dict[str, object]:
    chat = run.chat
    value: dict[str, object] = {
        "engine": run.engine,
        "budget_nbytes": run.budget_nbytes,
        "verdict": run.verdict,
        "failure": run.failure,
    }
    if chat is None:
        return value
    return {
        **value,
        **memory_json(chat.planned_nbytes, chat.peak_nbytes),
        "as_planned": run.as_planned,
        "context": chat.context,
        "longest": chat.longest,
        "drafters": chat.drafters,
        "given_up": list(chat.given_up),
        "tokens_per_second": round(chat.tokens_per_second, 2),
    }
