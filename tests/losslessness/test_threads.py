"""Eight threads on one pair of a real engine: every answer equals a single run's, and every lease is released.

EDGEDECODE_THREAD_ANSWERS is the number of answers per thread: 3, or 200 for the long run (minutes).
"""

import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Thread
from time import perf_counter

import pytest

import edgedecode
from edgedecode import Pair, SamplingOptions, SessionOptions
from edgedecode.library.names import BUNDLED_PACK
from edgedecode.sessions.draft_models import DRAFT_ROLES

THREADS = 8
ANSWERS = int(os.environ.get("EDGEDECODE_THREAD_ANSWERS", "3"))
PATIENCE = 3600.0
MAX_TOKENS = 24
GREEDY = SamplingOptions()
LONG = "Say it again: " + "the fox and the lighthouse. " * 30


@pytest.fixture(params=["onnx", "llama"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    if request.param == "llama":
        pytest.importorskip("llama_cpp", reason="the llama extra is not installed")
    with edgedecode.load(BUNDLED_PACK, runtime=request.param) as made:
        yield made


def ways(pair: Pair) -> list[SessionOptions]:
    """Return the threads' options: any where rows round alike, else only those whose passes have the same widths in
    every run, so that no near tie flips."""
    given = [SessionOptions(sampling=GREEDY, drafter="none")]
    given += [SessionOptions(sampling=GREEDY, drafter=name, draft_max=4) for name in ("model", "suffix", "recycle")]
    if pair.target.card.row_invariant:
        given += [SessionOptions(sampling=GREEDY)]
    return given


def test_eight_threads_get_the_answers_of_single_runs_and_release_all_leases(
    pair: Pair, prompts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A third of the answers is cancelled midway, half of these by another thread: these must be prefixes."""
    for role in DRAFT_ROLES:
        pair.drafts.can_load(role)  # one that no session uses is closed when another is loaded
    given, asked = ways(pair), [*prompts[:5], LONG]
    lone = dict[tuple[int, str], tuple[int, ...]]()
    for way, options in enumerate(given):
        for prompt in asked:
            with pair.session(options) as session:
                lone[way, prompt] = session.generate(prompt, max_tokens=MAX_TOKENS).tokens
    before = leases(pair)
    counts = Counter[str]()

    def work(thread: int) -> Counter[str]:
        return sum((answer(thread * 7 + number) for number in range(ANSWERS)), Counter[str]())

    def answer(number: int) -> Counter[str]:
        way, prompt = number % len(given), asked[number * 5 % len(asked)]
        with pair.session(given[way]) as session:
            stream = session.stream(prompt, max_tokens=MAX_TOKENS)
            tokens = list[int]()
            closer = Thread(target=session.close)
            kind = ("full", "full", "full", "full", "closed by another thread", "closed by its own")[number % 6]
            for place, chunk in enumerate(stream):
                tokens += chunk.tokens
                if place == 2 + number % 4:
                    if kind == "closed by another thread":
                        closer.start()
                    elif kind == "closed by its own":
                        stream.close()
            if closer.ident is not None:
                closer.join(PATIENCE)
        expected = lone[way, prompt]
        assert tuple(tokens) == (expected if kind == "full" else expected[: len(tokens)]), (kind, given[way], prompt)
        short = len(tokens) < len(expected)
        return Counter({kind: 1, f"{kind}, cut short": short, "tokens": len(tokens)})

    started = perf_counter()
    with ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(work, thread) for thread in range(THREADS)]:
            counts += done.result(PATIENCE)
    with capsys.disabled():
        print(f"\n{pair.runtime}: {dict(counts)}, {len(given)} ways, {perf_counter() - started:.1f} s")
    assert all(counts[kind] > 0 for kind in ("full", "closed by another thread", "closed by its own"))
    assert counts["closed by another thread, cut short"] > 0
    assert counts["closed by its own, cut short"] > 0
    assert leases(pair) == before


def leases(pair: Pair) -> list[tuple[str, int]]:
    return sorted((lease.name, lease.nbytes) for lease in pair.budget.leases)
