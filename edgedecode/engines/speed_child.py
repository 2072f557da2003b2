"""Measures one engine in a child process: takes a JSON order, prints one event per line. Never imported."""

from __future__ import annotations

import json
import logging
from statistics import median
from time import perf_counter
from typing import Any

from edgedecode.decoding.policy import NO_DRAFTER
from edgedecode.errors import BudgetExceeded, EdgeDecodeError
from edgedecode.memory.process_memory import held_nbytes
from edgedecode.open_pack import load
from edgedecode.options import DEFAULT_CONTEXT, SessionOptions
from edgedecode.pair import PROCESS, Pair
from edgedecode.user_notices import NOTICES

from .child import tell_parent
from .interface import ADAPTERS, NO_MMAP, NO_REPACK
from .registry import find_runtime

PROMPT, STEPS, REPETITIONS = 32, 16, 3
LOOKUP = "suffix"
"""A drafter that needs almost no memory itself; the session still plans logits for drafts, as with any drafter."""


class _NoticeForwarder(logging.Handler):
    """Forwards notices to the parent."""

    def emit(self, record: logging.LogRecord) -> None:
        _report(notice=record.getMessage())


def main(text: str) -> None:
    """Open the pack on the order's engine and report a session's memory and the time per token, or the refusal.

    The budget is reduced by the parent's extra memory use, so that this process has as much free as the parent.
    """
    order, before = json.loads(text), held_nbytes() or 0
    logger = logging.getLogger(NOTICES)
    logger.addHandler(_NoticeForwarder())
    logger.setLevel(logging.INFO)
    try:
        _measure(order, before=before)
    except BudgetExceeded as error:
        _report(least=error.needed_nbytes - before)
    except EdgeDecodeError as error:
        _report(refused=error.reason)


def _measure(order: dict[str, Any], *, before: int) -> None:
    memory = order["memory"]
    engine = find_runtime(order["engine"])
    loaded = (held_nbytes() or 0) - before
    with load(
        order["pack"],
        memory=None if memory is None else memory - max(0, order["held"] - before),
        runtime=engine,
        provider=order["provider"],
        threads=order["threads"],
        kv_type=order["kv_type"],
        mmap=NO_MMAP not in order["loading"],
        repack=NO_REPACK not in order["loading"],
        adapters=ADAPTERS in order["loading"],
    ) as pair:
        try:
            _report(needs=loaded + _planned_nbytes(pair, order["context"]))
        except BudgetExceeded:
            if (least := _least_nbytes(pair, order["context"])) is not None:
                _report(runs=loaded + least)
            raise
        if order["timed"]:
            _report(seconds=median(_step_seconds(pair) for _ in range(REPETITIONS)))


def _planned_nbytes(pair: Pair, context: int | None) -> int:
    """Return the bytes that a session of `context` positions leases, excluding drafters and the process itself."""
    card = pair.target.card
    positions = max(2, min(context or DEFAULT_CONTEXT, card.context))  # explicit, so that it is not shortened to fit
    with pair.session(SessionOptions(context=positions, drafter=LOOKUP if card.rollback else NO_DRAFTER)):
        return sum(lease.nbytes for lease in pair.budget.leases if lease.name != PROCESS)


def _least_nbytes(pair: Pair, context: int | None) -> int | None:
    """Return the bytes that the smallest session leases, as in `_planned_nbytes`; None: the engine has no footprint."""
    if (footprint := pair.shared.footprint) is None:
        return None
    plan = footprint.fit_session(SessionOptions(context=context), pair.budget)
    return plan.least_running + sum(lease.nbytes for lease in pair.budget.leases if lease.name != PROCESS)


def _step_seconds(pair: Pair) -> float:
    """Return the seconds of one baseline decoding step after a short prompt."""
    model = pair.target
    count = model.card.vocabulary_size
    length = min(PROMPT, model.card.context // 2)
    steps = min(STEPS, model.card.context - length - 1)
    state = model.new_state(length + steps + 1)
    model.forward([(7 * index) % count for index in range(length)], state)
    model.forward([0], state)  # warm-up: the first one-row pass prepares its kernels
    started = perf_counter()
    for step in range(steps):
        state.keep(range(state.pending))
        model.forward([(11 * step) % count], state)
    seconds = (perf_counter() - started) / steps
    state.close()
    return seconds


def _report(**event: object) -> None:
    tell_parent(event)
