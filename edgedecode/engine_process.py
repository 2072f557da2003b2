"""The child's side of measuring engines: an order as JSON in, one event a line out. Run as a child, never imported."""

from __future__ import annotations

import json
import logging
import sys
from time import perf_counter
from typing import Any

from edgedecode.engine_speeds import MARK
from edgedecode.errors import EdgeDecodeError
from edgedecode.notices import NOTICES
from edgedecode.pair import Pair, load

__all__ = ["main"]

PROMPT, STEPS, REPETITIONS = 32, 16, 3


class _Events(logging.Handler):
    """Passes notices on to the parent."""

    def emit(self, record: logging.LogRecord) -> None:
        _say(notice=record.getMessage())


def main(text: str) -> None:
    """Measure every engine of the order in turns, each opened anew; one that refuses is asked once."""
    order = json.loads(text)
    logger = logging.getLogger(NOTICES)
    logger.addHandler(_Events())
    logger.setLevel(logging.INFO)
    refused: set[str] = set()
    for _ in range(REPETITIONS):
        for name in order["engines"]:
            if name in refused:
                continue
            _say(engine=name)
            try:
                _say(engine=name, seconds=_step_seconds(order, name))
            except EdgeDecodeError as error:
                refused.add(name)
                _say(engine=name, refused=str(error).partition("\n")[0])


def _step_seconds(order: dict[str, Any], name: str) -> float:
    """Open the pack on one engine; return the seconds of one step of plain decoding after a short prompt."""
    with load(
        order["pack"],
        memory=order["memory"],
        runtime=name,
        provider=order["provider"],
        threads=order["threads"],
        kv_type=order["kv_type"],
    ) as pair:
        return _timed(pair)


def _timed(pair: Pair) -> float:
    model = pair.target
    count = model.card.vocabulary_size
    length = min(PROMPT, model.card.context // 2)
    steps = min(STEPS, model.card.context - length - 1)
    state = model.new_state(length + steps + 1)
    model.forward([(7 * place) % count for place in range(length)], state)
    model.forward([0], state)  # the first pass of one row prepares its kernels
    started = perf_counter()
    for step in range(steps):
        state.keep(range(state.pending))
        model.forward([(11 * step) % count], state)
    seconds = (perf_counter() - started) / steps
    state.close()
    return seconds


def _say(**event: object) -> None:
    sys.stdout.write(MARK + json.dumps(event) + "\n")
    sys.stdout.flush()
