"""Reproducible sessions on a target whose kernels round by the number of rows, and the file that keeps its widths."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from edgedecode.decoding.model import AdapterUse
from edgedecode.engines.identical_widths import IdenticalWidths
from edgedecode.errors import CapabilityError
from edgedecode.options import SessionOptions
from edgedecode.pair import Pair
from edgedecode.sampling.weights import SamplingOptions
from edgedecode.sessions.reproducible import FOLDER, load_widths, store_widths, widths_path
from edgedecode.testing import TableState
from tests.toys import kernel_per_count, kernel_per_pair, rounding_pair

WARM = SamplingOptions(temperature=0.9, top_k=30)
FOUND = IdenticalWidths((2, 4, 8), (32,))
PROMPTS = ["hello", "a longer prompt, " * 9]


def text(pair: Pair, prompt: str, *, sampling: SamplingOptions, **options: object) -> str:
    full = SessionOptions(seed=5, ignore_eos=True, sampling=sampling, **options)  # type: ignore[arg-type]
    with pair.session(full) as session:
        return session.generate(prompt, max_tokens=60).text


@pytest.mark.parametrize("sampling", [SamplingOptions(), WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("prompt", PROMPTS, ids=["short", "long"])
def test_reproducible_text_is_the_same_with_any_draft(prompt: str, sampling: SamplingOptions) -> None:
    pair = rounding_pair(kernel_per_pair)
    plain = text(pair, prompt, sampling=sampling, drafter="none", reproducible=True)
    for drafter in ("model", "suffix", "recycle"):
        for length in (1, 2, 3, 8, 16):
            options = {"drafter": drafter, "draft_max": length}
            assert text(pair, prompt, sampling=sampling, reproducible=True, **options) == plain
    assert text(pair, prompt, sampling=sampling, reproducible=True) == plain
    assert (
        text(pair, prompt, sampling=sampling, drafter="model", draft_max=2) != plain
    )  # otherwise the test would prove nothing


def test_reproducible_text_after_an_abandoned_answer_equals_a_fresh_session() -> None:
    """A session that kept its KV cache splits the prompt into other passes than a fresh one."""
    pair = rounding_pair(kernel_per_pair)
    options = SessionOptions(seed=5, ignore_eos=True, reproducible=True, drafter="model", draft_max=3)
    with pair.session(options) as fresh:
        fresh.generate(PROMPTS[1], max_tokens=7)
        messages, expected = fresh.messages, fresh.generate("and now?", max_tokens=40).text
    for taken in (1, 3, 5):
        with pair.session(options) as session:
            stream = session.stream(PROMPTS[0], max_tokens=60)
            for _ in range(taken):
                next(stream)
            stream.close()  # type: ignore[attr-defined]
            session.reset()
            session.generate(PROMPTS[1], max_tokens=7)
            assert session.messages == messages
            assert session.generate("and now?", max_tokens=40).text == expected


def test_reproducible_refuses_an_engine_where_every_width_rounds_differently() -> None:
    pair = rounding_pair(kernel_per_count)
    with pytest.raises(CapabilityError, match=r"identical bits.*--runtime.*--threads 1.*--block-size") as caught:
        pair.session(SessionOptions(reproducible=True))
    assert "\n" not in str(caught.value)
    assert pair.session().generate("hello", max_tokens=5).tokens  # ordinary sessions measure nothing


def test_widths_are_measured_once_per_pair_and_never_for_ordinary_sessions() -> None:
    pair = rounding_pair(kernel_per_pair)
    pair.session()
    passes: list[int] = pair.target.passes  # type: ignore[attr-defined]
    assert passes == []
    pair.session(SessionOptions(reproducible=True))
    measured = len(passes)
    assert measured > 0
    pair.session(SessionOptions(reproducible=True, draft_max=4))
    assert len(passes) == measured


def test_reproducible_limits_drafts_to_the_widths_that_can_be_padded() -> None:
    pair = rounding_pair(lambda place, rows: 0 if rows <= 2 else rows)
    session = pair.session(SessionOptions(reproducible=True))
    assert session.options.draft_max == 1
    session.generate("hello", max_tokens=8)
    assert max(pair.target.passes[-8:]) <= 2  # type: ignore[attr-defined]
    with pytest.raises(CapabilityError, match=r"5 tokens need passes of 6 rows.*--draft-max 1 at most"):
        pair.session(SessionOptions(reproducible=True, draft_max=5))
    assert pair.session(SessionOptions(reproducible=True, draft_max=0)).options.draft_max == 0


def test_reproducible_refuses_an_engine_that_splits_passes_of_a_long_context(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = rounding_pair(kernel_per_pair)
    pair.session(SessionOptions(reproducible=True))
    monkeypatch.setattr(TableState, "width", 3, raising=False)
    pair.session(SessionOptions(reproducible=True, draft_max=1)).generate("hello", max_tokens=4)
    with pytest.raises(CapabilityError, match=r"512 tokens the engine takes at most 3 rows per pass.*--ctx-size"):
        pair.session(SessionOptions(reproducible=True, draft_max=2))


def test_reproducible_answer_ends_when_the_context_is_full() -> None:
    pair = rounding_pair(lambda place, rows: 0 if rows % 4 == 0 else rows)
    session = pair.session(SessionOptions(reproducible=True, context=64, ignore_eos=True, drafter="none"))
    assert session.context == 62
    done = session.generate("hello", max_tokens=100)
    assert (done.finish_reason, done.stats.context_full, len(session.tokens)) == ("length", True, 62)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file of a pair whose odd widths differ, on an engine that has a version."""
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path))
    monkeypatch.setattr("edgedecode.sessions.reproducible.engine_version", lambda name: "1")
    pair = rounding_pair(kernel_per_pair)
    path = widths_path(pair.manifest, pair.target.card, engine="table", version="1", provider="cpu")
    assert path is not None
    return path


def test_stored_widths_are_used(place: Path) -> None:
    rounding_pair(kernel_per_pair).session(SessionOptions(reproducible=True))
    kept = load_widths(place)
    assert kept is not None
    assert [path.name for path in place.parent.iterdir()] == [place.name]
    again = rounding_pair(kernel_per_pair)
    again.session(SessionOptions(reproducible=True))
    assert again.target.passes == []  # type: ignore[attr-defined]
    assert again.shared.identical_widths == {"": kept}


def test_stored_widths_include_that_none_agree(place: Path) -> None:
    store_widths(place, IdenticalWidths(()))
    pair = rounding_pair(kernel_per_pair)
    with pytest.raises(CapabilityError, match="identical bits"):
        pair.session(SessionOptions(reproducible=True))
    assert pair.target.passes == []  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "nonsense",
        "[]",
        "{}",
        "[" * 5000,
        "\x00",
        " " * 20_000,
        '{"edgedecode_costs": 1}',
        '{"drafts": [4, 2], "prompts": []}',
        '{"drafts": [2, 4000], "prompts": []}',
        '{"drafts": [2, 4], "prompts": [8]}',
        '{"drafts": "2", "prompts": []}',
    ],
    ids=range(12),
)
def test_stored_widths_that_are_damaged_give_a_notice_and_are_measured_again(
    place: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    place.write_text(content, encoding="utf-8")
    with caplog.at_level(logging.INFO, logger="edgedecode.user_notices"):
        rounding_pair(kernel_per_pair).session(SessionOptions(reproducible=True))
    assert "measured again" in caplog.text
    assert caplog.text.count("\n") == 1
    assert json.loads(place.read_text(encoding="utf-8"))["drafts"][:2] == [2, 4]


def test_stored_widths_in_a_cache_that_cannot_be_written_are_not_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr("edgedecode.sessions.reproducible.engine_version", lambda name: "1")
    for _ in range(2):
        pair = rounding_pair(kernel_per_pair)
        pair.session(SessionOptions(reproducible=True))
        assert pair.target.passes  # type: ignore[attr-defined]
    store_widths(tmp_path / "no" / FOLDER, FOUND)


def test_stored_widths_have_separate_files_per_engine_graph_and_adapter(place: Path) -> None:
    pair = rounding_pair(kernel_per_pair)
    card, uses = pair.target.card, [None, AdapterUse("a", "d"), AdapterUse("a", "d", 0.5)]
    cards = [card, replace(card, threads=2), replace(card, kv_type="int8"), replace(card, tree=False)]
    paths = {
        widths_path(pair.manifest, each, engine=engine, version=version, provider="cpu", adapter=use)
        for each in cards
        for use in uses
        for engine, version in (("table", "1"), ("table", "2"), ("other", "1"))
    }
    assert len(paths) == len(cards) * len(uses) * 3
    assert place in paths
