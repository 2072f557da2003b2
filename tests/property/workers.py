"""Threads that answer from one pair, and passes that are held until a test lets them go.

The toy model overwrites its returned rows at its next pass, so that an answer that used another session's rows, or its
own rows after another pass, would fail or differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Any

import pytest

from edgedecode.options import SessionOptions
from edgedecode.pair import Pair
from edgedecode.sampling.weights import SamplingOptions
from edgedecode.sessions.chunks import Completion
from tests.toys import session_options

PATIENCE = 60.0
"""Seconds after which a test counts as hanging."""
DRAFTERS = ["none", "model", "suffix", "recycle", "tree"]


def leases(pair: Pair) -> list[tuple[str, int]]:
    return sorted((lease.name, lease.nbytes) for lease in pair.budget.leases)


@dataclass
class Worker:
    """A thread and the outcome of its work."""

    work: Callable[[], object]
    result: Any = None
    error: BaseException | None = None
    thread: Thread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.result = self.work()
        except BaseException as error:
            self.error = error

    def join(self) -> Any:
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive(), "it hangs"
        if self.error is not None:
            raise self.error
        return self.result


@dataclass
class Gate:
    """Hold the target's passes: `entered` is set when one waits, `go` lets all run."""

    entered: Event = field(default_factory=Event)
    go: Event = field(default_factory=Event)

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *exception: object) -> None:
        self.go.set()


def gated(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> Gate:
    gate, forward = Gate(), pair.target.forward

    def wait(*words: Any, **named: Any) -> Any:
        gate.entered.set()
        assert gate.go.wait(PATIENCE)
        return forward(*words, **named)

    monkeypatch.setattr(pair.target, "forward", wait)
    return gate


def waiting(pair: Pair, count: int) -> None:
    """Wait until `count` threads wait for the models."""
    while len(pair.turn._queue) < count:
        Event().wait(0.001)


def options(drafter: str = "model", sampling: SamplingOptions | None = None, **named: Any) -> SessionOptions:
    length = 6 if drafter == "tree" else 3  # smaller trees are chains
    return session_options(**{"drafter": drafter, "draft_max": length, "seed": 5, "sampling": sampling, **named})


def answered(pair: Pair, prompt: str, chosen: SessionOptions, *, max_tokens: int = 30) -> Completion:
    with pair.session(chosen) as session:
        return session.generate(prompt, max_tokens=max_tokens)
