"""Graphs of fixed width on the processor: passes, memory, limits, and whole conversations of the bundled pack."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import EntryPoint

import numpy as np
import pytest

import edgedecode
from edgedecode import CapabilityError, LoadOptions, Pair, SamplingOptions, SessionOptions
from edgedecode.engines import registry
from edgedecode.engines.interface import ModelRequest
from edgedecode.engines.kernel_noise import rescore
from edgedecode.engines.registry import PROVIDERS
from edgedecode.errors import ManifestError
from edgedecode.library.names import BUNDLED_PACK
from edgedecode.memory.budget import Budget
from edgedecode.pack.integrity import file_entry
from edgedecode.pack.manifest import MANIFEST_NAME, Manifest, ModelEntry
from tests.contract.conftest import Opener, open_entry
from tests.contract.toy_graph import ToyShape

pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")
static_graph = pytest.importorskip("tests.contract.static_graph", reason="onnx_ir is missing")
OnnxRuntime = pytest.importorskip("edgedecode.runtimes.onnx").OnnxRuntime
split_static = pytest.importorskip("edgedecode.runtimes.onnx.static.static_passes").split_static

WIDTHS = static_graph.WIDTHS
SLOTS = 256
PROMPTS = ("Tell me a story about a boat.", "Who is its captain?", "Write a list of three colours.")


def widths_of(count: int, rows: list[int], widths: tuple[int, ...] = WIDTHS) -> list[int]:
    return [piece.width for piece in split_static(count, rows, widths)]


@pytest.mark.parametrize(
    ("count", "rows", "expected"),
    [
        (1, [0], [1]),
        (3, [0, 1, 2], [4]),
        (5, [4], [8]),
        (9, [8], [8, 1]),
        (16, [15], [8, 8]),
        (17, [16], [128]),
        (20, list(range(20)), [8, 8, 4]),
        (130, [129], [128, 4]),
        (130, [1, 129], [128, 4]),
        (130, [], [128, 4]),
        (200, [3, 4], [8, 128, 128]),
    ],
)
def test_split_static_pads_to_widths_that_give_the_wanted_rows_logits(
    count: int, rows: list[int], expected: list[int]
) -> None:
    assert widths_of(count, rows) == expected
    pieces = list(split_static(count, rows, WIDTHS))
    assert [piece.start for piece in pieces[1:]] == [piece.stop for piece in pieces[:-1]]
    assert [piece.start + row for piece in pieces for row in piece.rows] == rows
    assert (pieces[0].start, pieces[-1].stop) == (0, count)


def test_split_static_without_a_wide_graph_takes_several_passes() -> None:
    assert widths_of(20, [19], (1, 8)) == [8, 8, 8]
    assert widths_of(3, [2], (1,)) == [1, 1, 1]


@pytest.fixture(scope="module")
def entry(opener: Opener) -> ModelEntry:
    found: ModelEntry = static_graph.add_static(opener.root(ToyShape()), opener.entry(ToyShape()), slots=SLOTS)
    return found


def request(opener: Opener, entry: ModelEntry, budget: Budget) -> ModelRequest:
    root = opener.root(ToyShape())
    return ModelRequest(entry, root, "target", entry.rows, budget=budget, threads=1, needs=["static"])


def test_static_model_leases_what_its_plan_says(opener: Opener, entry: ModelEntry) -> None:
    budget = Budget()
    planned = OnnxRuntime().footprint(request(opener, entry, budget))
    model = OnnxRuntime().open(request(opener, entry, budget))
    state = model.new_state(100, rows=5, tree=True)
    model.forward(range(40), state, rows="none")
    model.forward([1, 2, 3], state, parents=[-1, -1, 0], rows="all")
    holders = [*planned.loaded, *planned.state(100, rows=5, tree=True)]
    assert {lease.name: lease.nbytes for lease in budget.leases} == dict(holders)
    assert planned.card == replace(model.card, threads=planned.card.threads)
    model.close()
    assert {lease.name for lease in budget.leases} == {"engine code"}


def test_static_model_offers_the_widths_with_all_logits_on_its_card(opener: Opener, entry: ModelEntry) -> None:
    model = OnnxRuntime().open(request(opener, entry, Budget()))
    assert (model.card.widths, model.card.context) == ((1, 4, 8), SLOTS)
    model.close()


def test_static_graphs_too_wide_for_verification_are_refused(opener: Opener, entry: ModelEntry) -> None:
    graphs = {name: graph for name, graph in entry.graphs.items() if graph.width in (0, 128)}
    with pytest.raises(
        ManifestError, match=r"narrowest static graph has 128 rows.*at most 16: run `edgedecode compile`"
    ):
        OnnxRuntime().open(request(opener, replace(entry, graphs=graphs), Budget()))


def test_static_model_refuses_a_context_longer_than_its_graphs(opener: Opener, entry: ModelEntry) -> None:
    model = OnnxRuntime().open(request(opener, entry, Budget()))
    with pytest.raises(CapabilityError, match=r"graphs were made for 256 positions \(use --ctx-size 256"):
        model.new_state(SLOTS + 1)
    model.close()


def test_static_graphs_are_chosen_only_on_request(opener: Opener, entry: ModelEntry) -> None:
    model = open_entry(entry, opener.root(ToyShape()), budget=Budget())
    assert model.card.widths == ()
    model.close()
    with pytest.raises(CapabilityError, match="no graph that offers static"):
        open_entry(opener.entry(ToyShape()), opener.root(ToyShape()), budget=Budget(), needs=["static"])


def test_static_model_equals_the_base_graph(opener: Opener, entry: ModelEntry, engine_kernels: None) -> None:
    """To float rounding, over prefill, a chain, a tree whose branch is kept, and a rollback."""
    logits = []
    for needs in ((), ("static",)):
        model = open_entry(entry, opener.root(ToyShape()), budget=Budget(), needs=needs)
        state = model.new_state(200, rows=8, tree=True)
        rows = [model.forward(range(50), state).logits.copy()]
        state.keep(range(50))
        rows.append(model.forward([7, 8, 9, 10, 11], state, rows="all").logits.copy())
        state.keep(range(2))
        model.forward([1, 2], state, parents=[-1, -1], rows="none")
        rows.append(model.forward([3, 4, 5], state, parents=[1, 2, 0], rows="all").logits.copy())
        state.keep([1, 2, 3])
        state.crop(40)
        rows.append(model.forward([6, 5, 4], state, rows=[2, 0]).logits.copy())
        logits.append(np.concatenate(rows))
        model.close()
    np.testing.assert_allclose(logits[0], logits[1], atol=2e-4)


@pytest.fixture(scope="module")
def static_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Open the bundled pack on a provider that needs static graphs."""
    pack = tmp_path_factory.mktemp("static") / "pack"
    shutil.copytree(BUNDLED_PACK, pack)
    manifest = Manifest.load(pack)
    models = {role: static_graph.add_static(pack, entry, slots=1024) for role, entry in manifest.models.items()}
    added = {graph.file for entry in models.values() for graph in entry.graphs.values()} - manifest.files.keys()
    files = manifest.files | {name: file_entry(pack / name) for name in added}
    (pack / MANIFEST_NAME).write_text(replace(manifest, models=models, files=files).to_json(), encoding="utf-8")
    row = EntryPoint("static", "tests.contract.static_graph:StaticCpu", PROVIDERS)
    found = [*registry.every_entry_point(), row]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "every_entry_point", lambda: found)
        with edgedecode.load(pack, runtime="onnx", options=LoadOptions(provider="static")) as pair:
            pair.keep_experience(None)
            yield pair


NOISE = 0.3
"""Largest gap to the leading logit of a token that another width may choose: the pack's kernel noise is 0.14."""


@pytest.mark.parametrize("drafter", ["model", "suffix", "tree", None])
def test_static_pair_with_drafts_emits_the_targets_tokens(static_pair: Pair, drafter: str | None) -> None:
    """Each token leads in its row when the text is scored again, up to the noise between widths."""
    length = None if drafter is None else 7
    options = SessionOptions(drafter=drafter, draft_max=length, context=1024)
    accepted = 0
    with static_pair.session(options) as session:
        for prompt in (*PROMPTS, PROMPTS[0]):
            done = session.generate(prompt, max_tokens=48)
            accepted += done.stats.accepted
        score = rescore(static_pair.target, session.tokens, prompt_tokens=len(session.tokens) - len(done.tokens))
    assert score.largest_gap <= NOISE
    assert accepted > 0 or drafter is None  # on a busy machine the scheduler may draft nothing


def test_static_pair_is_planned_with_the_full_draft(static_pair: Pair) -> None:
    """The pack has a trimmed draft, which no static graph has."""
    made = edgedecode.plan(static_pair.root, runtime="onnx", options=LoadOptions(provider="static")).memory
    assert "trim" not in made.choice.drafters
    assert "weights:draft" in dict(made.holders)


def test_static_pair_repeats_a_sampled_answer(static_pair: Pair) -> None:
    warm = SamplingOptions(temperature=0.8, top_p=0.95)
    options = SessionOptions(sampling=warm, seed=5, drafter="model", draft_max=3)
    answers = []
    for _ in range(2):
        with static_pair.session(options) as session:
            answers.append([session.generate(prompt, max_tokens=24).tokens for prompt in PROMPTS[:2]])
    assert answers[0] == answers[1]


def test_static_pair_tells_the_scheduler_its_widths(static_pair: Pair) -> None:
    assert static_pair.experience.costs.widths == (1, 4, 8)
    with static_pair.session(SessionOptions()) as session:
        session.generate(PROMPTS[0], max_tokens=48)
    seen = {int(width) for table in static_pair.experience.costs.tables.values() for width in table.seen.nonzero()[0]}
    assert seen <= {4, 8}
