"""Drafting while the target verifies: the same rounds as without overlap, and no thread is left behind."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import pytest

from edgedecode.decoding.beside import BesideThread, Stop
from edgedecode.decoding.drafting import Drafting
from edgedecode.decoding.loop import DecodeSetting, decode
from edgedecode.decoding.model import AdapterUse, Output, RowRequest, State
from edgedecode.decoding.policy import FixedLength, RoundCost, Score
from edgedecode.decoding.stats import Stats
from edgedecode.decoding.verify import Rule, Verdict
from edgedecode.drafters.model_drafter import ModelDrafter
from edgedecode.sampling.sampler import Noise, Sampler
from edgedecode.sampling.weights import SamplingOptions
from edgedecode.testing import TableModel, toy_tables
from tests.toys import GREEDY, Patient, draft_setting, drafting_threads, near_model, quick_draw, toy_model

VOCABULARY = 20
PROMPT = [1, 2, 3]
WARM = SamplingOptions(temperature=0.8)


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    yield
    assert not drafting_threads()


class Costs:
    """A fixed draft length; records the costs of rounds."""

    def __init__(self, length: int, *, ahead: bool) -> None:
        self._fixed = FixedLength(length, ahead)
        self.begin, self.plan = self._fixed.begin, self._fixed.plan
        self.costs: list[RoundCost] = []

    def observe(self, cost: RoundCost, scores: Sequence[Score] = ()) -> None:
        self.costs.append(cost)


@dataclass
class Decoded:
    tokens: list[int]
    verdicts: list[Verdict]
    policy: Costs
    made: ModelDrafter
    draft: TableModel


def decoded(
    *,
    ahead: bool,
    length: int = 3,
    noise: float = 0.5,
    sampling: SamplingOptions = GREEDY,
    rule: Rule = Rule.MATCH,
    seed: int = 0,
    target: TableModel | None = None,
    draft: TableModel | None = None,
    ends: frozenset[int] = frozenset(),
    rounds: int = 10**6,
    max_tokens: int = 60,
    beside: type[BesideThread] = BesideThread,
) -> Decoded:
    """Decode with a draft model near the target, checking both states after every round."""
    target = target or toy_model(VOCABULARY, seed=5 + seed)
    draft = draft or near_model(VOCABULARY, seed=5 + seed, noise=noise)
    setting = draft_setting(
        VOCABULARY,
        model=draft,
        sampling=sampling,
        sampled=rule is Rule.RATIO,
        noise=None if sampling is GREEDY or rule is Rule.RATIO else Noise(seed),
        ends=ends,
    )
    made = ModelDrafter(draft, replace(setting, overlap=True))
    policy, tokens, state = Costs(length, ahead=ahead), list(PROMPT), target.new_state(128)
    loop = DecodeSetting(
        sampler=Sampler(sampling, vocabulary_size=VOCABULARY, row_draw=quick_draw()),
        noise=Noise(seed),
        drafting=Drafting([made], policy, noise=Noise(seed, stream=1), beside=beside),
        rule=rule,
        ends=ends,
    )
    verdicts = []
    running = decode(target, state, tokens=tokens, max_tokens=max_tokens, setting=loop, stats=Stats())
    for verdict in running:
        assert state.pending == 0
        assert state.tokens == tokens[: state.length]
        assert made.state._state.length == len(made.state._read)
        verdicts.append(verdict)
        if len(verdicts) == rounds:
            running.close()
    assert loop.drafting is not None
    loop.drafting.close()
    return Decoded(tokens, verdicts, policy, made, draft)


@pytest.mark.parametrize(
    ("sampling", "rule"),
    [(GREEDY, Rule.MATCH), (WARM, Rule.MATCH), (WARM, Rule.RATIO), (replace(WARM, repetition_penalty=1.3), Rule.RATIO)],
    ids=["greedy", "match", "ratio", "ratio with penalty"],
)
@pytest.mark.parametrize("beside", [BesideThread, Patient])
@pytest.mark.parametrize("length", [1, 2, 4])
def test_rounds_with_overlap_are_those_without(
    length: int, beside: type[BesideThread], sampling: SamplingOptions, rule: Rule
) -> None:
    """The drafts too: so whatever the timing of the threads, sampling is as exact as without overlap."""
    hits = misses = 0
    for seed in range(6):
        options = {"length": length, "sampling": sampling, "rule": rule, "seed": seed}
        plain = decoded(ahead=False, **options)  # type: ignore[arg-type]
        found = decoded(ahead=True, beside=beside, **options)  # type: ignore[arg-type]
        assert found.tokens == plain.tokens
        for mine, theirs in zip(found.verdicts, plain.verdicts, strict=True):
            assert (mine.draft.tokens, mine.path, mine.outcome) == (theirs.draft.tokens, theirs.path, theirs.outcome)
        hits += sum(verdict.draft.ready > 0 for verdict in found.verdicts)
        misses += sum(len(verdict.draft) > 0 and not verdict.draft.ready for verdict in found.verdicts)
        assert not any(verdict.draft.ready for verdict in plain.verdicts)
    assert misses > 0
    assert hits > 0 or beside is BesideThread  # whose hits depend on the timing


def test_costs_of_rounds_name_what_ran_ahead() -> None:
    found = decoded(ahead=True, noise=0.0, beside=Patient)
    first, *others = [cost for cost in found.policy.costs if cost.drafted]
    assert (first.ready, first.ahead) == (0, True)
    assert all(cost.ahead and cost.ready > 0 and cost.steps == cost.drafted - cost.ready for cost in others[:-1])
    assert all(cost.pass_seconds >= 0 and cost.late_seconds >= 0 for cost in found.policy.costs)
    assert not any(cost.ahead or cost.late_seconds for cost in decoded(ahead=False).policy.costs)


def test_an_end_token_ends_the_answer_at_the_same_token() -> None:
    for end in range(VOCABULARY):
        ends = frozenset({end})
        assert decoded(ahead=True, ends=ends).tokens == decoded(ahead=False, ends=ends).tokens


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_closing_the_generation_leaves_its_tokens_and_no_thread(rounds: int) -> None:
    assert decoded(ahead=True, rounds=rounds).tokens == decoded(ahead=False, rounds=rounds).tokens


class Failing(TableModel):
    """A table model whose pass number `at` raises `error` after `wait` returned."""

    def __init__(self, at: int, error: BaseException, *, wait: Callable[[], object] = bool, noise: float = 0.0) -> None:
        tables = toy_tables(VOCABULARY, seed=5)
        super().__init__(toy_tables(VOCABULARY, seed=1005, scale=noise, near=tables) if noise else tables)
        self._at, self._failure, self._wait = at, error, wait
        self.raised = 0

    def forward(
        self,
        tokens: Sequence[int],
        state: State,
        *,
        parents: Sequence[int] | None = None,
        rows: RowRequest = "last",
        adapter: AdapterUse | None = None,
    ) -> Output:
        output = super().forward(tokens, state, parents=parents, rows=rows, adapter=adapter)
        if len(self.passes) == self._at:
            self.raised += 1
            self._wait()
            raise self._failure
        return output


@pytest.mark.parametrize("error", [RuntimeError("the device is gone"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_error_of_the_target_is_raised_once_and_ends_the_thread(error: BaseException) -> None:
    target, draft = Failing(4, error), near_model(VOCABULARY, seed=5, noise=0.5)
    with pytest.raises(type(error)) as caught:
        decoded(ahead=True, target=target, draft=draft)
    assert caught.value is error
    assert target.raised == 1


def test_error_of_the_draft_is_raised_once_in_the_callers_thread() -> None:
    error = RuntimeError("the draft's device is gone")
    for at in range(1, 16):  # in its own round or during the target's pass
        draft = Failing(at, error, noise=0.01)
        with pytest.raises(RuntimeError) as caught:
            decoded(ahead=True, draft=draft, beside=Patient)
        assert caught.value is error
        assert draft.raised == 1


def test_error_of_the_target_comes_before_the_drafts() -> None:
    """Both fail: the target's error is the round's."""
    entered = threading.Event()
    draft = Failing(5, RuntimeError("draft"), wait=entered.set, noise=0.01)  # 4 in its round, then during the pass
    target = Failing(2, ValueError("target"), wait=lambda: entered.wait(10))
    with pytest.raises(ValueError, match="target"):
        decoded(ahead=True, length=3, target=target, draft=draft)


# -- the thread -------------------------------------------------------------------------------------------------------


def test_beside_runs_the_work_during_the_body_and_stops_it_after() -> None:
    started, steps = threading.Event(), 0

    def work(stop: Stop) -> None:
        nonlocal steps
        while not stop():
            steps += 1
            started.set()

    with BesideThread(work) as beside:
        assert started.wait(10)
    done = steps
    assert beside.late_seconds >= 0
    assert steps == done > 0


def test_beside_without_a_thread_left_runs_the_body_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    ran = []
    with BesideThread(lambda stop: ran.append("work")):
        ran.append("body")
    assert ran == ["body"]


@pytest.mark.skipif(sys.platform == "win32", reason="a lock's wait is not interrupted there")
def test_beside_interrupted_at_its_end_waits_for_the_running_step() -> None:
    """Several interrupts: none is lost, and none leaves the native step running beside what comes next."""
    begun, finish = threading.Event(), threading.Event()
    steps: list[str] = []
    interrupts = 3

    def work(stop: Stop) -> None:
        begun.set()
        assert finish.wait(10)
        steps.append("ended")

    def interrupt(number: int, frame: object) -> None:
        nonlocal interrupts
        interrupts -= 1
        if interrupts:
            send_later()
        else:
            finish.set()
        raise KeyboardInterrupt

    def send_later() -> None:
        assert begun.wait(10)
        main = threading.main_thread().ident or 0
        threading.Timer(0.05, signal.pthread_kill, (main, signal.SIGUSR1)).start()

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt), BesideThread(work):
            send_later()
        assert steps == ["ended"]
        assert interrupts == 0
    finally:
        finish.set()
        signal.signal(signal.SIGUSR1, before)


def test_beside_that_ends_before_its_thread_begins_does_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt may come between the creation of the thread and its first step."""
    ran: list[str] = []

    def interrupted(thread: threading.Thread) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    beside = BesideThread(lambda stop: ran.append("work"))
    with pytest.raises(KeyboardInterrupt), beside:
        ran.append("body")
    beside._run()  # the thread begins after all
    assert ran == []
