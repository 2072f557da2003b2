"""Which loops `bench --overhead` compares ours with: those on the pair's engine, and a reason for each missing one."""

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
    """Remembers what it was opened with."""

    runtime = "toy"
    name = setting = "a loop"

    def __init__(self, entry: ModelEntry, folder: Path, *, threads: int | None, capacity: int, kv_type: str) -> None:
        self.opened = (folder, threads, capacity, kv_type)

    def read(self, prompt: Sequence[int]) -> int:
        return prompt[0]

    def decode(self, token: int, count: int) -> list[int]:
        return [token] * count


class Elsewhere(Loop):
    runtime = "another engine"


class Refusing(Loop):
    def __init__(self, entry: ModelEntry, folder: Path, *, threads: int | None, capacity: int, kv_type: str) -> None:
        raise CapabilityError(f"it has no\n  {kv_type}")


Opened = tuple[list[Loop], list[str]]
Open = Callable[..., Opened]


@pytest.fixture
def opened(toy: Pair, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Open these loops for the toy pair."""

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


def test_loops_on_the_pair_s_engine_open_with_its_conditions(opened: Open, toy: Pair) -> None:
    found, reasons = opened(bare=Loop, foreign=Elsewhere)
    assert [loop.opened for loop in found] == [(toy.root, 3, 128, toy.target.card.kv_type)]
    assert reasons == []


def test_no_loop_is_a_reason_too(opened: Open) -> None:
    assert opened(foreign=Elsewhere) == ([], ["there are no other loops for toy"])


def test_one_that_cannot_run_leaves_the_others(opened: Open) -> None:
    found, reasons = opened(a=Refusing, b=ImportError("x", name="engine"), c=Loop)
    assert len(found) == 1
    assert reasons[0].startswith("a: it has no float")
    assert reasons[1:] == ["b: engine is not installed"]
