"""Sessions on packs whose draft model has smaller heads: the default drafters, the loaded heads, the statistics."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edgedecode.apps.stats_table import drafts_line
from edgedecode.arrays import FloatArray
from edgedecode.decoding.verify import Rule
from edgedecode.engines.interface import ModelRequest
from edgedecode.errors import CapabilityError
from edgedecode.memory.budget import Budget
from edgedecode.options import SessionOptions, SwitchOptions
from edgedecode.pack.entries import TrimEntry
from edgedecode.pair import Pair
from edgedecode.testing import TableModel, TableRuntime
from tests.toys import HeadedTable, ascii_pair

KEPT = tuple(range(0, 259, 2))
TRIM = TrimEntry(len(KEPT), "draft/trim.ids", recommended=True, runtime="table")


class HeadedRuntime(TableRuntime):
    """Give the draft model its smaller heads on request."""

    def __init__(self, tables: dict[str, tuple[FloatArray, ...]]) -> None:
        super().__init__(tables)
        self.needs: list[tuple[str, ...]] = []

    def open(self, request: ModelRequest) -> TableModel:
        self.needs.append(tuple(request.needs))
        if not request.needs:
            return super().open(request)
        if request.entry.trim is None:
            raise CapabilityError("no such head")
        return HeadedTable(self._tables[request.name], KEPT, budget=request.budget)


def pair_with(trim: TrimEntry | None) -> tuple[Pair, HeadedRuntime]:
    base = ascii_pair()
    runtime = HeadedRuntime(base._engine._tables)  # type: ignore[attr-defined]
    draft = replace(base.manifest.models["draft"], trim=trim)
    manifest = replace(base.manifest, models={**base.manifest.models, "draft": draft})
    return Pair(manifest, Path(), tokenizer=base.tokenizer, runtime=runtime, budget=Budget()), runtime


def names(pair: Pair, **options: object) -> str:
    with pair.session(SessionOptions(**options)) as session:  # type: ignore[arg-type]
        return session.drafter_name


def test_recommended_trim_drafts_by_default() -> None:
    pair, runtime = pair_with(TRIM)
    with pair.session() as session:
        assert session.drafter_name == "trim+suffix"
        reply = session.generate("hello", max_tokens=60)
    assert reply.tokens == ascii_pair().session(SessionOptions(drafter="none")).generate("hello", max_tokens=60).tokens
    assert runtime.needs == [(), ("trim",)]  # the target, and one draft


@pytest.mark.parametrize(
    ("trim", "expected"),
    [
        (None, "model+suffix"),
        (replace(TRIM, recommended=False), "model+suffix"),
        (replace(TRIM, runtime="another"), "model+suffix"),
        (replace(TRIM, runtime=""), "trim+suffix"),
    ],
)
def test_default_drafters_by_trim_entry(trim: TrimEntry | None, expected: str) -> None:
    pair, _ = pair_with(trim)
    assert names(pair) == expected


@pytest.mark.parametrize("first", [{"draft_max": 2}, {"drafter": "model"}, {"rule": Rule.RATIO}])
def test_recommended_trim_is_available_after_sessions_that_did_not_need_it(first: dict[str, object]) -> None:
    pair, runtime = pair_with(TRIM)
    assert names(pair, **first) == "model"
    assert names(pair) == "trim+suffix"
    assert len(pair.drafts.loaded) == 1
    assert runtime.needs == [(), ("trim",)]


def test_trim_drafts_when_named() -> None:
    pair, _ = pair_with(TRIM)
    with pair.session(SessionOptions(drafter="trim", draft_max=3)) as session:
        stats = session.generate("hello", max_tokens=120).stats
    assert stats.drafters["trim"].accepted > 0
    assert stats.drafters["trim"].cut_short > 0
    assert "% cut short by the trimmed vocabulary)" in drafts_line(stats)


def test_switching_refuses_the_trim() -> None:
    pair, _ = pair_with(TRIM)
    with pytest.raises(CapabilityError, match="leave out --drafter trim"):
        names(pair, drafter="trim", switch=SwitchOptions())
