"""Adapters of the draft model: drafts are accepted more often, change no token, and never use another's KV state."""

import logging
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

import pytest

import edgedecode
from edgedecode import Pair, SamplingOptions, SessionOptions, Stats
from edgedecode.adapters.adapter_change import adapter_folder
from edgedecode.adapters.peft_folder import WEIGHTS
from edgedecode.decoding.model import AdapterModel
from edgedecode.decoding.verify import Rule
from edgedecode.errors import EdgeDecodeError, ManifestError
from edgedecode.library.names import BUNDLED_PACK
from edgedecode.memory.limit import Limit
from edgedecode.pack.manifest import MANIFEST_NAME, Manifest
from edgedecode.user_notices import NOTICES
from tests.adapter_scores import largest_gap
from tests.losslessness.adapters import ENGINES, GREEDY, HEADER, PROMPTS, SWAPS, WARM, write_twins
from tests.peft_folders import list_adapter, write_peft
from tests.toys import session_options


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_twins(tmp_path_factory.mktemp("adapters") / "pack")


@pytest.fixture(scope="module", params=ENGINES)
def pair(request: pytest.FixtureRequest, pack: Path) -> Iterator[Pair]:
    pytest.importorskip(ENGINES[request.param])
    with edgedecode.load(pack, runtime=request.param, adapters=True) as made:
        yield made


@pytest.fixture
def notices(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(logging.getLogger(NOTICES), "propagate", True)
    caplog.set_level("INFO", logger=NOTICES)
    return caplog


def options(adapter: str | None = None, *, draft_max: int = 4, sampling: SamplingOptions = GREEDY) -> SessionOptions:
    """Return options that always draft with the draft model, or never."""
    drafter = "model" if draft_max else "none"
    return session_options(
        adapter=adapter,
        drafter=drafter,
        draft_max=draft_max or None,
        sampling=sampling,
        seed=5,
        context=1024,
        ignore_eos=True,
    )


def draft_adapters(pair: Pair) -> set[str]:
    names = [lease.name for lease in pair.budget.leases]
    return {name.removeprefix("adapter:draft:") for name in names if name.startswith("adapter:draft:")}


def alike(pair: Pair, *answers: Stats) -> bool:
    """Return whether the drafts were the target's text; fail on anything in between.

    All are accepted where rows do not depend on a pass's width, elsewhere all except near ties.
    """
    accepted, proposed = sum(each.accepted for each in answers), sum(each.proposed for each in answers)
    assert proposed > 0
    if accepted <= 0.5 * proposed:
        return False
    assert accepted == proposed or not pair.target.card.row_invariant
    return True


@pytest.mark.parametrize(("sampling", "scale"), [(GREEDY, 0.5), (WARM, 1.0)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("adapter", ["ordinary", "activated", "alone"])
def test_draft_adapter_is_used_for_drafts(pair: Pair, adapter: str, sampling: SamplingOptions, scale: float) -> None:
    """A copy of the target drafts the target's text only with the same adapter at the same scale."""
    with pair.session(session_options(options(adapter, sampling=sampling), adapter_scale=scale)) as session:
        done = [session.generate(prompt, max_tokens=30).stats for prompt in PROMPTS[:2]]
    assert alike(pair, *done) == (adapter != "alone")


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("drafter", ["model", "tree", None])
def test_draft_adapter_over_swaps_gives_plain_decodings_text(
    pair: Pair, sampling: SamplingOptions, drafter: str | None
) -> None:
    """Bit for bit where rows do not depend on a pass's width, else by arg-max within the kernels' noise."""
    plain, drafted = options(draft_max=0, sampling=sampling), replace(options(sampling=sampling), drafter=drafter)
    drafted = replace(drafted, draft_max=None) if drafter is None else drafted
    if not pair.target.card.row_invariant:
        if sampling is WARM:
            pytest.skip("a near tie of an engine's own kernels may be drawn differently in passes of other widths")
        swaps_are_within_noise(pair, drafted)
        return
    texts, proposed = [], 0
    for each in (plain, drafted):
        with pair.session(each) as session:
            texts.append([])
            for adapter, prompt in zip(SWAPS, PROMPTS * 2, strict=False):
                session.use_adapter(adapter)
                done = session.generate(prompt, max_tokens=24)
                texts[-1].append(done.tokens)
                proposed += done.stats.proposed
    assert texts[0] == texts[1]
    assert proposed > 0 or drafter is None  # on a busy machine the scheduler may draft nothing


def swaps_are_within_noise(pair: Pair, drafted: SessionOptions) -> None:
    assert (noise := pair.manifest.models["target"].kernel_noise) is not None
    with pair.session(drafted) as session:
        for adapter, prompt in zip(SWAPS, PROMPTS * 2, strict=False):
            session.use_adapter(adapter)
            done = session.generate(prompt, max_tokens=24)
            assert largest_gap(pair, session, new=len(done.tokens)) <= noise


def test_draft_adapter_of_a_copy_is_always_accepted_by_the_ratio_rule(pair: Pair) -> None:
    """The draft reports the probabilities it sampled from: equal distributions reject nothing."""
    for adapter in ("ordinary", "activated", "alone"):
        with pair.session(session_options(options(adapter, sampling=WARM), rule=Rule.RATIO)) as session:
            assert alike(pair, session.generate(PROMPTS[0], max_tokens=40).stats) == (adapter != "alone")


def test_draft_adapter_swap_recomputes_the_positions_of_another_adapter(pair: Pair) -> None:
    """The draft model's state keeps the positions before the first whose token or adapter differs."""
    compared = set()
    with pair.session(options()) as session:
        (state,) = session._drafts._setting.states.used
        for adapter, prompt in zip(SWAPS, PROMPTS * 2, strict=False):
            read, span = [*state._read], state._span
            session.use_adapter(adapter)
            answer = session.stream(prompt, max_tokens=12)
            next(answer)  # the target's token: the draft model has computed nothing for it yet
            tokens, kept = session._turns.transcript.tokens, len(state._read)
            shared = sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(read, tokens, strict=False)))
            alike = state._span.shared_with(span)
            assert kept == (shared if alike is None else min(shared, alike))
            compared.add((shared == 0, alike))
            assert (state._span.use is None) == (adapter in (None, "alone"))
            if adapter == "activated":
                start = state._span.start
                assert tuple(tokens[start : start + len(HEADER)]) == HEADER
                assert start > len(tokens) - len(HEADER) - 4
            assert session.collect(answer).stats.proposed > 0
    assert {(False, None), (False, 0)} < compared


def test_draft_adapter_is_used_for_trees(pair: Pair) -> None:
    accepted = {}
    for adapter in ("ordinary", "alone"):
        with pair.session(replace(options(adapter), drafter="tree")) as session:
            accepted[adapter] = session.generate(PROMPTS[0], max_tokens=40).stats.accepted
    assert accepted["ordinary"] > accepted["alone"]


def test_draft_adapter_stays_for_an_answer_and_may_be_evicted_after_it(pair: Pair) -> None:
    with pair.session(options("ordinary")) as session:
        assert "ordinary" in draft_adapters(pair)  # loaded before the first answer needs it
        answer = session.stream(PROMPTS[0], max_tokens=16)
        next(answer)
        pair.turn.run(pair.budget.give_back)
        assert "ordinary" in draft_adapters(pair)
        first = session.collect(answer).stats
        pair.turn.run(pair.budget.give_back)
        assert draft_adapters(pair) == set()
        again = session.generate(PROMPTS[1], max_tokens=16).stats
        assert draft_adapters(pair) == {"ordinary"}
        assert alike(pair, first, again)


def test_draft_adapter_at_two_scales_is_held_once(pair: Pair) -> None:
    halved = session_options(options("ordinary"), adapter_scale=0.5)
    with pair.session(options("ordinary")) as first, pair.session(halved) as second:
        for session in (first, second, first):
            assert alike(pair, session.generate(PROMPTS[0], max_tokens=16).stats)
        assert draft_adapters(pair) == {"ordinary"}


def test_draft_adapter_is_left_out_in_too_small_a_budget(pair: Pair, notices: pytest.LogCaptureFixture) -> None:
    """With one notice, until memory is available again."""
    with pair.session(options(draft_max=0)) as session:
        session.use_adapter("ordinary")
        wanted = [session.generate(prompt, max_tokens=16).tokens for prompt in PROMPTS[:2]]
    with pair.session(options()) as session:
        session.generate(PROMPTS[0], max_tokens=4)
        session.reset()
        session.use_adapter("ordinary")
        try:
            pair.turn.run(pair.budget.give_back)
            pair.budget.limit = Limit(pair.budget.used_nbytes + 100_000)
            done = [session.generate(prompt, max_tokens=16) for prompt in PROMPTS[:2]]
        finally:
            pair.budget.limit = None
        assert draft_adapters(pair) == set()
        if pair.target.card.row_invariant:
            assert [each.tokens for each in done] == wanted
        assert not alike(pair, *(each.stats for each in done))
        assert notices.text.count("drafts without its adapter 'draft:ordinary'") == 1
        assert alike(pair, session.generate(PROMPTS[2], max_tokens=16).stats)


def test_draft_adapter_is_left_out_when_its_scale_does_not_fit(pack: Path, notices: pytest.LogCaptureFixture) -> None:
    """ONNX Runtime needs a second copy of the matrices for a scale other than 1, made for each answer with it."""
    with (
        edgedecode.load(pack, runtime="onnx", adapters=True) as pair,
        pair.session(session_options(options("ordinary"), adapter_scale=0.5)) as session,
    ):
        session.generate(PROMPTS[0], max_tokens=16)
        assert not notices.text
        pair.budget.limit = Limit(pair.budget.used_nbytes)
        stats = session.generate(PROMPTS[1], max_tokens=16).stats
        assert notices.text.count("drafts without its adapter 'draft:ordinary'") == 1
        assert not alike(pair, stats)


def test_draft_adapter_with_a_damaged_file_is_an_error(pack: Path, tmp_path: Path) -> None:
    made = tmp_path / "pack"
    shutil.copytree(pack, made)
    with edgedecode.load(made, runtime="onnx", adapters=True) as pair:
        file = made / adapter_folder("draft:ordinary") / WEIGHTS
        file.write_bytes(file.read_bytes()[:-100])
        with pytest.raises(ManifestError, match="is not a usable safetensors file"):
            pair.session(options("ordinary"))
        with pair.session(options()) as session:
            plain = session.generate(PROMPTS[0], max_tokens=8).tokens
            with pytest.raises(ManifestError, match="is not a usable safetensors file"):
                session.use_adapter("ordinary")
            session.reset()
            assert session.generate(PROMPTS[0], max_tokens=8).tokens == plain
        with pair.session(options("ordinary", draft_max=0)) as session:
            session.generate(PROMPTS[0], max_tokens=8)


def test_draft_adapter_is_left_out_where_the_graph_takes_none(
    pack: Path, tmp_path: Path, notices: pytest.LogCaptureFixture
) -> None:
    made = tmp_path / "pack"
    shutil.copytree(pack, made)
    manifest = Manifest.load(made)
    draft = manifest.models["draft"]
    graphs = {name: graph for name, graph in draft.graphs.items() if name != "lora"}
    changed = replace(manifest, models={**manifest.models, "draft": replace(draft, graphs=graphs)})
    (made / MANIFEST_NAME).write_text(changed.to_json(), encoding="utf-8")
    with edgedecode.load(made, runtime="onnx", adapters=True) as pair, pair.session(options("ordinary")) as session:
        done = [session.generate(prompt, max_tokens=16).stats for prompt in PROMPTS[:2]]
        assert not alike(pair, *done)
        assert notices.text.count("its graph takes no adapters") == 1
        assert not isinstance(pair.draft, AdapterModel) or not pair.draft.card.lora_rank


def test_draft_with_adapters_replaces_the_trimmed_draft(tmp_path: Path, notices: pytest.LogCaptureFixture) -> None:
    """Requested by name, the trimmed draft drafts without the adapter."""
    made = tmp_path / "pack"
    shutil.copytree(BUNDLED_PACK, made)
    list_adapter(made, "odd", write_peft(tmp_path / "odd", seed=1))
    list_adapter(made, "draft:odd", write_peft(tmp_path / "own", seed=1, role="draft"))
    with edgedecode.load(made, runtime="onnx", adapters=True) as pair:
        with pair.session(SessionOptions(adapter="odd", sampling=GREEDY)) as session:
            assert session.drafter_name == "model+suffix"
            session.generate(PROMPTS[0], max_tokens=8)
            assert "drafts without" not in notices.text
            assert draft_adapters(pair) == {"odd"}
        with pair.session(replace(options("odd"), drafter="trim")) as session:
            assert session.generate(PROMPTS[0], max_tokens=8).stats.proposed > 0
            assert "drafts without its adapter 'draft:odd'" in notices.text
    with edgedecode.load(made, runtime="onnx") as pair, pair.session() as session:
        assert session.drafter_name == "trim+suffix"
    with pytest.raises(EdgeDecodeError), edgedecode.load(made, adapters=True) as pair:
        pair.session(SessionOptions(adapter="draft:odd"))
