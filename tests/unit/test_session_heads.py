"""Sessions on packs whose draft has smaller heads: who drafts by default, what is loaded, what is said of it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest

from edgedecode.apps.stats_table import drafts_line
from edgedecode.decoding.arrays import FloatArray
from edgedecode.decoding.model import LanguageModel
from edgedecode.decoding.verify import Rule
from edgedecode.errors import CapabilityError
from edgedecode.memory import Budget
from edgedecode.options import SessionOptions
from edgedecode.pack.manifest import ModelEntry, TrimEntry
from edgedecode.pair import Pair
from edgedecode.schedule.scheduler import Scheduler
from edgedecode.testing import TableRuntime
from tests.toys import HeadedTable, ascii_pair

KEPT = tuple(range(0, 259, 2))
TRIM = TrimEntry(len(KEPT), "draft/trim.ids", recommended=True, runtime="table")


class HeadedRuntime(TableRuntime):
    """Gives the draft its smaller heads where they are needed."""

    def __init__(self, tables: dict[str, tuple[FloatArray, ...]]) -> None:
        super().__init__(tables)
        self.needs: list[tuple[str, ...]] = []

    def open(
        self,
        entry: ModelEntry,
        root: Path,
        *,
        name: str,
        vocabulary_size: int,
        budget: Budget,
        threads: int | None,
        provider: str,
        needs: Collection[str] = (),
    ) -> LanguageModel:  # type: ignore[override]
        self.needs.append(tuple(needs))
        if not needs:
            return super().open(
                entry,
                root,
                name=name,
                vocabulary_size=vocabulary_size,
                budget=budget,
                threads=threads,
                provider=provider,
            )
        offered = {"trim": entry.trim is not None, "local": "local" in entry.graphs["base"].capabilities}
        if not all(offered[need] for need in needs):
            raise CapabilityError("no such head")
        model = HeadedTable(self._tables[name], KEPT, budget=budget)
        model.local = model.local if "local" in needs else None
        return model


def pair_with(trim: TrimEntry | None, *, local: bool = False) -> tuple[Pair, HeadedRuntime]:
    base = ascii_pair()
    runtime = HeadedRuntime(base._engine._tables)  # type: ignore[attr-defined]
    draft = replace(base.manifest.models["draft"], trim=trim)
    if local:
        graph = replace(draft.graphs["base"], capabilities=("tree", "rows", "local"))
        draft = replace(draft, graphs={"base": graph})
    manifest = replace(base.manifest, models={**base.manifest.models, "draft": draft})
    return Pair(manifest, Path(), tokenizer=base.tokenizer, runtime=runtime, budget=Budget()), runtime


def names(pair: Pair, **options: object) -> str:
    with pair.session(SessionOptions(**options)) as session:  # type: ignore[arg-type]
        return session.drafter_name


def test_a_recommended_trim_drafts_by_default_beside_the_whole_head_on_one_model() -> None:
    pair, runtime = pair_with(TRIM)
    with pair.session() as session:
        assert session.drafter_name == "trim+model+suffix"
        policy = session._drafting.policy  # type: ignore[union-attr]
        assert isinstance(policy, Scheduler)
        assert policy.variants.arms == {"trim": ("trim", "model")}
        reply = session.generate("hello", max_tokens=60)
    assert reply.tokens == ascii_pair().session(SessionOptions(drafter="none")).generate("hello", max_tokens=60).tokens
    assert runtime.needs == [(), ("trim",)]  # the target, and one draft


@pytest.mark.parametrize(
    ("trim", "local", "expected"),
    [
        (None, False, "model+suffix"),
        (replace(TRIM, recommended=False), False, "model+suffix"),
        (replace(TRIM, runtime="another"), False, "model+suffix"),
        (replace(TRIM, runtime=""), False, "trim+model+suffix"),
        (None, True, "local+model+suffix"),
        (replace(TRIM, recommended=False), True, "model+suffix"),
    ],
)
def test_who_drafts(trim: TrimEntry | None, local: bool, expected: str) -> None:
    pair, _ = pair_with(trim, local=local)
    assert names(pair) == expected


@pytest.mark.parametrize(
    "first", [{"draft_max": 2}, {"drafter": "model"}, {"rule": Rule.RATIO}, {"reproducible": True}]
)
def test_whoever_asks_first_the_recommended_head_is_there_afterwards(first: dict[str, object]) -> None:
    pair, runtime = pair_with(TRIM)
    assert names(pair, **first) == "model"
    assert names(pair) == "trim+model+suffix"
    assert len(pair.drafts.loaded) == 1
    assert runtime.needs == [(), ("trim",)]


@pytest.mark.parametrize("name", ["trim", "local"])
def test_heads_can_be_named_and_draft(name: str) -> None:
    pair, _ = pair_with(TRIM, local=True)
    with pair.session(SessionOptions(drafter=name, draft_max=3)) as session:
        stats = session.generate("hello", max_tokens=120).stats
    assert stats.drafters[name].accepted > 0
    assert stats.drafters[name].cut_short > 0
    assert "% cut short by the trimmed vocabulary)" in drafts_line(stats)


def test_end_tokens_that_nobody_can_say_do_not_end_a_local_head() -> None:
    base, runtime = pair_with(None, local=True)
    padded = base.tokenizer.size  # the first of the rows above the tokenizer's ids
    generation = replace(base.manifest.generation, end_token_ids=(2, 0, padded, padded + 2))
    manifest = replace(base.manifest, generation=generation)
    pair = Pair(manifest, Path(), tokenizer=base.tokenizer, runtime=runtime, budget=Budget())
    tokens = []
    for each in (base, pair):
        with each.session(SessionOptions(drafter="local", draft_max=3)) as session:
            tokens.append(session.generate("hello", max_tokens=40).tokens)
    assert tokens[0] == tokens[1]


def test_the_local_and_the_whole_head_tell_what_the_other_would_have_drafted() -> None:
    pair, _ = pair_with(None, local=True)
    with pair.session() as session:
        drafting = session._drafting
        assert drafting is not None
        assert {name: [head.name for head in heads] for name, heads in drafting._heads.items()} == {
            "local": ["model"],
            "model": ["local"],
        }
