"""Answers under adapters: drafts and swaps change no token, and a swap recomputes only what it must."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from threading import Thread

import pytest

import edgedecode
from edgedecode import Message, Pair, SamplingOptions, Session
from edgedecode.errors import CapabilityError, InputError
from edgedecode.sampling.log_probabilities import token_logprob
from edgedecode.sessions import target_reading
from edgedecode.sessions.answer import Answer
from tests.adapter_scores import largest_gap
from tests.losslessness.adapters import ADAPTERS, GREEDY, HEADER, PROMPTS, WARM, options
from tests.toys import session_options


@pytest.fixture
def pair(adapter_pair: Pair) -> Pair:
    return adapter_pair


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
            pair.session(session_options(options("ordinary"), adapter_scale=scale))


def test_adapter_needs_a_target_opened_for_adapters(adapter_pack: Path) -> None:
    pytest.importorskip("onnxruntime")
    with (
        edgedecode.load(adapter_pack, runtime="onnx") as plain,
        pytest.raises(CapabilityError, match="in Python load the pack with adapters=True"),
    ):
        plain.session(options("ordinary"))


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
