"""Memory plans against actual leases: both engines, the bundled pack, without the process's own memory."""

import logging
import re
from collections import Counter

import pytest

import edgedecode
from edgedecode import (
    BudgetExceeded,
    CapabilityError,
    EdgeDecodeError,
    InputError,
    LoadOptions,
    Rule,
    SamplingOptions,
    SessionOptions,
    open_pack,
)
from edgedecode.drafters.lookup import LookupSource
from edgedecode.memory.planner import MemoryPlan
from edgedecode.memory.pressure import FreeMemory
from edgedecode.user_notices import NOTICES
from tests.contract.conftest import leased
from tests.toys import session_options

OPTIONS = [
    SessionOptions(),
    SessionOptions(drafter="none", context=1000),
    SessionOptions(drafter="suffix"),
    SessionOptions(drafter="recycle", context=700),
    SessionOptions(drafter="model", draft_max=5),
    SessionOptions(drafter="tree", draft_max=8),
]


def planned(options: SessionOptions, *, engine: str, memory: int | None = None) -> MemoryPlan:
    return edgedecode.plan(None, options, runtime=engine, memory=memory).memory


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_plan_is_what_a_session_leases(engine: str, options: SessionOptions) -> None:
    """Lease by lease; llama.cpp's leases shrink to what it reports after loading, which is never above the plan."""
    plan = Counter(dict(planned(options, engine=engine).holders))
    with edgedecode.load(runtime=engine) as pair, pair.session(options):
        held = leased(pair)
    assert held.keys() == plan.keys()
    assert held <= plan
    exact = [name for name in plan if engine == "onnx" or not name.startswith(("weights", "kv"))]
    assert {name: held[name] for name in exact} == {name: plan[name] for name in exact}


def test_budget_of_a_plan_is_enough_for_it(engine: str) -> None:
    """From below the smallest budget to the full need: a session opens where a plan fits, with the planned options."""
    whole = planned(SessionOptions(), engine=engine)
    least = whole.least_running
    limits = [least - 1_000_000, least - 1, least, whole.least_speculating or least]
    limits += [least + (whole.nbytes - least) * step // 4 for step in range(1, 5)]
    fitting = 0
    for limit in limits:
        plan = planned(SessionOptions(), engine=engine, memory=limit)
        fitting += plan.fits
        if not plan.fits:
            assert limit < least
            if engine == "onnx":  # llama.cpp's plan is an upper bound
                with pytest.raises(BudgetExceeded), edgedecode.load(runtime=engine, memory=limit) as pair:
                    pair.session()
            continue
        with edgedecode.load(runtime=engine, memory=limit) as pair, pair.session() as session:
            assert session.generate("Hello", max_tokens=8).tokens
            assert pair.budget.used_nbytes <= limit
            assert session.context >= plan.choice.context
            assert set(plan.choice.drafters) <= set(session.drafter_name.split("+"))
            if engine == "onnx":
                assert session.context == plan.choice.context
    assert fitting == 6


@pytest.mark.parametrize(
    "options",
    [SessionOptions(drafter="tree", draft_max=8), SessionOptions(drafter="model", draft_max=4)],
    ids=["trees", "chains"],
)
def test_session_opens_wherever_its_plan_fits_with_the_same_text(engine: str, options: SessionOptions) -> None:
    whole = planned(options, engine=engine)
    with edgedecode.load(runtime=engine) as pair, pair.session(SessionOptions(drafter="none")) as session:
        text = session.generate("Write a story with a frog.", max_tokens=24).text
        exact = pair.target.card.row_invariant
    for step in range(4):
        limit = whole.least_running + (whole.nbytes - whole.least_running) * step // 3
        with edgedecode.load(runtime=engine, memory=limit) as pair, pair.session(options) as session:
            again = session.generate("Write a story with a frog.", max_tokens=24).text
            assert again == text or not exact
            assert pair.budget.used_nbytes <= limit
            assert session.drafter_name == options.drafter


def test_session_with_a_drafter_added_to_the_pair_has_a_shorter_context_too(engine: str) -> None:
    whole = planned(SessionOptions(drafter="suffix"), engine=engine)  # which needs more than this one
    limit = whole.least_running + (whole.nbytes - whole.least_running) // 2
    with edgedecode.load(runtime=engine, memory=limit) as pair:
        pair.add_drafter_source(LookupSource("again", lambda context, limit: context[-limit:]))
        with pair.session(SessionOptions(drafter="again")) as session:
            assert session.drafter_name == "again"
            assert session.context < whole.choice.context


def test_session_that_does_not_fit_has_a_shorter_context(
    engine: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The context is as long as the budget allows, with a notice; a requested context is refused instead."""
    least = planned(SessionOptions(), engine=engine).least_speculating
    assert least is not None
    limit = least + 3_000_000
    monkeypatch.setattr(logging.getLogger(NOTICES), "propagate", True)
    with caplog.at_level("INFO", logger=NOTICES), edgedecode.load(runtime=engine, memory=limit) as pair:
        with pytest.raises(BudgetExceeded):
            pair.session(SessionOptions(context=2048))
        with pair.session() as session:
            assert 512 < session.context < 2048
            assert "suffix" in session.drafter_name
            assert session.generate("Hello", max_tokens=8).tokens
            assert pair.budget.used_nbytes <= limit
            with pytest.raises(BudgetExceeded):
                pair.session()
    assert f"the context is {session.context} tokens to fit the memory budget of " in caplog.text


def test_refused_session_names_the_smallest_budgets_and_opens_in_them(engine: str) -> None:
    limit = planned(SessionOptions(), engine=engine).least_running
    while True:  # llama.cpp's plan is an upper bound
        limit -= 200_000
        with edgedecode.load(runtime=engine, memory=limit) as pair:
            try:
                pair.session().close()
            except BudgetExceeded as error:
                refusal = error
                break
    assert re.fullmatch(r"raise --memory to [\d.]+MB or more to run, [\d.]+MB to draft", refusal.advice)
    assert "keys and values (requested)" in refusal.table
    assert 0 < refusal.needed_nbytes - limit <= 400_000
    with edgedecode.load(runtime=engine, memory=refusal.needed_nbytes) as pair, pair.session() as session:
        assert (session.context, session.drafter_name) == (512, "none")
    with (
        edgedecode.load(runtime=engine, memory=limit) as pair,
        pytest.raises(BudgetExceeded, match=r"or shorten the context \(--ctx-size\)"),
    ):
        pair.session(SessionOptions(context=1000))


def test_refused_pack_names_the_plan_command(engine: str) -> None:
    with pytest.raises(BudgetExceeded, match=r"raise --memory to .* or more; `edgedecode plan` lists what"):
        edgedecode.load(runtime=engine, memory=1_000_000)


def test_refused_weights_name_the_smallest_budgets_of_a_session(engine: str) -> None:
    plan = planned(SessionOptions(), engine=engine)
    with pytest.raises(BudgetExceeded, match=r"to run, [\d.]+MB to draft; `edgedecode plan` lists") as refusal:
        edgedecode.load(runtime=engine, memory=14_000_000)
    assert refusal.value.needed_nbytes == plan.least_running
    with edgedecode.load(runtime=engine, memory=refusal.value.needed_nbytes) as pair, pair.session() as session:
        assert session.generate("Hello", max_tokens=4).tokens


def test_draft_model_with_a_shorter_context_than_the_conversation(engine: str) -> None:
    """The text is the same, and drafts are accepted beyond the draft's context too."""
    options = session_options(drafter="model", draft_max=4, ignore_eos=True)
    whole = planned(options, engine=engine)
    limit = whole.nbytes - 1_000_000
    if (plan := planned(options, engine=engine, memory=limit)).choice.no_mmap:  # this is given up first
        limit = plan.nbytes - 1_000_000
    assert planned(options, engine=engine, memory=limit).choice.draft_context == 1024
    texts: list[str] = []
    for memory in (None, limit):
        with edgedecode.load(runtime=engine, memory=memory) as pair, pair.session(options) as session:
            assert session.context == 2048
            if memory is not None and engine == "onnx":  # llama.cpp's plan is an upper bound
                assert leased(pair)["kv:draft"] < dict(whole.holders)["kv:draft"]
            texts.append(session.collect(session.complete("Tell me about a boat. " * 165, max_tokens=100)).text)
            assert len(session.tokens) > 1090
            assert session.stats.accepted > 15
            assert memory is None or pair.budget.used_nbytes <= memory
    assert texts[0] == texts[1]


def test_further_session_takes_the_room_of_the_draft_model(
    engine: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Only where it fits in no other way; texts stay the same, and the first drafts again once the second is closed."""
    limit = planned(SessionOptions(), engine=engine).nbytes
    monkeypatch.setattr(logging.getLogger(NOTICES), "propagate", True)
    with (
        caplog.at_level("INFO", logger=NOTICES),
        edgedecode.load(runtime=engine, memory=limit) as pair,
        pair.session() as first,
    ):
        drafters = first.drafter_name
        text = first.generate("Hello", max_tokens=24).text
        assert pair.drafts.loaded
        rest = pair.budget.reserve("what else is open", limit - pair.budget.used_nbytes)
        with pair.session() as second:
            assert "the draft model was released: another session needs its memory" in caplog.messages
            assert second.drafter_name == "none"
            assert second.generate("Hello", max_tokens=24).text == text
            first.reset()
            assert first.generate("Hello", max_tokens=24).text == text
            assert first.drafter_name == "suffix"
            assert pair.budget.used_nbytes <= limit
            with pytest.raises(BudgetExceeded):
                pair.session(SessionOptions(drafter="model"))
        rest.release()
        first.reset()
        assert first.generate("Hello", max_tokens=24).text == text
        assert first.drafter_name == drafters
        assert pair.budget.used_nbytes <= limit


def test_further_session_takes_the_room_of_the_draft_model_only_where_it_fits_then(engine: str) -> None:
    """Including a session that requests drafts without that model."""
    limit = planned(SessionOptions(), engine=engine).nbytes + 500_000
    with edgedecode.load(runtime=engine, memory=limit) as pair, pair.session() as first:
        drafters = first.drafter_name
        pair.budget.reserve("what else is open", limit - pair.budget.used_nbytes - 500_000)
        for drafter in (None, "none"):
            with pytest.raises(BudgetExceeded):
                pair.session(SessionOptions(drafter=drafter, context=2048))
        assert first.drafter_name == drafters
        for drafter in ("none", "suffix"):
            with pair.session(SessionOptions(drafter=drafter, context=512)) as second:
                assert (first.drafter_name, second.drafter_name) == ("none", drafter)
                assert pair.budget.used_nbytes <= limit


def test_ratio_rule_decodes_plainly_where_the_draft_model_does_not_fit(engine: str) -> None:
    options = session_options(seed=1, rule=Rule.RATIO)
    limit = planned(options, engine=engine).least_running + 300_000
    with edgedecode.load(runtime=engine, memory=limit) as pair, pair.session(options) as session:
        assert session.drafter_name == "none"
        assert session.generate("Hello", max_tokens=8).tokens


def test_load_gives_a_notice_when_other_programs_leave_little_memory(
    engine: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger(NOTICES), "propagate", True)
    for free, noticed in ((1_000_000, True), (8_000_000_000, False)):
        monkeypatch.setattr(open_pack, "free_memory", lambda free=free: FreeMemory(free, 8_000_000_000))
        caplog.clear()
        with caplog.at_level("INFO", logger=NOTICES), edgedecode.load(runtime=engine):
            assert any("only 1.0 MB of memory is free" in line for line in caplog.messages) is noticed


def test_plan_of_another_kv_type(engine: str) -> None:
    """It takes less where the pack has a graph of that type or the engine builds one, and is refused elsewhere."""
    full = planned(SessionOptions(), engine=engine)
    try:
        small = edgedecode.plan(runtime=engine, kv_type="int8").memory
    except CapabilityError:
        assert edgedecode.plan(runtime=engine).least_with_int8 is None
        with pytest.raises(CapabilityError), edgedecode.load(runtime=engine, kv_type="int8"):
            pass
        return
    kv = [dict(plan.holders)["kv:target"] for plan in (small, full)]
    assert kv[0] < kv[1]
    assert small.choice.kv_type == "int8"
    assert edgedecode.plan(runtime=engine).least_with_int8 == small.least_running < full.least_running


@pytest.mark.parametrize(
    "options",
    [
        SessionOptions(drafter="tree"),
        SessionOptions(drafter="tree", draft_max=100),
        SessionOptions(draft_max=100_000),
        session_options(rule=Rule.RATIO, reproducible=True),
        session_options(drafter="suffix", rule=Rule.RATIO),
    ],
    ids=str,
)
def test_plan_refuses_the_options_that_a_session_refuses(options: SessionOptions) -> None:
    pytest.importorskip("onnxruntime")
    with edgedecode.load(runtime="onnx") as pair, pytest.raises(EdgeDecodeError) as refused:
        pair.session(options)
    with pytest.raises(type(refused.value)) as planned_one:
        edgedecode.plan(None, options, runtime="onnx")
    assert str(planned_one.value) == str(refused.value)


@pytest.mark.parametrize("context", [1, 1_000_000])
def test_plan_of_a_context_beyond_the_models_is_refused(context: int) -> None:
    pytest.importorskip("onnxruntime")
    with pytest.raises(InputError, match="out of range"):
        edgedecode.plan(None, SessionOptions(context=context), runtime="onnx")


def test_plan_of_an_unavailable_drafter_is_refused() -> None:
    pytest.importorskip("onnxruntime")
    with pytest.raises(InputError, match="absent"):
        edgedecode.plan(None, SessionOptions(drafter="absent"), runtime="onnx")


@pytest.mark.parametrize("drafter", ["model", "trim"])
def test_plan_counts_the_named_drafters_model(engine: str, drafter: str) -> None:
    if drafter == "trim" and engine == "llama":
        pytest.skip("drafts are trimmed on ONNX Runtime only")
    options = SessionOptions(drafter=drafter, context=1024)
    planned = dict(edgedecode.plan(None, options, runtime=engine).memory.holders)
    with edgedecode.load(runtime=engine) as pair, pair.session(options) as session:
        session.generate("Hello", max_tokens=4)
        held = leased(pair)
    role = {"model": "draft"}.get(drafter, drafter)
    drafts = {name for name in held if name.endswith((":draft", ":trim")) and held[name]}
    assert drafts == {name for name in planned if name.endswith((":draft", ":trim"))}
    assert drafts >= {f"weights:{role}", f"kv:{role}"}
    assert all(name.endswith(f":{role}") for name in drafts)
    assert all(held[name] <= planned[name] for name in drafts)


def test_plan_of_the_ratio_rule_counts_the_distributions_of_a_draft(engine: str) -> None:
    options = session_options(sampling=SamplingOptions(temperature=1.0), drafter="model", context=512, rule=Rule.RATIO)
    plan = edgedecode.plan(None, options, runtime=engine).memory
    with edgedecode.load(runtime=engine) as pair, pair.session(options):
        held = leased(pair)["distributions:model"]
    assert held == dict(plan.holders)["distributions:model"] > 1_000_000


def test_plan_of_weights_that_are_read_counts_the_read_buffer_only_while_they_load() -> None:
    pytest.importorskip("llama_cpp")
    options = SessionOptions(context=512, drafter="none")
    plan = edgedecode.plan(None, options, runtime="llama", options=LoadOptions(mmap=False)).memory
    with edgedecode.load(runtime="llama", options=LoadOptions(mmap=False)) as pair, pair.session(options):
        held = leased(pair)["weights:target"]
    buffer_nbytes = 8192 * 256  # the largest matrix: the embedding
    assert held <= dict(plan.holders)["weights:target"] < held + buffer_nbytes // 2
    assert "reading weights" not in dict(plan.holders), "the session takes more"
