"""Adapters in a budget: which are loaded, leased and evicted, with the answers of separate sessions."""

import gc
import shutil
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from random import Random
from threading import Thread

import pytest

import edgedecode
from edgedecode import Pair, Session
from edgedecode.adapters.peft_folder import WEIGHTS
from edgedecode.errors import BudgetExceeded, ManifestError
from edgedecode.memory.limit import Limit
from edgedecode.sessions.answer import Answer
from tests.losslessness.adapters import ADAPTERS, ENGINES, PROMPTS, options
from tests.peft_folders import list_adapter
from tests.toys import session_options


@pytest.fixture
def pair(adapter_pair: Pair) -> Pair:
    return adapter_pair


@pytest.mark.parametrize("ask", [Session.stream, Session.complete], ids=["stream", "complete"])
def test_adapter_that_was_replaced_is_evictable_after_the_answer(pair: Pair, ask: Callable[..., Answer]) -> None:
    pair.turn.run(pair.budget.give_back)
    with pair.session(options("ordinary")) as session:
        answer = ask(session, PROMPTS[0], max_tokens=8)
        next(answer)
        session.use_adapter("another")
        pair.turn.run(pair.budget.give_back)
        assert set(adapters_of(pair)) == {"ordinary", "another"}
        list(answer)
        pair.turn.run(pair.budget.give_back)
        assert set(adapters_of(pair)) == {"another"}


def test_adapter_of_a_session_that_was_never_closed_is_evictable(pair: Pair) -> None:
    """The session is collected in any thread, even while another one holds the models."""
    pair.turn.run(pair.budget.give_back)
    with pair.session(options("ordinary")) as other:
        dropped = [pair.session(options(name)) for name in ("ordinary", "another")]
        for session in dropped:
            next(session.stream(PROMPTS[0], max_tokens=8))

        def collect() -> None:
            dropped.clear()
            gc.collect()

        del session
        thread = Thread(target=collect)
        pair.turn.run(lambda: (thread.start(), thread.join(timeout=60)))
        assert not thread.is_alive()
        pair.turn.run(pair.budget.give_back)
        assert set(adapters_of(pair)) == {"ordinary"}
        assert other.generate(PROMPTS[0], max_tokens=4).tokens
        assert not pair.turn.run(pair.budget.give_back)
    assert pair.turn.run(pair.budget.give_back)
    assert not adapters_of(pair)


def test_adapter_without_a_session_is_evicted_for_the_encoding_of_a_long_prompt(pair: Pair) -> None:
    """The second message must not drop a turn either."""
    with pair.session(options("ordinary")) as session:
        session.generate(PROMPTS[0], max_tokens=2)
    with pair.session(replace(options(None), context=256)) as session:
        session.generate(PROMPTS[0], max_tokens=2)
        try:
            pair.budget.limit = Limit(pair.budget.used_nbytes + 1000)
            done = session.generate(" " * 3000, max_tokens=2)
        finally:
            pair.budget.limit = None
        assert not done.stats.dropped_turns
        assert "ordinary" not in adapters_of(pair)


def test_use_adapter_refuses_a_scale_that_does_not_fit_the_budget(pair: Pair) -> None:
    """ONNX Runtime's graph needs scaled matrices; llama.cpp takes the scale itself."""
    pair.turn.run(pair.budget.give_back)
    with pair.session(options("ordinary")) as session:
        first = session.generate(PROMPTS[0], max_tokens=8)
        try:
            pair.budget.limit = Limit(pair.budget.used_nbytes + 10_000)
            if pair.runtime == "onnx":
                with pytest.raises(BudgetExceeded):
                    session.use_adapter("ordinary", scale=0.5)
            else:
                session.use_adapter("ordinary", scale=0.5)
                session.use_adapter("ordinary")
            session.reset()
            assert session.generate(PROMPTS[0], max_tokens=8).tokens == first.tokens
        finally:
            pair.budget.limit = None


def test_adapter_with_several_scales_answers_as_alone_and_releases_them(pair: Pair) -> None:
    """Their rounds alternate. A scale's memory is released once no session has chosen it, even before an answer."""

    def leased() -> int:
        return sum(lease.nbytes for lease in pair.budget.leases if lease.name.startswith("adapter:ordinary"))

    scales = (1.0, 0.5, 2.0, 0.5)
    given = [session_options(options("ordinary"), adapter_scale=scale) for scale in scales]
    alone = []
    for each in given:
        with pair.session(each) as session:
            alone.append(session.generate(PROMPTS[0], max_tokens=12).tokens)
    plain, texts = leased(), [list[int]() for _ in scales]
    with ExitStack() as opened:
        sessions = [opened.enter_context(pair.session(each)) for each in given]
        most = leased()
        answers = [session.stream(PROMPTS[0], max_tokens=12) for session in sessions]
        for chunks in zip(*answers, strict=True):
            for tokens, chunk in zip(texts, chunks, strict=True):
                tokens += chunk.tokens
        assert leased() == most
        assert [tuple(tokens) for tokens in texts] == alone
        for session in sessions:
            session.use_adapter(None)
        assert leased() == plain
    assert (most > plain) == (pair.runtime == "onnx")
    assert len({tuple(tokens) for tokens in texts}) == 3


def test_adapter_is_loaded_once_and_leased(pair: Pair) -> None:
    with pair.session(options("ordinary")) as first, pair.session(options("ordinary")) as second:
        assert first.generate(PROMPTS[0], max_tokens=8).tokens == second.generate(PROMPTS[0], max_tokens=8).tokens
    held = [lease.name for lease in pair.budget.leases if lease.name.startswith("adapter:")]
    assert len(held) == len(set(held)) <= len(ADAPTERS)


def adapters_of(pair: Pair) -> dict[str, int]:
    """Return the bytes of each adapter that the target holds."""
    leases = [lease for lease in pair.budget.leases if lease.name.startswith("adapter:")]
    return {lease.name.partition(":")[2]: lease.nbytes for lease in leases}


def swap(pair: Pair, session: Session, name: str | None) -> None:
    """Change the adapter with room for two of the three, which have the same size."""
    sizes = adapters_of(pair)
    try:
        if sizes:
            pair.budget.limit = Limit(pair.budget.used_nbytes - sum(sizes.values()) + max(sizes.values()) * 5 // 2)
        session.use_adapter(name)
    finally:
        pair.budget.limit = None


def test_eviction_takes_the_least_recently_used_adapter(pair: Pair) -> None:
    pair.turn.run(pair.budget.give_back)
    assert not adapters_of(pair)
    with pair.session(options("ordinary")) as session:
        for name, expected in [
            ("activated", {"ordinary", "activated"}),
            ("another", {"activated", "another"}),
            ("activated", {"activated", "another"}),
            ("ordinary", {"activated", "ordinary"}),
        ]:
            swap(pair, session, name)
            session.generate(PROMPTS[0], max_tokens=2)
            assert set(adapters_of(pair)) == expected


def test_eviction_treats_two_names_of_one_adapter_separately(adapter_pack: Path, tmp_path: Path) -> None:
    shutil.copytree(adapter_pack, tmp_path / "pack")
    list_adapter(tmp_path / "pack", "twin", adapter_pack.parent / "ordinary")
    with (
        edgedecode.load(tmp_path / "pack", runtime="onnx", adapters=True) as pair,
        pair.session(options("ordinary")) as session,
    ):
        first = session.generate(PROMPTS[0], max_tokens=8)
        with pair.session(options("twin")) as other:
            assert other.generate(PROMPTS[0], max_tokens=8).tokens == first.tokens
        assert set(adapters_of(pair)) == {"ordinary", "twin"}
        pair.turn.run(pair.budget.give_back)
        assert set(adapters_of(pair)) == {"ordinary"}
        session.reset()
        assert session.generate(PROMPTS[0], max_tokens=8).tokens == first.tokens


@pytest.mark.parametrize("engine", ENGINES)
def test_adapter_whose_files_changed_is_not_loaded_again(engine: str, adapter_pack: Path, tmp_path: Path) -> None:
    """The adapter and its KV caches have the digest of the manifest at the time the pack was opened."""
    pytest.importorskip(ENGINES[engine])
    own = tmp_path / "pack"
    shutil.copytree(adapter_pack, own)
    with edgedecode.load(own, runtime=engine, adapters=True) as pair, pair.session(options("ordinary")) as session:
        first = session.generate(PROMPTS[0], max_tokens=8)
        session.use_adapter(None)
        pair.turn.run(pair.budget.give_back)
        assert not adapters_of(pair)
        place, kept = own / "adapters" / "ordinary" / WEIGHTS, tmp_path / "kept"
        place.replace(kept)
        shutil.copyfile(own / "adapters" / "another" / WEIGHTS, place)
        with pytest.raises(ManifestError, match="were changed since the pack was opened"):
            session.use_adapter("ordinary")
        kept.replace(place)
        session.use_adapter("ordinary")
        session.reset()
        assert session.generate(PROMPTS[0], max_tokens=8).tokens == first.tokens


def test_use_adapter_that_does_not_fit_keeps_the_previous_one(pair: Pair) -> None:
    with pair.session(options("ordinary")) as session:
        first = session.generate(PROMPTS[0], max_tokens=8)
        pair.turn.run(pair.budget.give_back)
        try:
            pair.budget.limit = Limit(pair.budget.used_nbytes - max(adapters_of(pair).values()) // 2)
            with pytest.raises(BudgetExceeded):
                session.use_adapter("another")  # the previous one was evicted, and that was not enough
        finally:
            pair.budget.limit = None
        session.reset()
        assert session.generate(PROMPTS[0], max_tokens=8).tokens == first.tokens
        assert set(adapters_of(pair)) == {"ordinary"}


def test_eviction_never_takes_an_adapter_that_a_session_has_chosen(pair: Pair) -> None:
    pair.turn.run(pair.budget.give_back)
    assert not adapters_of(pair)
    with pair.session(options("ordinary")) as session:
        session.generate(PROMPTS[0], max_tokens=2)
        first = session.stream(PROMPTS[1], max_tokens=8)
        next(first)
        swap(pair, session, "activated")  # for the next message
        with pytest.raises(BudgetExceeded):
            swap(pair, session, "another")
        assert set(adapters_of(pair)) == {"ordinary", "activated"}
        assert len([token for chunk in first for token in chunk.tokens]) == 7
        session.generate(PROMPTS[2], max_tokens=2)
        swap(pair, session, "another")
        assert set(adapters_of(pair)) == {"activated", "another"}


def test_use_adapter_with_random_evictions_and_interruptions_equals_separate_sessions(pair: Pair) -> None:
    """On engines whose rows depend on a pass's width only the first token is compared."""
    draw = Random(7)
    evicted = 0
    pair.turn.run(pair.budget.give_back)
    with pair.session(options("ordinary")) as session:
        for _ in range(16):
            before_names = set(adapters_of(pair))
            name = draw.choice((None, *ADAPTERS))
            swap(pair, session, name)
            evicted += bool(before_names - set(adapters_of(pair)))
            if draw.random() < 0.3:
                session.reset(session.messages[: draw.randrange(len(session.messages) + 1) // 2 * 2])
            before = session.messages
            if draw.random() < 0.3:
                with closing(session.stream(draw.choice(PROMPTS), max_tokens=24)) as answer:
                    for _ in range(draw.randrange(1, 4)):
                        next(answer, None)
                continue
            if draw.random() < 0.3:
                session.prepare()
            prompt = draw.choice(PROMPTS)
            done = session.generate(prompt, max_tokens=12)
            if done.stats.dropped_turns:
                continue
            with pair.session(options(name), messages=before) as lone:
                alone = lone.generate(prompt, max_tokens=12)
            same = lone.tokens[: -len(alone.tokens)] == session.tokens[: -len(done.tokens)]
            length = 12 if pair.target.card.row_invariant and same else 1
            assert done.tokens[:length] == alone.tokens[:length]
    assert evicted > 0
