"""Loops that `bench --overhead` compares with ours: those on the pair's engine, with a reason for each missing one."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import pytest

from edgedecode import CapabilityError, Pair
from edgedecode.bench.loops import greedy_loop as loops
from edgedecode.bench.loops.greedy_loop import open_loops
from edgedecode.bench.settings import Settings
from edgedecode.pack.manifest import ModelEntry

SETTINGS = Settings(prompts=(), drafters=(), lengths=(), repetitions=1, max_tokens=8, context=128)


class Loop:
    """A loop that records its arguments."""

    runtime = "toy"
    name = setting = "a loop"

    def __init__(self, entry: ModelEntry, folder: Path, *, threads: int | None, capacity: int, kv_type: str) -> None:
        self.opened = (folder, threads, capacity, kv_type)

    def read(self, prompt: Sequence[int]) -> int:
        return prompt[0]

    def decode(self, token: int, count: int) -> list[int]:
        return [token] * count


class OtherEngineLoop(Loop):
    runtime = "another engine"


class RefusingLoop(Loop):
    def __init__(self, entry: ModelEntry, folder: Path, *, threads: int | None, capacity: int, kv_type: str) -> None:
        raise CapabilityError(f"it has no\n  {kv_type}")


Opened = tuple[list[Loop], list[str]]
Open = Callable[..., Opened]


@pytest.fixture
def opened(toy: Pair, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Return a function that opens the given loops for the toy pair."""

    def open_them(**factories: type[Loop] | Exception) -> Opened:
        def resolve(name: str) -> type[Loop]:
            factory = factories[name]
            if isinstance(factory, Exception):
                raise factory
            return factory

        monkeypatch.setattr(loops, "LOOPS", {name: name for name in factories})
        monkeypatch.setattr(loops, "resolve_name", resolve)
        monkeypatch.setattr(toy, "runtime", "toy")
        arguments = Namespace(threads=3)
        return cast(Opened, open_loops(arguments, toy, settings=SETTINGS))

    return open_them


def test_open_loops_uses_the_pairs_engine_and_settings(opened: Open, toy: Pair) -> None:
    found, reasons = opened(bare=Loop, other=OtherEngineLoop)
    assert [loop.opened for loop in found] == [(toy.root, 3, 128, toy.target.card.kv_type)]
    assert reasons == []


def test_open_loops_without_any_loop_gives_a_reason(opened: Open) -> None:
    assert opened(other=OtherEngineLoop) == ([], ["there are no other loops for toy"])


def test_open_loops_skips_a_loop_that_fails(opened: Open) -> None:
    found, reasons = opened(a=RefusingLoop, b=ImportError("x", name="engine"), c=Loop)
    assert len(found) == 1
    assert reasons[0].startswith("a: it has no float")
    assert reasons[1:] == ["b: engine is not installed"]
