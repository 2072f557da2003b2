"""Memory mode: one of two models in memory at a time, with the answers of both in memory."""

from __future__ import annotations

import pytest

import edgedecode
from edgedecode import BudgetExceeded, CapabilityError, InputError, Pair, SamplingOptions, SessionOptions, SwitchOptions
from edgedecode.switching.rule import LONGEST, SwitchRule
from edgedecode.testing import toy_pair

PROMPTS = (
    "How many days are in a week?",
    "Extract age, job as JSON.\nUma Evans is 61 years old, lives in Berlin and works as a pilot.",
    "Tell me a short story about a horse named David.",
)
RULE = SwitchRule(up=0.6)
LASTING = SwitchRule(up=0.6, down=0.0, dwell=LONGEST)
"""The same with one hand-over an answer."""


@pytest.fixture(params=["onnx", "llama"])
def engine(request: pytest.FixtureRequest) -> str:
    pytest.importorskip({"onnx": "onnxruntime", "llama": "llama_cpp"}[request.param])
    return str(request.param)


def options(rule: SwitchRule) -> SessionOptions:
    return SessionOptions(sampling=SamplingOptions(), context=512, switch=SwitchOptions(rule=rule), drafter="none")


def loaded(pair: Pair) -> set[str]:
    return {lease.name for lease in pair.budget.leases if lease.name.startswith("weights:") and lease.nbytes}


def test_one_resident_models_give_the_answers_of_both(engine: str) -> None:
    """In a conversation, where every answer begins with the draft model again."""
    texts: list[list[str]] = []
    for one_resident in (False, True):
        with edgedecode.load(runtime=engine, one_resident=one_resident) as pair:
            with pair.session(options(RULE if one_resident else LASTING)) as session:
                answers = [session.generate(prompt, max_tokens=32) for prompt in PROMPTS]
                texts.append([answer.text for answer in answers])
            if one_resident:
                assert all(answer.stats.switches <= 1 for answer in answers)
                assert sum(answer.stats.unverified_tokens for answer in answers) > 5
                loads = [answer.stats.model_loads for answer in answers]
                assert loads[0] <= 2
                assert sum(loads) >= 3
                assert all(answer.stats.load_seconds > 0 for answer in answers if answer.stats.model_loads)
            exact = pair.target.card.row_invariant
    assert texts[0] == texts[1] or not exact


def test_one_resident_needs_less_memory_and_stays_within_it(engine: str) -> None:
    both, one = (
        edgedecode.plan(None, options(RULE), runtime=engine, one_resident=each).memory.least_running
        for each in (False, True)
    )
    assert one < both - 2_000_000
    memory = one + 1_000_000
    with (
        edgedecode.load(runtime=engine, memory=memory, one_resident=True) as pair,
        pair.session(options(RULE)) as session,
    ):
        for prompt in PROMPTS[:2]:
            for _ in session.stream(prompt, max_tokens=24):
                assert len(loaded(pair)) == 1
                assert pair.budget.used_nbytes <= memory
        assert session.stats.tokens


def test_one_resident_keeps_verified_decoding_exact(engine: str) -> None:
    """Also without switching: the models just take turns."""
    texts = []
    for one_resident in (False, True):
        plain = SessionOptions(sampling=SamplingOptions(), context=512, drafter="suffix")
        with edgedecode.load(runtime=engine, one_resident=one_resident) as pair, pair.session(plain) as session:
            texts.append(session.generate(PROMPTS[2], max_tokens=24).text)
            assert one_resident <= (session.stats.model_loads == 1)
    assert texts[0] == texts[1]


def test_one_resident_refuses_what_a_budget_cannot_hold(engine: str) -> None:
    with pytest.raises(BudgetExceeded):
        edgedecode.load(runtime=engine, memory=30_000_000, one_resident=True)


def test_one_resident_takes_no_adapters_and_needs_an_engine_that_plans() -> None:
    pytest.importorskip("onnxruntime")
    with pytest.raises(CapabilityError, match="take turns in memory"):
        edgedecode.load(runtime="onnx", one_resident=True, adapters=True)
    from edgedecode.engines.wrappers.one_resident import OneResident

    with toy_pair() as pair, pytest.raises(CapabilityError, match="cannot plan"):
        OneResident(pair.shared.engine)


@pytest.mark.parametrize("drafter", ["model", "trim", "tree"])
def test_one_resident_refuses_drafts_of_the_draft_model(drafter: str, engine: str) -> None:
    switched = SessionOptions(switch=SwitchOptions(rule=RULE), drafter=drafter)
    with edgedecode.load(runtime=engine, one_resident=True) as pair:
        for wanted in (switched, SessionOptions(drafter=drafter)):
            with pytest.raises(InputError, match=f"the drafter {drafter} would load both in every round: leave out"):
                pair.session(wanted)
