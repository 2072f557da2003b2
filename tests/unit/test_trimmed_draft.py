"""Which draft model a session gets: the trimmed one, the full one or none; what is loaded, leased and refused."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgedecode.apps.stats_table import drafts_line
from edgedecode.arrays import FloatArray
from edgedecode.decoding.drafter import Drafter
from edgedecode.decoding.model import LanguageModel
from edgedecode.decoding.verify import Rule
from edgedecode.drafters.model_drafter import ModelDrafter, usable_model
from edgedecode.drafters.source import DrafterSource, DraftSetting
from edgedecode.engines.interface import ModelRequest
from edgedecode.errors import BudgetExceeded, CapabilityError, InputError
from edgedecode.memory.budget import Budget
from edgedecode.options import SessionOptions, SwitchOptions
from edgedecode.pack.integrity import file_entry
from edgedecode.pack.manifest import Graph, Manifest, TrimmedDraft
from edgedecode.pack.token_map import write_token_ids
from edgedecode.pair import Pair
from edgedecode.sampling.weights import SamplingOptions
from edgedecode.sessions.draft_models import preferred_drafters
from edgedecode.testing import TableModel, TableRuntime
from tests.toys import TrimmedTable, ascii_pair, session_options

KEPT = tuple(range(0, 259, 2))
GRAPH = Graph("draft/trim.onnx", ("input_ids",), ("logits",), ("tree", "rows"), token_ids="draft/trim.ids")
TRIMMED = TrimmedDraft(GRAPH, "table")
WARM = SamplingOptions(temperature=1.0)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the map, the only listed file of the toy, into the folder of the pack: the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "draft").mkdir()
    write_token_ids(tmp_path / GRAPH.token_ids, np.array(KEPT))


class TrimmedRuntime(TableRuntime):
    """Opens a trimmed draft of the same tables; refuses a role of `full` for its memory."""

    def __init__(self, tables: dict[str, tuple[FloatArray, ...]], *, full: tuple[str, ...] = ()) -> None:
        super().__init__(tables)
        self.full = full
        self.closed: list[str] = []

    def open(self, request: ModelRequest) -> LanguageModel:  # type: ignore[override]
        if request.name in self.full:
            raise BudgetExceeded(f"no room for {request.name}", "give more", table="")
        assert (request.name == "trim") == bool(request.entry.graphs["base"].token_ids)
        self.opened.append(request.name)
        runtime, name = self, request.name

        class Closing(TableModel):
            def close(self) -> None:
                runtime.closed.append(name)

        model = Closing(self._tables["draft" if name == "trim" else name], context=512, budget=request.budget)
        return TrimmedTable(model, KEPT) if name == "trim" else model


def manifest_with(trimmed: TrimmedDraft | None) -> Manifest:
    base = ascii_pair().manifest
    draft = replace(base.models["draft"], trimmed=trimmed)
    files = {GRAPH.token_ids: file_entry(Path(GRAPH.token_ids))}
    return replace(base, models={**base.models, "draft": draft}, files=files)


def pair_with(trimmed: TrimmedDraft | None = TRIMMED, *, full: tuple[str, ...] = ()) -> tuple[Pair, TrimmedRuntime]:
    base = ascii_pair()
    runtime = TrimmedRuntime(base._engine._tables, full=full)  # type: ignore[attr-defined]
    manifest = manifest_with(trimmed)
    return Pair(manifest, Path(), tokenizer=base.tokenizer, runtime=runtime, budget=Budget()), runtime


def names(pair: Pair, **options: object) -> str:
    with pair.session(session_options(**options)) as session:
        return session.drafter_name


@pytest.mark.parametrize("sampling", [SamplingOptions(), WARM], ids=["greedy", "sampled"])
def test_trimmed_draft_drafts_by_default_without_changing_the_text(sampling: SamplingOptions) -> None:
    pair, runtime = pair_with()
    with pair.session(SessionOptions(sampling=sampling, seed=4)) as session:
        assert session.drafter_name == "trim+suffix"
        reply = session.generate("hello", max_tokens=60)
    plain = SessionOptions(sampling=sampling, seed=4, drafter="none")
    assert reply.tokens == ascii_pair().session(plain).generate("hello", max_tokens=60).tokens
    assert runtime.opened == ["target", "trim"]


@pytest.mark.parametrize(
    ("trimmed", "expected"),
    [
        (None, "model+suffix"),
        (TRIMMED, "trim+suffix"),
        (replace(TRIMMED, runtime="another"), "model+suffix"),
        (replace(TRIMMED, speed_up=1.21, speed_up_full=1.2), "trim+suffix"),
        (replace(TRIMMED, speed_up=1.2, speed_up_full=1.2), "model+suffix"),
        (replace(TRIMMED, speed_up=1.1, speed_up_full=1.2), "model+suffix"),
    ],
)
def test_default_draft_is_the_trimmed_one_where_it_is_faster(trimmed: TrimmedDraft | None, expected: str) -> None:
    pair, _ = pair_with(trimmed)
    assert names(pair) == expected


def test_preferred_drafters_keep_the_kv_type_and_the_drafts_adapters() -> None:
    manifest = manifest_with(TRIMMED)
    assert preferred_drafters(manifest, runtime="table") == ("trim", "model")
    assert preferred_drafters(manifest, runtime="table", kv_type="int8") == ("trim", "model")  # no draft has it
    draft = manifest.models["draft"]
    kv8 = replace(draft.graphs["base"], kv_type="int8")
    both = replace(manifest, models={**manifest.models, "draft": replace(draft, graphs={**draft.graphs, "kv8": kv8})})
    assert preferred_drafters(both, runtime="table", kv_type="int8") == ("model",)
    assert preferred_drafters(both, runtime="table", kv_type="float32") == ("trim", "model")
    assert preferred_drafters(replace(manifest, models={"target": draft}), runtime="table") == ()


def test_trees_and_switching_use_the_full_draft() -> None:
    pair, runtime = pair_with()
    assert names(pair, drafter="tree", draft_max=4) == "tree"
    with pytest.raises(InputError, match="leave out --drafter"):
        names(pair, drafter="trim", switch=SwitchOptions())
    assert runtime.opened == ["target", "draft"]


def test_trimmed_draft_named_with_the_ratio_rule_drafts() -> None:
    pair, _ = pair_with()
    options = session_options(drafter="trim", draft_max=3, sampling=WARM, seed=1, rule=Rule.RATIO)
    with pair.session(options) as session:
        assert session.generate("hello", max_tokens=40).stats.drafters["trim"].accepted > 0


def test_stats_count_rounds_cut_short_by_the_trimmed_vocabulary() -> None:
    pair, _ = pair_with()
    with pair.session(SessionOptions(drafter="trim", draft_max=3)) as session:
        stats = session.generate("hello", max_tokens=120).stats
    assert stats.drafters["trim"].accepted > 0
    assert stats.drafters["trim"].cut_short > 0
    assert "% cut short by the trimmed vocabulary)" in drafts_line(stats)


def test_trim_of_a_pack_without_one_names_the_command() -> None:
    pair, _ = pair_with(None)
    with pytest.raises(CapabilityError, match="edgedecode trim PACK"):
        names(pair, drafter="trim")


@pytest.mark.parametrize(
    ("full", "expected"), [(("trim",), "model+suffix"), (("draft",), "trim+suffix"), (("trim", "draft"), "suffix")]
)
def test_trimmed_draft_that_does_not_fit_is_replaced_by_the_full_one(full: tuple[str, ...], expected: str) -> None:
    pair, runtime = pair_with(full=full)
    with pair.session() as session:
        assert session.drafter_name == expected
        before = list(runtime.opened)
        session.generate("hello", max_tokens=8)
        session.generate("hello", max_tokens=8)
        assert runtime.opened == before
    with pytest.raises(BudgetExceeded, match="no room"):
        names(pair, drafter="trim" if "trim" in full else "model")


def test_only_used_draft_models_stay_loaded() -> None:
    pair, runtime = pair_with()
    assert names(pair) == "trim+suffix"
    assert runtime.closed == []  # the next session has it at once
    assert names(pair, drafter="model") == "model"
    assert runtime.closed == ["trim"]
    with pair.session() as one, pair.session(SessionOptions(drafter="model")) as two:
        assert runtime.closed == ["trim", "draft"]
        assert len(pair.drafts.loaded) == 2
        assert one.generate("hello", max_tokens=8).tokens == two.generate("hello", max_tokens=8).tokens
    assert pair.draft is pair.draft  # held from now on: a caller uses it without a session
    assert names(pair) == "trim+suffix"
    assert names(pair, drafter="model") == "model"
    assert runtime.closed == ["trim", "draft"]
    pair.close()
    assert sorted(runtime.closed) == ["draft", "draft", "target", "trim", "trim"]


class OwnSource(DrafterSource):
    """Another package's drafter, which runs the session's draft model and is scheduled beside the others."""

    name = "own"
    needs_model = True

    def open(self, setting: DraftSetting) -> Drafter:
        return ModelDrafter(usable_model(setting), setting, name=self.name)


def test_a_drafter_of_another_package_runs_the_model_that_its_session_has() -> None:
    pair, runtime = pair_with()
    pair.add_drafter_source(OwnSource())
    plain = SessionOptions(drafter="none", sampling=WARM, seed=1)
    with pair.session(plain) as bare, pair.session(replace(plain, drafter=None)) as session:
        assert session.drafter_name == "trim+suffix+own"
        for prompt in ("hello", "and again", "once more"):
            assert session.generate(prompt, max_tokens=80).tokens == bare.generate(prompt, max_tokens=80).tokens
    assert runtime.opened == ["target", "trim"]
    assert runtime.closed == []
