"""Several threads on one pair: every answer equals that of a single run."""

from threading import Event
from typing import Any

import pytest

from edgedecode.decoding.loop import PREFILL_CHUNK
from edgedecode.memory.budget import Budget
from edgedecode.pair import Pair
from edgedecode.sampling.weights import SamplingOptions
from tests.property.workers import DRAFTERS, PATIENCE, Worker, answered, leases, options, waiting
from tests.toys import ascii_pair

WARM = SamplingOptions(temperature=0.9, top_k=40)
PROMPTS = ["hello", "tell me, tell me, tell me", "and then?", "once upon a time"]


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [None, WARM], ids=["greedy", "sampled"])
def test_threads_get_the_answers_of_single_runs(pair: Pair, sampling: SamplingOptions | None, hasty: None) -> None:
    before = leases(pair)
    lone = {
        (prompt, drafter): answered(pair, prompt, options(drafter, sampling))
        for prompt in PROMPTS
        for drafter in DRAFTERS
    }

    def work(number: int) -> None:
        for turn, drafter in enumerate(DRAFTERS):
            prompt = PROMPTS[(number + turn) % len(PROMPTS)]
            done = answered(pair, prompt, options(drafter, sampling))
            assert done.tokens == lone[prompt, drafter].tokens
            assert done.text == lone[prompt, drafter].text

    for worker in [Worker(lambda number=number: work(number)) for number in range(6)]:  # type: ignore[misc]
        worker.join()
    assert leases(pair) == before


def test_threads_finish_a_round_before_another_sessions_pass(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between a pass of a session and the end of its round no other session's pass runs, and rounds alternate."""
    passes = list[tuple[str, int]]()
    target: Any = pair.target
    forward, keep = target.forward, type(pair.session(options("none"))._turns.state).keep  # type: ignore[attr-defined]

    def passed(tokens: Any, state: Any, **named: Any) -> Any:
        passes.append(("forward", id(state)))
        return forward(tokens, state, **named)

    def kept(state: Any, path: Any) -> None:
        passes.append(("keep", id(state)))
        keep(state, path)

    monkeypatch.setattr(target, "forward", passed)
    monkeypatch.setattr("edgedecode.testing.TableState.keep", kept)
    sessions = [pair.session(options("none")) for _ in range(4)]
    for worker in [Worker(lambda each=each: each.generate("hello", max_tokens=40)) for each in sessions]:  # type: ignore[misc]
        worker.join()
    assert [what for what, _ in passes] == ["forward", "keep"] * (len(passes) // 2)
    assert all(first == second for (_, first), (_, second) in zip(passes[::2], passes[1::2], strict=True))
    assert {state for _, state in passes} == {id(session._turns.state) for session in sessions}


def test_threads_answer_during_the_prefill_of_a_long_prompt(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    order = list[str]()
    target: Any = pair.target
    long, short = pair.session(options("none")), pair.session(options("none"))
    forward, ready = target.forward, Event()

    def passed(tokens: Any, state: Any, **named: Any) -> Any:
        name = "long" if state is long._turns.state else "short"
        order.append(name)
        if name == "long" and len(order) == 1:
            ready.set()
            waiting(pair, 2)
        return forward(tokens, state, **named)

    monkeypatch.setattr(target, "forward", passed)
    reader = Worker(lambda: long.generate("x" * (3 * PREFILL_CHUNK), max_tokens=1))
    assert ready.wait(PATIENCE)
    short.generate("hello", max_tokens=3)
    reader.join()
    assert order[:3] == ["long", "short", "long"]


def test_threads_may_open_and_close_sessions_while_others_answer(hasty: None) -> None:
    pair = ascii_pair(noise=0.4, budget=Budget())
    lone = answered(ascii_pair(noise=0.4), "hello", options("none"), max_tokens=60).tokens

    def work(drafter: str) -> None:
        for _ in range(5):
            assert answered(pair, "hello", options(drafter), max_tokens=60).tokens == lone

    for worker in [Worker(lambda drafter=drafter: work(drafter)) for drafter in DRAFTERS]:  # type: ignore[misc]
        worker.join()
    assert len(pair.drafts.loaded) == 1
    pair.close()
    assert leases(pair) == []
