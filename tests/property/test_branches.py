"""Several answers at once: each is the answer of a session with its seed alone, and a pass serves all of them."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

import edgedecode
from edgedecode import Completion, FinishReason, InputError, Message, Pair, Rule, SamplingOptions, SwitchOptions
from edgedecode.errors import CapabilityError
from edgedecode.runtimes.onnx.kernels.trial import tried
from edgedecode.testing import TableModel, TableState
from tests.toys import ascii_pair, session_options

GREEDY, WARM = SamplingOptions(), SamplingOptions(temperature=0.9, top_p=0.9, repetition_penalty=1.1)
SURPRISE = SamplingOptions(temperature=1.2, mirostat=2, mirostat_tau=1.5, mirostat_eta=0.3)
COLD = SamplingOptions(temperature=0.3)


@pytest.fixture
def pair() -> Iterator[Pair]:
    with ascii_pair(ending=5.0) as made:
        yield made


def shown(done: Completion) -> tuple[object, ...]:
    return done.text, done.tokens, done.finish_reason, done.stats.seed


def alone(
    pair: Pair, prompt: str, seed: int, *, stop: tuple[str, ...] = (), most: int = 60, **options: object
) -> object:
    with pair.session(session_options(seed=seed, drafter="none", **options)) as session:
        return shown(session.generate(prompt, max_tokens=most, stop=stop))


def together(
    pair: Pair, prompt: str, seed: int, count: int, *, stop: tuple[str, ...] = (), most: int = 60, **options: object
) -> list[object]:
    with pair.session(session_options(**{"seed": seed, "samples": count, **options})) as session:
        return [*map(shown, session.samples(prompt, count, max_tokens=most, stop=stop).completions())]


@pytest.mark.parametrize("sampling", [GREEDY, COLD, WARM, SURPRISE], ids=["greedy", "cold", "warm", "mirostat"])
@pytest.mark.parametrize("count", [1, 2, 8, 21])
def test_each_answer_is_that_of_its_seed_alone(pair: Pair, count: int, sampling: SamplingOptions) -> None:
    reasons = set()
    for prompt, seed in (("hello", 3), ("a frog and a pebble", 2**64 - 2)):
        found = together(pair, prompt, seed, count, sampling=sampling, stop=("q",))
        seeds = [(seed + number) % 2**64 for number in range(count)]
        assert found == [alone(pair, prompt, each, sampling=sampling, stop=("q",)) for each in seeds]
        reasons |= {each[2] for each in found}
    assert len({each[0] for each in found}) > 1 or sampling is not WARM or count == 1
    assert FinishReason.STOP in reasons or sampling is not WARM


def test_answers_that_do_not_fit_together_wait_for_room() -> None:
    with ascii_pair(context=80) as pair:
        found = together(pair, "hello", 1, 9, sampling=WARM, context=80)
        assert found == [alone(pair, "hello", 1 + number, sampling=WARM, context=80) for number in range(9)]
        assert {each[2] for each in found} == {FinishReason.LENGTH, FinishReason.STOP}


@pytest.mark.parametrize("context", [60, 200])
@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "warm"])
def test_prompts_are_continued_at_once_as_each_alone(sampling: SamplingOptions, context: int) -> None:
    prompts, seeds = ["a frog", "a frog", "a frog and a pebble", "a", "zebra", "a fr"], [9, 4, 4, 2**64 - 1, 0, 7]
    with ascii_pair(ending=5.0, context=context) as pair:
        with pair.session(session_options(samples=4, sampling=sampling, context=context)) as session:
            session.generate("a frog", max_tokens=5)  # what the cache holds is not all shared
            found = [*map(shown, session.completions(prompts, seeds=seeds, max_tokens=30))]
            assert len(session.messages) == 2
        for each, prompt, seed in zip(found, prompts, seeds, strict=True):
            with pair.session(
                session_options(seed=seed, drafter="none", sampling=sampling, context=context)
            ) as session:
                assert each == shown(session.collect(session.complete(prompt, max_tokens=30)))


def test_no_prompts_are_refused(pair: Pair) -> None:
    with pair.session(session_options()) as session, pytest.raises(InputError, match="0 answers at once"):
        session.completions([])


def test_answers_that_are_alike_are_settled_and_the_last_one_is(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pending, forward = list[int](), TableModel.forward

    def watched(self: TableModel, tokens: list[int], state: TableState, **named: object) -> object:
        pending.append(state.pending)
        return forward(self, tokens, state, **named)

    monkeypatch.setattr(TableModel, "forward", watched)
    together(pair, "hello", 3, 4, sampling=GREEDY)
    assert max(pending) == 0
    pending.clear()
    lengths = [len(each[1]) for each in together(pair, "hello", 3, 4, sampling=WARM)]
    alone_for = max(lengths) - sorted(lengths)[-2]
    assert alone_for > 1
    assert max(pending) > 0 == max(pending[1 - alone_for :])


def passes_of(pair: Pair, prompt: str, count: int, sampling: SamplingOptions, **options: object) -> list[int]:
    model = pair.target
    assert isinstance(model, TableModel)
    model.passes.clear()
    together(pair, prompt, 3, count, sampling=sampling, most=40, ignore_eos=True, **options)
    return list(model.passes)


def test_a_pass_has_a_row_for_each_answer_or_for_those_that_are_alike(pair: Pair) -> None:
    prefill, first, *later = passes_of(pair, "hello", 6, WARM)
    assert (first, len(later), later[-1]) == (1, 39, 6)
    assert prefill > 6
    assert passes_of(pair, "hello", 6, GREEDY)[1:] == [1] * 40
    assert max(passes_of(pair, "hello", 6, WARM, samples=4)[1:]) == 4  # as many rows as were planned


def test_the_transcript_stays_and_the_prompt_stays_in_the_cache(pair: Pair) -> None:
    with pair.session(session_options(seed=3, sampling=WARM)) as session:
        session.generate("hello", max_tokens=5)
        before = session.messages
        answers = session.samples("more", 4, max_tokens=20).completions()
        assert session.messages == before
        assert answers[0].stats.cached_tokens > 0
        session.reset([*before, Message("user", "more"), Message("assistant", answers[2].text)])
        assert session.generate("thanks", max_tokens=5).stats.cached_tokens >= answers[0].stats.prompt_tokens - 1
        again = session.samples("more", 2, max_tokens=20).completions()
        assert again[1].stats.seed == again[0].stats.seed + 1 == session.seed + 1


def test_answers_that_are_left_in_the_middle_leave_the_session_usable(pair: Pair) -> None:
    with pair.session(session_options(seed=3, sampling=WARM)) as session:
        answers = session.samples("hello", 3, max_tokens=60)
        for _ in range(10):
            next(answers)
        answers.close()
        assert {each.finish_reason for each in answers.completions()} == {FinishReason.CANCELLED}
        assert session.messages == ()
        with pair.session(session_options(seed=session.seed, sampling=WARM)) as other:
            assert session.generate("hello", max_tokens=20).text != ""
            assert (
                other.generate("hello", max_tokens=20).tokens
                == together(pair, "hello", 3, 1, most=20, sampling=WARM)[0][1]
            )


def test_raw_prompts_and_log_probabilities(pair: Pair) -> None:
    with pair.session(session_options(seed=3, drafter="none", sampling=WARM)) as session:
        found = session.samples("hello", 2, raw=True, max_tokens=9, top_logprobs=2).completions()
    with pair.session(session_options(seed=4, drafter="none", sampling=WARM)) as session:
        wanted = session.collect(session.complete("hello", max_tokens=9, top_logprobs=2))
    assert (found[1].tokens, found[1].logprobs) == (wanted.tokens, wanted.logprobs)


@pytest.mark.parametrize(
    ("count", "options", "message"),
    [
        (0, {}, "0 answers at once are out of range: 1 to 128"),
        (129, {}, "129 answers at once"),
        (2, {"rule": Rule.RATIO}, "leave out --mode switch and --rule ratio"),
        (2, {"switch": SwitchOptions(threshold=1.0)}, "leave out --mode switch"),
    ],
)
def test_refused(pair: Pair, count: int, options: dict[str, object], message: str) -> None:
    with pair.session(session_options(**options)) as session:
        with pytest.raises((InputError, CapabilityError), match=message):
            session.samples("hello", count)
        assert session.generate("hello", max_tokens=3).tokens
    with pytest.raises((InputError, CapabilityError), match=message):
        pair.session(session_options(samples=count, **options))


def test_a_drafter_is_refused_and_an_engine_of_chains(pair: Pair) -> None:
    with pytest.raises(InputError, match="leave out --drafter"):
        pair.session(session_options(samples=2, drafter="model"))
    pair.target.card = replace(pair.target.card, tree=False)
    with pair.session() as session, pytest.raises(CapabilityError, match="reads chains only: use --runtime onnx"):
        session.samples("hello", 2)


def test_the_plan_counts_the_prompt_once() -> None:
    few, many = (dict(edgedecode.plan(session=session_options(samples=count)).memory.holders) for count in (2, 16))
    assert few["kv:target"] == many["kv:target"] > 0
    assert few["logits:target"] < many["logits:target"]


@pytest.mark.skipif(tried() is None, reason="no kernels for this processor")
@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "warm"])
def test_with_our_kernels(sampling: SamplingOptions) -> None:
    with edgedecode.load(threads=1) as pair:
        for prompt in ("Tell me about a frog.", "List the numbers from 1 to 9."):
            found = together(pair, prompt, 5, 7, sampling=sampling, most=40, context=200)
            assert found == [
                alone(pair, prompt, 5 + number, sampling=sampling, most=40, context=200) for number in range(7)
            ]
