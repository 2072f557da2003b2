"""Target and draft on different engines: the target's text and distribution, in one memory budget."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import edgedecode
from edgedecode import BudgetExceeded, CapabilityError, InputError, LoadOptions, SamplingOptions, SessionOptions
from edgedecode.engines.kernel_noise import rescore
from edgedecode.engines.placed import Place
from edgedecode.library.names import BUNDLED_PACK
from edgedecode.pack.manifest import MANIFEST_NAME, Manifest
from edgedecode.pair import Pair

PLACES = {"onnx": "llama", "llama": "onnx"}
"""The draft's engine by the target's."""
GREEDY, WARM = SamplingOptions(), SamplingOptions(temperature=0.8, top_p=0.95)
PROMPTS = ("Tell me a story about a boat.", "Who is its captain?", "Write a list of three colours.")


@pytest.fixture(scope="module", params=PLACES)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    for engine in ("onnxruntime", "llama_cpp"):
        pytest.importorskip(engine)
    with edgedecode.load(runtime=request.param, options=LoadOptions(draft_on=PLACES[request.param])) as made:
        yield made


def answers(pair: Pair, options: SessionOptions) -> tuple[list[list[int]], int]:
    """Return the tokens of a conversation, and how many drafted tokens were accepted."""
    with pair.session(options) as session:
        done = [session.generate(prompt, max_tokens=40) for prompt in PROMPTS]
    return [list(answer.tokens) for answer in done], sum(answer.stats.accepted for answer in done)


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("drafter", ["model", "tree"])
def test_draft_on_another_engine_changes_no_token(pair: Pair, sampling: SamplingOptions, drafter: str) -> None:
    """Bit for bit where rows do not depend on a pass's width, else by arg-max within the kernels' noise."""
    drafted = SessionOptions(drafter=drafter, draft_max=4, sampling=sampling, seed=3)
    if not pair.target.card.row_invariant:
        if sampling is WARM:
            pytest.skip("a near tie of an engine's own kernels may be drawn differently in passes of other widths")
        assert (noise := pair.manifest.models["target"].kernel_noise) is not None  # as large as in any 8-bit kernels
        with pair.session(drafted) as session:
            accepted = session.generate(PROMPTS[0], max_tokens=40).stats.accepted
            prompt_tokens = session.stats.prompt_tokens
            assert rescore(pair.target, session.tokens, prompt_tokens=prompt_tokens).largest_gap <= noise
        assert accepted > 0
        return
    texts, accepted = answers(pair, drafted)
    plain, _ = answers(pair, replace(drafted, drafter="none", draft_max=0))
    assert texts == plain
    assert accepted > 0


def test_draft_on_another_engine_is_opened_there(pair: Pair) -> None:
    assert pair.draft is not None
    names = {lease.name for lease in pair.budget.leases}
    assert {"engine code", "llama.cpp code"} <= names, "both engines are leased"


@pytest.mark.parametrize("target", PLACES)
def test_draft_on_another_engine_runs_in_the_budget_of_its_plan(target: str) -> None:
    for engine in ("onnxruntime", "llama_cpp"):
        pytest.importorskip(engine)
    options = SessionOptions(context=256, drafter="model", draft_max=4)
    planned = edgedecode.plan(None, options, runtime=target, options=LoadOptions(draft_on=PLACES[target])).memory
    assert {"engine code", "llama.cpp code", "weights:target", "weights:draft"} <= {name for name, _ in planned.holders}
    with (
        edgedecode.load(runtime=target, memory=planned.nbytes, options=LoadOptions(draft_on=PLACES[target])) as pair,
        pair.session(options) as session,
    ):
        assert session.generate(PROMPTS[0], max_tokens=16).stats.proposed > 0
        assert session.context == 256
    with (
        pytest.raises(BudgetExceeded),
        edgedecode.load(runtime=target, memory="40MB", options=LoadOptions(draft_on=PLACES[target])) as pair,
    ):
        pair.session(options)


def test_draft_on_an_unknown_engine_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"there is no engine 'gpu'; write ENGINE or ENGINE:PROVIDER, with one of: "):
        edgedecode.load(runtime="onnx", options=LoadOptions(draft_on="gpu"))


def test_draft_on_a_provider_that_cannot_run_is_an_error_before_anything_is_loaded() -> None:
    pytest.importorskip("onnxruntime")
    with pytest.raises(CapabilityError, match="no provider 'gpu' here; it has: cpu"):
        edgedecode.load(runtime="onnx", options=LoadOptions(draft_on="onnx:gpu"))


def test_draft_on_needs_a_draft(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    shutil.copytree(BUNDLED_PACK, tmp_path / "pack")
    manifest = Manifest.load(tmp_path / "pack")
    files = {name: entry for name, entry in manifest.files.items() if not name.startswith("draft/")}
    alone = replace(manifest, models={"target": manifest.models["target"]}, files=files, switching=None)
    (tmp_path / "pack" / MANIFEST_NAME).write_text(alone.to_json(), encoding="utf-8")
    shutil.rmtree(tmp_path / "pack" / "draft")
    with pytest.raises(InputError, match="has no draft model to run on onnx: leave out --draft-on"):
        edgedecode.load(tmp_path / "pack", runtime="onnx", options=LoadOptions(draft_on="onnx"))


def test_place_is_an_engine_and_a_provider() -> None:
    assert Place.parse("onnx:openvino:npu") == Place("onnx", "openvino:npu")
    assert [str(Place.parse(text)) for text in ("llama", "llama:cpu", "onnx:webgpu")] == [
        "llama",
        "llama",
        "onnx:webgpu",
    ]
