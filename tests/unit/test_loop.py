"""The decoding loop: which tokens are read, which rows are computed, and where it stops."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from edgedecode.decoding import loop
from edgedecode.decoding.drafting import Drafting
from edgedecode.decoding.drafts import Draft
from edgedecode.decoding.loop import PREFILL_CHUNK, DecodeSetting, decode
from edgedecode.decoding.policy import FixedLength, Plan, RoundCost, Score, Signals
from edgedecode.decoding.stats import Stats, TimeSplit
from edgedecode.errors import ContextExceeded, InputError
from edgedecode.sampling.sampler import Noise, Sampler
from tests.toys import GREEDY, CallDrafter, run, toy_model

VOCABULARY = 30


def plain_setting(**changes: object) -> DecodeSetting:
    return DecodeSetting(Sampler(GREEDY, vocabulary_size=VOCABULARY), Noise(0), **changes)  # type: ignore[arg-type]


def reference(prompt: list[int], count: int) -> list[int]:
    model = toy_model(VOCABULARY)
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(model.logits_after(tokens)[:VOCABULARY].argmax()))
    return tokens[len(prompt) :]


def test_decode_prefills_a_long_prompt_in_chunks_without_rows() -> None:
    model = toy_model(VOCABULARY, context=2000)
    prompt = [index % VOCABULARY for index in range(2 * PREFILL_CHUNK + 7)]
    found = run(model, prompt, max_tokens=2)
    assert found.tokens == reference(prompt, 2)
    assert model.passes == [PREFILL_CHUNK, PREFILL_CHUNK, 7, 1]
    assert model.rows_made == 2


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_decode_prefills_prompts_around_a_chunk_boundary(extra: int) -> None:
    prompt = [index % VOCABULARY for index in range(PREFILL_CHUNK + extra)]
    assert run(toy_model(VOCABULARY, context=1000), prompt, max_tokens=3).tokens == reference(prompt, 3)


def test_decode_reads_the_last_token_again_if_the_state_holds_all() -> None:
    model = toy_model(VOCABULARY)
    state = model.new_state(64)
    prompt = [1, 2, 3, 4]
    model.forward(prompt, state)
    state.keep(range(4))
    model.forward([9, 9], state)  # leave pending rows behind
    tokens, stats = list(prompt), Stats()
    model.passes.clear()
    list(decode(model, state, tokens=tokens, max_tokens=3, setting=plain_setting(), stats=stats))
    assert tokens[4:] == reference(prompt, 3)
    assert model.passes == [1, 1, 1]
    assert (stats.prompt_tokens, stats.cached_tokens) == (4, 3)


def test_decode_continues_a_shorter_state_and_drops_its_pending_rows() -> None:
    model = toy_model(VOCABULARY)
    state = model.new_state(64)
    prompt = [1, 2, 3, 4]
    model.forward(prompt[:2], state)
    state.keep(range(2))
    model.forward([9, 9], state)
    tokens, stats = list(prompt), Stats()
    list(decode(model, state, tokens=tokens, max_tokens=3, setting=plain_setting(), stats=stats))
    assert tokens[4:] == reference(prompt, 3)
    assert stats.cached_tokens == 2


def test_decode_refuses_an_empty_prompt_or_a_full_context_before_reading() -> None:
    model = toy_model(VOCABULARY)
    for tokens, error in (([], InputError), ([1] * 8, ContextExceeded), ([1] * 9, ContextExceeded)):
        rounds = decode(
            model, model.new_state(8), tokens=list(tokens), max_tokens=3, setting=plain_setting(), stats=Stats()
        )
        with pytest.raises(error):
            next(rounds)
    assert model.passes == []


def test_decode_reports_each_round_to_the_policy_before_the_next_plan() -> None:
    seen, costs = list[Signals](), list[RoundCost]()

    class Watching(FixedLength):
        def plan(self, signals: Signals) -> Plan:
            assert len(costs) == len(seen), "a round is observed before the next one is planned"
            seen.append(signals)
            return super().plan(signals)

        def observe(self, cost: RoundCost, scores: Sequence[Score] = ()) -> None:
            costs.append(cost)

    model = toy_model(VOCABULARY)
    drafter = CallDrafter(lambda context, limit, rng: Draft((*reference(list(context), 2), 0)[:limit]))
    tokens = [1, 2]
    setting = plain_setting(drafting=Drafting([drafter], Watching(3), noise=Noise(0, stream=1)))
    verdicts = list(decode(model, model.new_state(64), tokens=tokens, max_tokens=12, setting=setting, stats=Stats()))
    assert len(costs) == len(seen) == len(verdicts) - 1  # the prompt's own pass is not a round of decoding
    for signals, cost, before in zip(seen, costs, verdicts[1:], strict=True):
        assert (cost.drafted, cost.accepted) == (len(before.draft), before.accepted)
        assert cost.width == 1 + cost.drafted
        assert signals.context_tokens + signals.remaining_tokens == 14
    assert max(cost.accepted for cost in costs) >= 2


def test_decode_at_rest_costs_no_more_calls_than_plain_decoding() -> None:
    calls: list[str] = []

    class Counting(CallDrafter):
        def __getattribute__(self, name: str) -> Any:
            if name in ("begin", "unread", "propose", "observe"):
                calls.append(name)
            return super().__getattribute__(name)

    class Resting(FixedLength):
        def plan(self, signals: Signals) -> Plan:
            calls.append("plan")
            return Plan(0, rest=1000)

    def clock() -> float:
        calls.append("clock")
        return len(calls) * 0.001

    def rounds(drafting: Drafting | None) -> list[list[str]]:
        """Return what each round called."""
        model, tokens, found = toy_model(VOCABULARY), [1, 2], []
        calls.clear()
        setting = plain_setting(drafting=drafting, clock=clock)
        for _ in decode(model, model.new_state(64), tokens=tokens, max_tokens=12, setting=setting, stats=Stats()):
            found.append(calls.copy())
            calls.clear()
        assert tokens[2:] == reference([1, 2], 12)
        return found

    quick, slow = Counting(lambda *given: Draft((1,))), Counting(lambda *given: Draft((1,)))
    quick.name, slow.name, slow.free = "quick", "slow", False
    plain = rounds(None)
    first, look, *rest = rounds(Drafting([quick, slow], Resting(0), noise=Noise(0), offers=True, clock=clock))
    assert first == ["clock", "begin", "begin", *plain[0][1:]]
    assert [name for name in look if name != "clock"] == ["propose", "unread", "plan", "observe", "observe"]
    assert rest == plain[2:]
    assert set(map(tuple, rest)) == {("clock",) * len(rest[0])}


class Clock:
    """Seconds that pass only where a test says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def after(self, call: Callable[..., Any], seconds: float) -> Callable[..., Any]:
        """Return the call with a duration."""

        def timed(*given: Any, **named: Any) -> Any:
            result = call(*given, **named)
            self.now += seconds
            return result

        return timed


@pytest.mark.parametrize("switched", [False, True])
def test_each_step_counts_its_own_seconds(switched: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass takes 100 s, whatever its width; a proposal 10, a draft model's stretch 20, a verification 1."""
    clock, model = Clock(), toy_model(VOCABULARY, context=2000)
    monkeypatch.setattr(model, "forward", clock.after(model.forward, 100))
    monkeypatch.setattr(loop, "verify", clock.after(loop.verify, 1))
    drafter = CallDrafter(clock.after(lambda context, limit, rng: Draft((1,) * limit), 10))
    drafting = Drafting.fixed(drafter, 2, noise=Noise(0))
    switching: Any = WritesFirst(clock) if switched else None
    setting = plain_setting(drafting=drafting, clock=clock, switching=switching)
    prompt, stats = [index % VOCABULARY for index in range(2 * PREFILL_CHUNK + 7)], Stats()
    rounds = decode(model, model.new_state(2000), tokens=prompt, max_tokens=12, setting=setting, stats=stats)
    kinds = [verdict is None for verdict in rounds]
    assert kinds == [*([False] * switched), True, True, *([False] * (len(kinds) - 2 - switched))]
    asked = len(drafter.drafts)
    if switched:  # the draft model writes the first tokens: the target reads the prompt in its first round after them
        assert stats.prefill_seconds == 20
        split = TimeSplit(10.0 * asked, 100.0 * (stats.rounds + 2), 1.0 * stats.rounds)
    else:
        assert stats.prefill_seconds == 301
        split = TimeSplit(10.0 * asked, 100.0 * (stats.rounds - 1), 1.0 * (stats.rounds - 1))
    assert asked >= 3 or (switched and not asked)
    assert stats.time == split


class WritesFirst:
    """A draft model that writes the first three tokens of an answer in 20 seconds, and nothing else."""

    def __init__(self, clock: Clock) -> None:
        self._writing = clock.after(lambda: [1, 2, 3], 20)
        self._wrote = False

    def begin(self, tokens: Sequence[int], *, generated: int = 0) -> None:
        """Do nothing: there is no state."""

    def write(self, tokens: Sequence[int], limit: int) -> list[int]:
        first, self._wrote = not self._wrote, True
        return self._writing() if first else []

    def resume(self) -> None:
        """Do nothing: the target keeps writing."""

    def close(self) -> None:
        """Do nothing: there are no resources."""
