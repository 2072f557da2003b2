"""Answers under adapters: drafts and swaps change no token, and a swap recomputes only what it must."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from random import Random
from threading import Thread

import pytest

import edgedecode
from edgedecode import Message, Pair, SamplingOptions, Session, SessionOptions
from edgedecode.adapters.peft_folder import WEIGHTS
from edgedecode.errors import BudgetExceeded, CapabilityError, InputError, ManifestError
from edgedecode.memory.limit import Limit
from edgedecode.pack.hub import BUNDLED_PACK
from edgedecode.sampling.log_probabilities import token_logprob
from edgedecode.sessions import target_reading
from edgedecode.sessions.answer import Answer
from tests.adapter_scores import largest_gap
from tests.peft_folders import list_adapter, write_peft

ENGINES = {"onnx": "onnxruntime", "llama": "llama_cpp"}
GREEDY, WARM = SamplingOptions(), SamplingOptions(temperature=0.8, top_p=0.95)
HEADER = (1, 307, 201)
"""The bundled template's header of the assistant's turn."""
ADAPTERS = ("ordinary", "activated", "another")
PROMPTS = ("Tell me about a boat.", "Who is its captain?", "Tell me more.", "And the harbor?")


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("adapters") / "pack"
    shutil.copytree(BUNDLED_PACK, made)
    for seed, name in enumerate(ADAPTERS):
        folder = write_peft(made.parent / name, seed=seed, invocation=() if name == "ordinary" else HEADER)
        list_adapter(made, name, folder)
    return made


@pytest.fixture(scope="module", params=ENGINES)
def pair(request: pytest.FixtureRequest, pack: Path) -> Iterator[Pair]:
    pytest.importorskip(ENGINES[request.param])
    with edgedecode.load(pack, runtime=request.param, adapters=True) as made:
        yield made


def options(adapter: str | None, *, drafter: str | None = "none", sampling: SamplingOptions = GREEDY) -> SessionOptions:
    return SessionOptions(adapter=adapter, drafter=drafter, sampling=sampling, seed=5, ignore_eos=True)


@pytest.mark.parametrize("adapter", [None, *ADAPTERS])
def test_scores_of_a_prompt_are_those_of_passes_of_one_row(
    pair: Pair, adapter: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit. llama.cpp rounds these adapters' products by the width of a pass, up to 0.16 nats: there in ones."""
    prompt = pair.tokenizer.encode("Tell me about a boat.")
    tokens = [*prompt, *HEADER, *pair.tokenizer.encode(" It sailed out of the harbor on a clear and windy morning.")]
    rows, state = [], pair.target.new_state(len(tokens))
    with pair.session(options(adapter)) as session, closing(state):
        if adapter is not None and not pair.target.card.row_invariant:
            monkeypatch.setattr(target_reading, "_SCORED", 1)
        found = session.score(tokens, top_logprobs=1)
        span = session._turns.reading.span
        assert (span.use is None, span.start) == (adapter is None, len(prompt) if adapter in ADAPTERS[1:] else 0)
        for place, token in enumerate(tokens[:-1]):
            rows.append(pair.target.forward([token], state, adapter=span.at(place)).logits[0].copy())
            state.keep([0])
        done = session.collect(session.complete(tokens, max_tokens=8))
        assert done.stats.cached_tokens == len(tokens) - 1
    wanted = [token_logprob(row, token, row.argmax()[None]) for row, token in zip(rows, tokens[1:], strict=True)]
    assert found == [None, *wanted]


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_adapter_with_drafts_changes_no_token(pair: Pair, adapter: str, sampling: SamplingOptions) -> None:
    """Bit for bit where rows do not depend on a pass's width, else by arg-max within the kernels' noise."""
    if not pair.target.card.row_invariant:
        if sampling is WARM:
            pytest.skip("a near tie of an engine's own kernels may be drawn differently in passes of other widths")
        drafts_are_within_noise(pair, adapter)
        return
    given = [options(adapter, drafter=drafter, sampling=sampling) for drafter in ("none", "model", "suffix", None)]
    given.append(replace(given[1], draft_max=4))  # always drafts, independent of the scheduler
    texts, proposed = [], 0
    for each in given:
        with pair.session(each) as session:
            done = [session.generate(prompt, max_tokens=40) for prompt in PROMPTS[:2]]
            texts.append([answer.tokens for answer in done])
            proposed += sum(answer.stats.proposed for answer in done)
    assert all(text == texts[0] for text in texts)
    assert proposed > 0


def drafts_are_within_noise(pair: Pair, adapter: str) -> None:
    assert (noise := pair.manifest.models["target"].kernel_noise) is not None
    accepted = 0
    for drafter in ("model", "suffix"):
        with pair.session(replace(options(adapter, drafter=drafter), draft_max=4)) as session:
            for prompt in PROMPTS[:2]:
                done = session.generate(prompt, max_tokens=40)
                accepted += done.stats.accepted
                assert largest_gap(pair, session, new=len(done.tokens)) <= noise
    assert accepted > 0


def test_acceptance_is_learned_per_adapter(pair: Pair) -> None:
    with pair.session(options("ordinary", drafter=None)) as session:
        session.generate(PROMPTS[0], max_tokens=24)
        known = {*pair.experience.history.kinds}
        session.use_adapter("another")
        session.generate(PROMPTS[1], max_tokens=24)
    assert "ordinary" in known
    assert "another" in pair.experience.history.kinds


def test_adapter_changes_the_answer(pair: Pair) -> None:
    answers = set()
    for adapter in (None, *ADAPTERS):
        with pair.session(options(adapter)) as session:
            answers.add(session.generate(PROMPTS[0], max_tokens=24).tokens)
    assert len(answers) == 1 + len(ADAPTERS)


def test_adapter_scale_of_zero_has_no_effect_and_two_has_more(pair: Pair) -> None:
    with pair.session(options(None)) as session:
        answers = []
        for name, scale in ((None, 1.0), ("ordinary", 0.0), ("ordinary", 1.0), ("ordinary", 2.0)):
            session.reset()
            session.use_adapter(name, scale=scale)
            answers.append(session.generate(PROMPTS[0], max_tokens=24).tokens)
    assert answers[0] == answers[1]
    assert len(set(answers)) == 3


@pytest.mark.parametrize(
    "order", [(None, "activated", "another", "activated"), ("ordinary", None, "activated", "ordinary")]
)
def test_use_adapter_gives_the_answers_of_separate_sessions(pair: Pair, order: tuple[str | None, ...]) -> None:
    """Each answer equals that of a new session that has computed the conversation so far with that adapter only."""
    with pair.session(options(None), messages=[Message("system", "You are brief.")]) as session:
        for adapter, prompt in zip(order, PROMPTS, strict=True):
            before = session.messages
            session.use_adapter(adapter)
            done = session.generate(prompt, max_tokens=24)
            with pair.session(options(adapter), messages=before) as lone:
                alone = lone.generate(prompt, max_tokens=24)
            if (
                pair.target.card.row_invariant
                and lone.tokens[: -len(alone.tokens)] == session.tokens[: -len(done.tokens)]
            ):
                assert done.tokens == alone.tokens
            else:  # the last pass over a prompt may be wider: the first token is compared
                assert done.tokens[:1] == alone.tokens[:1]


def test_use_adapter_of_activated_adapters_recomputes_the_last_answer_only(pair: Pair) -> None:
    with pair.session(options("activated")) as session:
        session.generate(PROMPTS[0], max_tokens=24)
        for adapter in ("another", "activated", "activated"):
            session.use_adapter(adapter)
            before = session.tokens
            done = session.generate(PROMPTS[1], max_tokens=24)
            prompt = session.tokens[: -len(done.tokens)]
            alike = sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(before, prompt, strict=False)))
            start = max(place for place in range(len(before)) if before[place : place + len(HEADER)] == HEADER)
            assert done.stats.cached_tokens == min(alike, start) > 0


def test_use_adapter_of_ordinary_adapters_recomputes_everything(pair: Pair) -> None:
    with pair.session(options(None)) as session:
        session.generate(PROMPTS[0], max_tokens=8)
        session.use_adapter("ordinary")
        swapped = session.generate(PROMPTS[1], max_tokens=8)
        same = session.generate(PROMPTS[2], max_tokens=8)
    assert swapped.stats.cached_tokens == 0
    assert same.stats.cached_tokens > swapped.stats.prompt_tokens


def test_use_adapter_in_the_middle_of_an_answer_waits_for_the_next(pair: Pair) -> None:
    with pair.session(options("activated")) as lone:
        wanted = lone.generate(PROMPTS[0], max_tokens=24).tokens
    with pair.session(options("activated")) as session:
        tokens = list[int]()
        for place, chunk in enumerate(session.stream(PROMPTS[0], max_tokens=24)):
            tokens += chunk.tokens
            if place == 3:
                session.use_adapter(None)
        assert tuple(tokens) == wanted
        plain = session.generate(PROMPTS[1], max_tokens=4)
        assert plain.stats.cached_tokens > 0


@pytest.mark.parametrize("ask", [Session.stream, Session.complete], ids=["stream", "complete"])
def test_use_adapter_before_the_first_chunk_waits_for_the_next_answer(pair: Pair, ask: Callable[..., Answer]) -> None:
    with pair.session(options("ordinary")) as lone:
        wanted = lone.collect(ask(lone, PROMPTS[0], max_tokens=12)).tokens
    with pair.session(options("ordinary")) as session:
        answer = ask(session, PROMPTS[0], max_tokens=12)
        session.use_adapter("another")
        assert session.collect(answer).tokens == wanted
        session.reset()
        assert session.collect(ask(session, PROMPTS[0], max_tokens=12)).tokens != wanted


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


@pytest.mark.parametrize("scale", [float("nan"), float("-inf"), 1e39])
@pytest.mark.filterwarnings("error")
def test_use_adapter_with_a_scale_that_is_not_finite_changes_nothing(pair: Pair, scale: float) -> None:
    with pair.session(options("ordinary")) as session:
        first = session.generate(PROMPTS[0], max_tokens=8)
        with pytest.raises(InputError, match="an adapter's scale must be a finite number"):
            session.use_adapter("another", scale=scale)
        session.reset()
        assert session.generate(PROMPTS[0], max_tokens=8).tokens == first.tokens
        with pytest.raises(InputError, match="an adapter's scale must be a finite number"):
            pair.session(replace(options("ordinary"), adapter_scale=scale))


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
    given = [replace(options("ordinary"), adapter_scale=scale) for scale in scales]
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


def test_adapter_needs_a_target_opened_for_adapters(pack: Path) -> None:
    pytest.importorskip("onnxruntime")
    with (
        edgedecode.load(pack, runtime="onnx") as plain,
        pytest.raises(CapabilityError, match="in Python load the pack with adapters=True"),
    ):
        plain.session(options("ordinary"))


def test_adapter_is_loaded_once_and_leased(pair: Pair) -> None:
    with pair.session(options("ordinary")) as first, pair.session(options("ordinary")) as second:
        assert first.generate(PROMPTS[0], max_tokens=8).tokens == second.generate(PROMPTS[0], max_tokens=8).tokens
    held = [lease.name for lease in pair.budget.leases if lease.name.startswith("adapter:")]
    assert len(held) == len(set(held)) <= len(ADAPTERS)


def test_prepare_leaves_only_the_new_message_to_compute(pair: Pair) -> None:
    """With any next adapter. A second call, or one before any answer, does nothing."""
    compared = 0
    with pair.session(options("activated")) as session:
        session.prepare()
        for adapter in ("another", "activated", None, "ordinary"):
            session.generate(PROMPTS[0], max_tokens=24)
            session.prepare()
            session.prepare()
            before, history = session.tokens, session.messages
            session.use_adapter(adapter)
            done = session.generate(PROMPTS[1], max_tokens=24)
            prompt = session.tokens[: -len(done.tokens)]
            alike = sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(before, prompt, strict=False)))
            assert done.stats.cached_tokens == (0 if adapter == "ordinary" else alike)
            with pair.session(options(adapter), messages=history) as lone:
                alone = lone.generate(PROMPTS[1], max_tokens=24)
            if lone.tokens[: -len(alone.tokens)] == prompt:  # a random answer's text may have other tokens
                length = 24 if pair.target.card.row_invariant else 1
                assert done.tokens[:length] == alone.tokens[:length]
                compared += 1
        assert compared > 0
        session.prepare()
        assert session.generate(PROMPTS[2], max_tokens=2).stats.cached_tokens > 0


def test_prepare_is_stopped_by_the_next_call(pair: Pair) -> None:
    with pair.session(options("activated")) as session:
        for call in (
            lambda: session.generate(PROMPTS[1], max_tokens=4),
            lambda: session.use_adapter("another"),
            session.reset,
            session.close,
        ):
            session.generate(" ".join(PROMPTS * 4), max_tokens=100)
            thread = Thread(target=session.prepare)
            thread.start()
            call()
            thread.join(timeout=60)
            assert not thread.is_alive()


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


def test_eviction_treats_two_names_of_one_adapter_separately(pack: Path, tmp_path: Path) -> None:
    shutil.copytree(pack, tmp_path / "pack")
    list_adapter(tmp_path / "pack", "twin", pack.parent / "ordinary")
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
def test_adapter_whose_files_changed_is_not_loaded_again(engine: str, pack: Path, tmp_path: Path) -> None:
    """The adapter and its KV caches have the digest of the manifest at the time the pack was opened."""
    pytest.importorskip(ENGINES[engine])
    own = tmp_path / "pack"
    shutil.copytree(pack, own)
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
