"""The loops that the llama.cpp runtime is measured against: they say what it says, and refuse what they cannot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from edgedecode.errors import CapabilityError
from edgedecode.memory.budget import Budget
from edgedecode.pack.manifest import ModelEntry
from tests.contract.conftest import GgufOpener, open_gguf
from tests.contract.toy_graph import ToyShape

pytest.importorskip("llama_cpp", reason="the llama extra is not installed")

from edgedecode.bench.loops.llama_loops import HighLevelLoop, LlamaBareLoop

LOOPS = [LlamaBareLoop, HighLevelLoop]
PROMPT = list(range(40, 70)) * 5
"""Longer than a pass."""
CAPACITY = 256


@pytest.fixture
def root(gguf_opener: GgufOpener) -> Path:
    gguf_opener.entry(ToyShape())
    return gguf_opener.root(ToyShape())


@pytest.fixture
def entry(gguf_opener: GgufOpener) -> ModelEntry:
    return gguf_opener.entry(ToyShape())


@pytest.fixture
def ours(entry: ModelEntry, root: Path) -> Iterator[list[int]]:
    """Twenty tokens after the prompt, by the runtime itself."""
    model = open_gguf(entry, root, budget=Budget())
    state = model.new_state(CAPACITY)
    logits = model.forward(PROMPT, state).logits
    tokens: list[int] = []
    for _ in range(20):
        tokens.append(int(logits[0].argmax()))
        logits = model.forward(tokens[-1:], state).logits
    yield tokens
    model.close()


@pytest.mark.parametrize("factory", LOOPS)
def test_a_loop_says_what_the_runtime_says(
    factory: type[LlamaBareLoop] | type[HighLevelLoop], entry: ModelEntry, root: Path, ours: list[int]
) -> None:
    loop = factory(entry, root, threads=1, capacity=CAPACITY, kv_type="float32")
    for _ in range(2):  # reading starts over
        first = loop.read(PROMPT)
        assert [first, *loop.decode(first, 9)] == ours[:10]
        assert loop.decode(ours[9], 10) == ours[10:]
    assert loop.setting == "context of 256, 1 threads, 128 rows per pass, float32 KV cache, flash attention off"


@pytest.mark.parametrize("factory", LOOPS)
def test_a_loop_refuses_what_it_cannot(
    factory: type[LlamaBareLoop] | type[HighLevelLoop], entry: ModelEntry, root: Path
) -> None:
    with pytest.raises(CapabilityError, match="has no GGUF file"):
        factory(replace(entry, gguf=""), root, threads=1, capacity=CAPACITY, kv_type="float32")
    loop = factory(entry, root, threads=1, capacity=CAPACITY, kv_type="float32")
    first = loop.read(PROMPT)
    with pytest.raises(CapabilityError, match="107 tokens do not fit the 106 positions left"):
        loop.decode(first, CAPACITY - len(PROMPT) + 1)
